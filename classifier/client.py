"""The Kafka client: its settings, its codecs, and the faults of its own that no retry mends."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, codec

from classifier.settings import Settings


class ClientError(Exception):
    """A part of the client has ended, and only a new process mends that; one line says which."""


def check_consumer(consumer: AIOKafkaConsumer) -> None:
    """Raises ClientError when a task that the consumer lives by has ended.

    aiokafka 0.14 tells nobody: without its fetch task every poll is empty for ever, and without its
    coordination task every poll raises what ended it.
    """
    for part in ("fetch", "coordination"):
        owner = getattr(consumer, {"fetch": "_fetcher", "coordination": "_coordinator"}[part])
        _check(getattr(owner, f"_{part}_task", None), part)


def check_producer(producer: AIOKafkaProducer) -> None:
    """Raises ClientError when the task that sends has ended: every send fails from then on."""
    _check(producer._sender.sender_task, "sender")


def _check(task: asyncio.Task[Any] | None, part: str) -> None:
    if task is not None and task.done():
        error = None if task.cancelled() else task.exception()
        raise ClientError(f"the Kafka client's {part} task has ended: {error!r}")


class CodecError(Exception):
    """A codec that producers may use is not installed; the message is one line."""


def check_codecs() -> None:
    """Raises CodecError unless gzip, snappy, lz4 and zstd can all be read.

    Without this the first compressed batch would stop a partition, perhaps months after the start.
    """
    missing = [
        name
        for name, has in (
            ("gzip", codec.has_gzip),
            ("snappy", codec.has_snappy),
            ("lz4", codec.has_lz4),
            ("zstd", codec.has_zstd),
        )
        if not has()
    ]
    if missing:
        raise CodecError(f"no codec for {', '.join(missing)}; pip install cramjam")


def client_settings(settings: Settings) -> dict[str, Any]:
    """What every Kafka client of the service is made with: brokers and security."""
    password = settings.kafka_sasl_password
    common: dict[str, Any] = {
        "bootstrap_servers": [
            server.strip() for server in settings.kafka_bootstrap_servers.split(",")
        ],
        "security_protocol": settings.kafka_security_protocol,
        "ssl_context": settings.kafka_ssl_context(),
    }
    if settings.kafka_security_protocol.startswith("SASL"):
        common |= {
            "sasl_mechanism": settings.kafka_sasl_mechanism,
            "sasl_plain_username": settings.kafka_sasl_username,
            "sasl_plain_password": password.get_secret_value() if password else None,
        }
    return common
