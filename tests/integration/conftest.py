"""Fixtures of the integration tests."""

from __future__ import annotations

import gc
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from classifier.demo import servers
from tests.conftest import PARTITIONS, SERVERS
from tests.integration.harness import Broker, Database, Place, Service
from tests.integration.proxy import Proxy


@pytest.fixture
def place(kafka: str, mongodb: str, topic: str, database: str, artifact: Path) -> Place:
    """A topic of 4 partitions and a database of this test's own, and the small artefact."""
    return Place(kafka, mongodb, topic, database, artifact)


@pytest.fixture
def own_database(tmp_path: Path) -> Iterator[Database]:
    """A database that the test may kill."""
    database = Database(tmp_path)
    database.start()
    yield database
    database.kill()
    # pymongo 4 forgets the socket of a connection that it was making when its client was closed.
    # Found here, it is no other test's fault.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """The network between a broker of the test's own and all its clients."""
    if "KAFKA_BOOTSTRAP_SERVERS" in SERVERS:
        pytest.skip("the network of the Kafka in KAFKA_BOOTSTRAP_SERVERS is not broken on purpose")
    broker = Broker()
    broker.start()
    yield broker.proxy
    broker.end()


@pytest.fixture
async def behind(proxy: Proxy, mongodb: str, database: str, artifact: Path) -> Place:
    """A topic of 4 partitions behind the proxy; else as `place`."""
    place = Place(proxy.bootstrap, mongodb, f"test-{uuid.uuid4().hex}", database, artifact)
    await servers.create_topic(place.kafka, place.topic, PARTITIONS)
    await servers.create_topic(place.kafka, place.dead_letter_topic, 1)
    return place


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[dict[str, object]], Service]]:
    """Starts the production command with given settings; ended after the test."""
    started: list[Service] = []

    def start(overrides: dict[str, object]) -> Service:
        directory = tmp_path / f"service-{len(started)}"
        directory.mkdir()
        started.append(Service(overrides, directory))
        return started[-1]

    yield start
    for service in started:
        service.end()
