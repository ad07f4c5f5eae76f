"""Dead letters: records that cannot be used, kept in Kafka as they came, with the reason why."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordTooLargeError

from classifier.client import check_producer
from classifier.metrics import Metrics
from classifier.outage import Outages
from classifier.patience import NOTICE, AbandonedError, patiently
from classifier.record import Record, Reject

SERVICE = "dead-letters"

KEY_BYTES = 4_096
"""A longer key is no offer id: it is cut, with the hash of the whole in a header."""
HEADER_BYTES = 16_384
"""Of a record's own headers so much is kept."""
DETAIL_CHARACTERS = 1_000
ANSWER_SECONDS = 5.0
"""A dead letter without an answer for so long waits for an outage."""
SMALLEST_CUT = 1_024
"""Below this a dead-letter topic that still refuses the size is misconfigured: an outage."""

Headers = list[tuple[str, bytes]]


def headers(reject: Reject) -> Headers:
    """Where the record was and why it is here.

    Topic, partition and offset name it: one record is one dead letter, however often it is written.
    """
    record = reject.record
    return [
        ("topic", record.topic.encode()),
        ("partition", str(record.partition).encode()),
        ("offset", str(record.offset).encode()),
        ("timestamp", str(record.timestamp).encode()),
        ("reason", reject.reason.encode()),
        ("error", reject.detail[:DETAIL_CHARACTERS].encode("utf-8", "replace")),
    ]


def original_headers(record: Record) -> Headers:
    """The record's own headers; when some do not fit, `headers_cut` says how many bytes it had."""
    kept: Headers = []
    total = room = 0
    for name, content in record.headers:
        size = len(name) + len(content or b"")
        total += size
        if room + size <= HEADER_BYTES:
            room += size
            kept.append((f"original.{name}", content or b""))
    if total > room:
        kept.append(("headers_cut", str(total).encode()))
    return kept


def cut(value: bytes | None, most: int) -> tuple[bytes | None, Headers]:
    """The value within `most` bytes, and headers that say what is missing when it was cut."""
    if value is None or len(value) <= most:
        return value, []
    digest = hashlib.sha256(value).hexdigest().encode()
    return value[:most], [("cut", str(len(value)).encode()), ("sha256", digest)]


class DeadLetters:
    """Writes dead letters and returns when Kafka has acknowledged them."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        most_bytes: int,
        outages: Outages,
        metrics: Metrics,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._most_bytes = most_bytes
        self._outages = outages
        self._metrics = metrics

    async def send(self, rejects: Sequence[Reject], wanted: Callable[[], bool]) -> None:
        """Writes all of them, for as long as it takes.

        A topic that is missing or away is an outage, waited for. Raises AbandonedError once
        `wanted` says no.
        """
        if rejects:
            await asyncio.gather(*(self._send(reject, wanted) for reject in rejects))

    async def _send(self, reject: Reject, wanted: Callable[[], bool]) -> None:
        most = self._most_bytes
        record = reject.record
        user = f"{record.partition}/{record.offset}"
        errors = (KafkaError, TimeoutError)
        try:
            async for attempt in patiently(errors, wanted, self._count_retry):
                with attempt:
                    if not wanted():
                        raise AbandonedError(SERVICE)
                    try:
                        await self._acknowledged(reject, most, wanted, user)
                    except (MessageSizeTooLargeError, RecordTooLargeError) as error:
                        if most <= SMALLEST_CUT:
                            self._outages.began(SERVICE, f"{self._topic}: {error}", user)
                        most //= 2
                        raise
                    except errors as error:
                        self._outages.began(SERVICE, f"{self._topic}: {error!r}", user)
                        check_producer(self._producer)
                        raise
        finally:
            self._outages.ended(SERVICE, user)

    def _count_retry(self) -> None:
        self._metrics.retries.inc("dead_letters")

    async def _acknowledged(
        self, reject: Reject, most: int, wanted: Callable[[], bool], user: str
    ) -> None:
        """Once Kafka has it. Raises KafkaError, or AbandonedError once `wanted` says no.

        On a half-open connection the client waits for its request timeout, and says nothing.
        """
        sending = asyncio.ensure_future(self._send_once(reject, most))
        deadline = time.monotonic() + ANSWER_SECONDS
        try:
            while not (await asyncio.wait({sending}, timeout=NOTICE))[0]:
                if not wanted():
                    raise AbandonedError(SERVICE)
                if time.monotonic() > deadline:
                    self._outages.began(SERVICE, f"{self._topic}: no answer", user)
            sending.result()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_once(self, reject: Reject, most: int) -> None:
        record = reject.record
        value, missing = cut(record.value, max(most, SMALLEST_CUT))
        key = record.key
        if key is not None and len(key) > KEY_BYTES:
            missing.append(("key_sha256", hashlib.sha256(key).hexdigest().encode()))
            key = key[:KEY_BYTES]
        named = [*headers(reject), *original_headers(record), *missing]
        await self._producer.send_and_wait(self._topic, value=value, key=key, headers=named)
