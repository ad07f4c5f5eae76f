"""Puts offers on the topic: the lines of a file, or the events of the sample catalogue.

A line goes out as it stands. What is wrong with it is for the worker to say, in a dead letter; only
a record that is too large for the broker stays here, and is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from classifier import jsonl

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

# Records between two looks at the clock, the rate and the acknowledgements: enough to fill the
# producer's batches, few enough to hold in memory.
_CHUNK = 2_000
# At a rate, a chunk lasts so long, so that the rate holds within a second and progress moves.
_CHUNK_SECONDS = 0.1


class ProduceError(Exception):
    """The records cannot be sent; the message is one line."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record to send. No value is a tombstone; no timestamp is the time of sending."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Counts:
    """What was sent so far."""

    sent: int = 0  # records that the broker acknowledged
    without_id: int = 0  # those of them that have no key, for want of a readable offer_id
    too_large: int = 0  # records that were not sent, larger than a broker takes
    seconds: float = 0.0


class _Id(msgspec.Struct):
    offer_id: str


_decode_id = msgspec.json.Decoder(_Id).decode


def from_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> Iterator[Record]:
    """A record for each line of a JSONL file, gzipped or not, with the offer id as its key.

    `on_bytes` hears how many bytes of the file were read so far. Raises jsonl.FileError.
    """
    for line in jsonl.read(path, on_bytes):
        try:
            key = _decode_id(line).offer_id.encode() or None
        except (msgspec.DecodeError, UnicodeEncodeError):
            key = None
        yield Record(key, line)


def from_sample(seed: int, count: int) -> Iterator[Record]:
    """A record for each of `count` events of the sample catalogue."""
    from classifier import sample

    for event in sample.events(seed, count):
        yield Record(event.key, event.value, tuple(event.headers))


def say(counts: Counts) -> str:
    """The counts for a person."""
    parts = [f"{counts.sent:,} records sent in {counts.seconds:.1f} s"]
    if counts.without_id:
        parts.append(f"{counts.without_id:,} of them without a readable offer_id")
    if counts.too_large:
        parts.append(f"{counts.too_large:,} too large, not sent")
    return ", ".join(parts)


async def produce(
    records: Iterable[Record],
    topic: str,
    client: Mapping[str, Any],
    *,
    rate: float = 0.0,
    compression: Compression = "none",
    on_progress: Callable[[Counts], None] | None = None,
) -> Counts:
    """Send the records in their order, those of one key to one partition, each acknowledged by all
    replicas, at most `rate` a second (0: as fast as it goes).

    `client` is what the Kafka client is made with: brokers and security. `on_progress` hears the
    counts several times a second. Records are drawn only once those before them are acknowledged,
    a few thousand at a time, so any number of them takes little memory.

    Raises:
        ProduceError: the broker is away, or refuses for good.
        What the iteration over `records` raises.
    """
    producer = AIOKafkaProducer(
        acks="all",
        linger_ms=5,
        max_batch_size=256 * 1024,
        compression_type=None if compression == "none" else compression,
        **client,
    )
    try:
        await producer.start()
    except KafkaError as error:
        await producer.stop()
        servers = client.get("bootstrap_servers", "")
        where = servers if isinstance(servers, str) else ",".join(servers)
        raise ProduceError(f"no Kafka broker answers at {where}: {_say(error)}") from None
    try:
        return await _send(producer, iter(records), topic, rate, on_progress)
    except KafkaError as error:
        raise ProduceError(f"the topic {topic} takes no records: {_say(error)}") from None
    finally:
        await producer.stop()


async def _send(
    producer: AIOKafkaProducer,
    records: Iterator[Record],
    topic: str,
    rate: float,
    on_progress: Callable[[Counts], None] | None,
) -> Counts:
    counts = Counts()
    started = time.perf_counter()
    size = max(1, min(_CHUNK, round(rate * _CHUNK_SECONDS))) if rate else _CHUNK
    while chunk := list(islice(records, size)):
        counts = await _send_chunk(producer, chunk, topic, counts)
        if rate:
            due = started + (counts.sent + counts.too_large) / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        counts = replace(counts, seconds=time.perf_counter() - started)
        if on_progress is not None:
            on_progress(counts)
    return counts


async def _send_chunk(
    producer: AIOKafkaProducer, chunk: Sequence[Record], topic: str, counts: Counts
) -> Counts:
    waiting: list[asyncio.Future[object]] = []
    without_id = too_large = 0
    for record in chunk:
        try:
            future = await producer.send(
                topic,
                record.value,
                record.key,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
        except MessageSizeTooLargeError:
            too_large += 1
            continue
        waiting.append(future)
        without_id += record.key is None
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
    return replace(
        counts,
        sent=counts.sent + len(waiting),
        without_id=counts.without_id + without_id,
        too_large=counts.too_large + too_large,
    )


def _say(error: KafkaError) -> str:
    return str(error) or type(error).__name__
