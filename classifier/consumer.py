"""The member of the consumer group: batches of records in, committed offsets out.

It stays in the group whatever happens behind it: while nothing more can be taken, the partitions
are paused and polls go on. A rebalance ends with every offset that could be finished in time
committed, and everything else forgotten.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from aiokafka import (
    AIOKafkaConsumer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    TopicPartition,
    codec,
)
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.helpers import create_ssl_context

from classifier import header_names, log
from classifier.metrics import Metrics
from classifier.offsets import Claim, Offsets
from classifier.outage import Outages
from classifier.settings import Settings

SERVICE = "kafka"

PAUSED_POLL_MS = 250
"""Polls of a paused consumer return nothing, this often."""
IDLE_FETCH_SECONDS = 1.0
"""Longest wait for a first record before `fetch` gives the word back."""
RETRY_SECONDS = 1.0
LAG_TIMEOUT_SECONDS = 10.0

_log = log.get("consumer")


@dataclass(frozen=True, slots=True)
class Fetched:
    """One fetched batch: records, each partition's in order, and the claims on their offsets."""

    records: list[ConsumerRecord]
    claims: list[Claim]


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
        "ssl_context": _ssl_context(settings),
    }
    if settings.kafka_security_protocol.startswith("SASL"):
        common |= {
            "sasl_mechanism": settings.kafka_sasl_mechanism,
            "sasl_plain_username": settings.kafka_sasl_username,
            "sasl_plain_password": password.get_secret_value() if password else None,
        }
    return common


def _ssl_context(settings: Settings) -> ssl.SSLContext | None:
    if not settings.kafka_security_protocol.endswith("SSL"):
        return None
    password = settings.kafka_ssl_password
    context: ssl.SSLContext = create_ssl_context(
        cafile=settings.kafka_ssl_cafile,
        certfile=settings.kafka_ssl_certfile,
        keyfile=settings.kafka_ssl_keyfile,
        password=password.get_secret_value() if password else None,
    )
    return context


class OfferConsumer(ConsumerRebalanceListener):  # type: ignore[misc]  # untyped base
    """One member of the group. All of it runs on one event loop."""

    def __init__(
        self,
        settings: Settings,
        offsets: Offsets,
        outages: Outages,
        metrics: Metrics,
        instance_id: str | None = None,
    ) -> None:
        self._settings = settings
        self._offsets = offsets
        self._outages = outages
        self._metrics = metrics
        self._paused = False
        self._failures = 0  # of fetches
        self._is_lost = False  # since a fetch failed, the client's positions may be past our claims
        self.joined = False
        self.lag: dict[TopicPartition, int] = {}
        self.finish: Callable[[], Awaitable[None]] | None = None
        """Awaited, within a bound, before partitions are given up: finish what is in flight."""
        self._consumer = AIOKafkaConsumer(
            **client_settings(settings),
            group_id=settings.kafka_group,
            group_instance_id=instance_id,
            client_id="offer-classifier",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=settings.kafka_session_timeout_ms,
            heartbeat_interval_ms=max(300, settings.kafka_session_timeout_ms // 10),
            # A broker answers a request to join only once the others have joined or timed out.
            request_timeout_ms=settings.kafka_session_timeout_ms + 10_000,
            max_poll_interval_ms=settings.kafka_max_poll_interval_ms,
            max_poll_records=settings.fetch_offers,
            # The default of a megabyte a partition holds two or three thousand offers, a batch.
            max_partition_fetch_bytes=max(1_048_576, settings.record_bytes),
        )

    async def join(self) -> None:
        """Connects and subscribes. Raises KafkaError when no broker can be had."""
        self._consumer.subscribe([self._settings.kafka_topic], listener=self)
        await self._consumer.start()

    async def leave(self) -> None:
        """Leaves the group, so that the others need not wait for the session to time out."""
        await self._consumer.stop()

    async def fetch(self) -> Fetched | None:
        """The next batch, or None when there was no record for a moment.

        Waits at most `fetch_wait_ms` after the first record for the batch to fill.
        """
        self._resume()
        started = time.monotonic()
        deadline = started + IDLE_FETCH_SECONDS
        records: list[ConsumerRecord] = []
        claims: list[Claim] = []
        while (room := self._settings.fetch_offers - len(records)) > 0:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if records and left_ms <= 0:
                break
            got = await self._poll(max(0, left_ms), room)
            if not got:
                break
            # Claimed before anything else can run: whoever reads the consumer's positions must
            # find the claims of all records that these have passed.
            claim = self._offsets.claim(
                {p: (more[0].offset, more[-1].offset + 1) for p, more in got.items()}
            )
            if claims and not self._offsets.is_valid(claims[0]):
                # What was gathered before a rebalance is read again by its next owner.
                records.clear()
                claims.clear()
            if not records:
                deadline = time.monotonic() + self._settings.fetch_wait_ms / 1000
            claims.append(claim)
            for more in got.values():
                records += more
        if not records:
            return None
        self._metrics.stage_seconds.observe("fetch", time.monotonic() - started)
        return Fetched(records, claims)

    async def idle(self) -> None:
        """Polls once with all partitions paused: alive in the group, and taking nothing."""
        self._pause()
        await self._poll(PAUSED_POLL_MS, 1)

    async def commit(self) -> bool:
        """Commits what is settled, for as long as the coordinator is away; says whether it did.

        A commit under a membership that is gone is logged and dropped: the next owner of the
        partitions reads from the last commit.
        """
        epoch = self._offsets.epoch
        offsets = self._offsets.committable()
        while offsets and epoch == self._offsets.epoch:
            try:
                await self._consumer.commit(offsets)
            except (CommitFailedError, IllegalStateError) as error:
                _log.warning("commit dropped", reason=str(error) or type(error).__name__)
                return False
            except KafkaError as error:
                self._outages.began(SERVICE, f"commit: {error!r}")
                self._metrics.retries.inc(SERVICE)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._offsets.committed(offsets, epoch)
            return epoch == self._offsets.epoch
        return False

    async def measure_lag(self) -> None:
        """Records behind the end of each partition held, asked of the brokers.

        Also commits positions that no record leads to, see Offsets.skippable. An outage of Kafka
        begins or ends with the answer.
        """
        partitions = list(self._offsets.partitions)
        epoch, failures, was_lost = self._offsets.epoch, self._failures, self._is_lost
        try:
            async with asyncio.timeout(LAG_TIMEOUT_SECONDS):
                if not partitions:
                    await self._consumer.topics()
                    self.lag = {}
                    self._outages.ended(SERVICE)
                    return
                ends = await self._consumer.end_offsets(partitions)
                positions = {p: await self._consumer.position(p) for p in partitions}
                skippable = self._offsets.skippable(positions)
                is_sure = not was_lost and failures == self._failures
                if skippable and is_sure and epoch == self._offsets.epoch:
                    await self._consumer.commit(skippable)
                    self._offsets.committed(skippable, epoch)
        except (CommitFailedError, IllegalStateError):
            return
        except (KafkaError, TimeoutError) as error:
            self._outages.began(SERVICE, repr(error))
            return
        if epoch == self._offsets.epoch:
            done = self._offsets.done(positions)
            # A fetch may have seen the end more lately than it was asked for.
            self.lag = {
                p: max(0, max(ends[p], self._consumer.highwater(p) or 0) - offset)
                for p, offset in done.items()
            }
        if is_sure:
            self._outages.ended(SERVICE)

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Called by the client before a rebalance: finish, commit, and drop the rest."""
        self.joined = False
        if revoked and self.finish is not None:
            try:
                async with asyncio.timeout(self._settings.revoke_seconds):
                    await self.finish()
            except TimeoutError:
                _log.warning("rebalance: work in flight dropped", batches=self._offsets.unsettled)
            except Exception:  # noqa: BLE001 the client would log it and rebalance all the same
                _log.exception("rebalance: work in flight dropped")
        self._offsets.assign(())
        self.lag = {}

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Called by the client after a rebalance."""
        self._offsets.assign(assigned)
        self._is_lost = False
        if self._paused and assigned:
            self._consumer.pause(*assigned)
        self.joined = True
        self._metrics.rebalances.inc()
        _log.info("partitions assigned", partitions=sorted(p.partition for p in assigned))

    async def _poll(self, timeout_ms: int, most: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        try:
            if self._is_lost:
                await self._find_back()
            got: dict[TopicPartition, list[ConsumerRecord]] = await self._consumer.getmany(
                timeout_ms=timeout_ms, max_records=most
            )
        except (KafkaError, UnicodeDecodeError) as error:
            # The client forgets the good records that it had taken out before the bad one.
            self._is_lost = True
            self._failures += 1
            if header_names.is_to_blame(error):
                _log.warning("a header name is not UTF-8: records are read more slowly from now on")
                header_names.tolerate()
                return {}
            # A fetch fails by the brokers' fault, never the records': named, and waited for.
            self._outages.began(SERVICE, f"fetch: {error!r}")
            self._metrics.retries.inc(SERVICE)
            await asyncio.sleep(RETRY_SECONDS)
            return {}
        return got

    async def _find_back(self) -> None:
        """Lets every partition go on after the last record that was claimed."""
        epoch = self._offsets.epoch
        for partition in self._offsets.partitions:
            offset = self._offsets.resume(partition)
            if offset is None:
                offset = await self._consumer.committed(partition)
            if epoch != self._offsets.epoch:
                return
            if offset is None:
                await self._consumer.seek_to_beginning(partition)  # as auto_offset_reset says
            else:
                self._consumer.seek(partition, offset)
        if epoch == self._offsets.epoch:
            self._is_lost = False

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._consumer.pause(*self._consumer.assignment())

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._consumer.resume(*self._consumer.paused())
