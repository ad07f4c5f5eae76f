"""A place to try the service in: a broker and a database, with names that nobody else uses."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pymongo

from classifier import log
from classifier.artifact import Artifact
from classifier.client import client_settings
from classifier.demo import DemoError, servers
from classifier.settings import Settings, load_settings

PARTITIONS = 4
WINDOW = 2_000
"""So many records may be on their way at once. Enough to keep the service busy, and few enough for
an offer's age to be that of a stream that keeps up: a flood would only measure its own length. In
batches of a quarter of that, one is fetched while others are computed and written."""


@contextlib.contextmanager
def place(artifact: Artifact, say: Callable[[str], None]) -> Iterator[Settings]:
    """Settings for a service with the artefact, on servers of its own or the environment's.

    Its topics and its database are gone with the context. Raises DemoError when a server is
    missing or does not work.
    """
    with contextlib.ExitStack() as stack:
        try:
            bootstrap = stack.enter_context(servers.embedded_broker())
            uri = stack.enter_context(servers.embedded_database())
        except servers.ServerError as error:
            raise DemoError(str(error)) from error
        settings = _settings(artifact, bootstrap, uri)
        say(f"broker {bootstrap}, topic {settings.kafka_topic}")
        say(f"database {settings.mongodb_database}")
        stack.enter_context(_topics(settings))
        stack.enter_context(_database(settings))
        yield settings


def _settings(artifact: Artifact, bootstrap: str, uri: str) -> Settings:
    """Names of their own, so that servers which others use keep nothing of the demo."""
    name = f"classifier-demo-{uuid.uuid4().hex[:8]}"
    settings = load_settings(
        overrides={
            "kafka_bootstrap_servers": bootstrap,
            "kafka_topic": name,
            "kafka_dead_letter_topic": f"{name}.dead-letters",
            "kafka_group": name,
            "mongodb_uri": uri,
            "mongodb_database": name,
            "model": artifact.path,
            # The embedded broker makes the first member of a group wait for others for half of
            # this. Six seconds is the least that Kafka allows unless told otherwise.
            "kafka_session_timeout_ms": 6_000,
            "revoke_seconds": 3,
            "fetch_offers": WINDOW // 4,
            "http_host": "127.0.0.1",
            "http_port": servers.free_port(),
            "log_format": "console",
        }
    )
    for secret in settings.secrets():
        log.hide(secret)
    return settings


@contextlib.contextmanager
def _topics(settings: Settings) -> Iterator[None]:
    client = client_settings(settings)
    names = [settings.kafka_topic, settings.kafka_dead_letter_topic]

    async def make() -> None:
        for name, partitions in zip(names, (PARTITIONS, 1), strict=True):
            await servers.create_topic(topic=name, partitions=partitions, **client)

    try:
        asyncio.run(make())
    except Exception as error:  # whatever the client raises, the demo ends here
        raise DemoError(f"the broker does not make the demo's topics: {error!r}") from error
    try:
        yield
    finally:
        # The servers may be the reason why the demo ends.
        with contextlib.suppress(Exception):
            asyncio.run(servers.delete_topics(topics=names, **client))


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(pymongo.errors.PyMongoError), mongodb(settings) as client:
            client.drop_database(settings.mongodb_database)


def mongodb(settings: Settings) -> pymongo.MongoClient[dict[str, Any]]:
    """A client of the place's database."""
    return pymongo.MongoClient(
        settings.mongodb_uri.get_secret_value(), serverSelectionTimeoutMS=10_000
    )
