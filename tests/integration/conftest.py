"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.harness import Database, Place, Service


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
