"""The load: sample offers, many ids over fewer texts."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence
from itertools import islice

from aiokafka import AIOKafkaProducer

from classifier import sample
from classifier.demo.servers import create_topic

PARTITIONS = 4
TOPIC = "offers"

Record = tuple[bytes, bytes]
"""Key and value."""


def new_offers(seed: int, count: int, texts: int) -> list[Record]:
    """`count` offers, each with an id of its own, whose first `texts` have all the texts.

    Raises ValueError when two have one id.
    """
    records = list(islice(_new(seed, texts), count))
    if len({key for key, _ in records}) != count:
        raise ValueError("two offers of the load have one id")
    return records


def _new(seed: int, texts: int) -> Iterator[Record]:
    for event in sample.events(seed, 1 << 40, texts=texts):
        if event.kind == "new" and event.key is not None and event.value is not None:
            yield event.key, event.value


def median_bytes(records: Sequence[Record]) -> float:
    """The median size of a record's value."""
    return statistics.median(len(value) for _, value in records)


async def make_topics(kafka: str) -> None:
    """The offers topic with four partitions, and the dead letters' with one."""
    await create_topic(kafka, TOPIC, PARTITIONS)
    await create_topic(kafka, f"{TOPIC}.dead-letters", 1)


async def produce(kafka: str, records: Sequence[Record]) -> None:
    """Sends records, and returns when all are acknowledged."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=20, max_batch_size=1 << 18)
    await producer.start()
    try:
        for start in range(0, len(records), 10_000):
            sent = [
                await producer.send(TOPIC, value, key=key)
                for key, value in records[start : start + 10_000]
            ]
            await asyncio.gather(*sent)
    finally:
        await producer.stop()
