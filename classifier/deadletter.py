"""Dead letters: records that cannot be used, kept in Kafka as they came, with the reason why."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordTooLargeError
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from classifier.metrics import Metrics
from classifier.outage import Outages
from classifier.record import Reject

SERVICE = "dead-letters"

KEY_BYTES = 4_096
"""A longer key is no offer id; its hash takes its place in a header."""
DETAIL_CHARACTERS = 1_000
SMALLEST_CUT = 1_024
"""Below this a dead-letter topic that still refuses the size is misconfigured: an outage."""

Headers = list[tuple[str, bytes]]


class AbandonedError(Exception):
    """The batch no longer belongs to this worker, so its work was given up."""


def headers(reject: Reject) -> Headers:
    """Where the record was, why it is here, and the record's own headers after that.

    The first five name it: one record is one dead letter, however often it is written.
    """
    record = reject.record
    return [
        ("topic", record.topic.encode()),
        ("partition", str(record.partition).encode()),
        ("offset", str(record.offset).encode()),
        ("timestamp", str(record.timestamp).encode()),
        ("reason", reject.reason.encode()),
        ("error", reject.detail[:DETAIL_CHARACTERS].encode("utf-8", "replace")),
        *((f"original.{name}", content or b"") for name, content in record.headers),
    ]


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
        attempts = AsyncRetrying(
            wait=wait_random_exponential(0.1, max=10),
            retry=retry_if_exception_type((KafkaError, TimeoutError)),
            before_sleep=lambda _: self._metrics.retries.inc("dead_letters"),
        )
        async for attempt in attempts:
            with attempt:
                if not wanted():
                    raise AbandonedError(SERVICE)
                try:
                    await self._send_once(reject, most)
                except (MessageSizeTooLargeError, RecordTooLargeError) as error:
                    if most > SMALLEST_CUT:
                        most //= 2
                    else:
                        self._outages.began(SERVICE, f"{self._topic}: {error}")
                    raise
                except (KafkaError, TimeoutError) as error:
                    self._outages.began(SERVICE, f"{self._topic}: {error!r}")
                    raise
        self._outages.ended(SERVICE)

    async def _send_once(self, reject: Reject, most: int) -> None:
        record = reject.record
        value, missing = cut(record.value, most)
        key = record.key
        if key is not None and len(key) > KEY_BYTES:
            missing.append(("key_sha256", hashlib.sha256(key).hexdigest().encode()))
            key = None
        total = sum(len(name) + len(content or b"") for name, content in record.headers)
        named = headers(reject)
        if total > SMALLEST_CUT:
            named = [header for header in named if not header[0].startswith("original.")]
            missing.append(("headers_cut", str(total).encode()))
        await self._producer.send_and_wait(
            self._topic, value=value, key=key, headers=[*named, *missing]
        )
