"""A broker, a database and a small artefact for every test that asks for one.

Servers come from `KAFKA_BOOTSTRAP_SERVERS` and `MONGODB_URI` where those are set, so the names of
topics, groups and databases are a test's own.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pymongo
import pytest

from classifier.demo import servers
from classifier.settings import Settings

# Read once, then hidden: a test's settings are the defaults and what the test itself says.
SERVERS = {
    name: os.environ[name]
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "MONGODB_URI")
    if os.environ.get(name)
}
for _field in Settings.model_fields:
    os.environ.pop(_field.upper(), None)

# No test asks a hub for anything.
os.environ["HF_HUB_OFFLINE"] = "1"

PARTITIONS = 4


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The bootstrap servers of a broker."""
    with mock.patch.dict(os.environ, SERVERS):
        context = servers.embedded_broker()
        bootstrap = context.__enter__()
    try:
        yield bootstrap
    finally:
        context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def mongodb() -> Iterator[str]:
    """The URI of a database server."""
    with mock.patch.dict(os.environ, SERVERS):
        context = servers.embedded_database()
        uri = context.__enter__()
    try:
        yield uri
    finally:
        context.__exit__(None, None, None)


@pytest.fixture
def topic(kafka: str) -> Iterator[str]:
    """A topic of 4 partitions, and beside it NAME.dead-letters of 1; both are gone afterwards."""
    name = f"test-{uuid.uuid4().hex}"
    dead_letters = f"{name}.dead-letters"
    _apart(servers.create_topic(kafka, name, PARTITIONS))
    _apart(servers.create_topic(kafka, dead_letters, 1))
    yield name
    _apart(servers.delete_topics(kafka, [name, dead_letters]))


@pytest.fixture
async def create_topic(kafka: str) -> Callable[[int], Awaitable[str]]:
    """Make a topic with a number of partitions, and get its name."""

    async def create(partitions: int) -> str:
        name = f"test-{uuid.uuid4().hex}"
        await servers.create_topic(kafka, name, partitions)
        return name

    return create


@pytest.fixture
def database(mongodb: str) -> Iterator[str]:
    """The name of a database that is empty before the test and gone after it."""
    name = f"test_{uuid.uuid4().hex}"
    yield name
    with pymongo.MongoClient[dict[str, object]](mongodb) as client:
        client.drop_database(name)


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an artefact that tells a few categories apart, made as real ones are."""
    from training.tiny import tiny_artifact

    return tiny_artifact(tmp_path_factory.mktemp("artifact"))


def _apart(work: Coroutine[object, object, None]) -> None:
    """Run to its end in a thread: the test's own event loop stays as it is."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()
