"""The member of the consumer group: batches of records in, committed offsets out.

It stays in the group whatever happens behind it: while nothing more can be taken, the partitions
are paused and polls go on. A rebalance ends with every offset that could be finished in time
committed, and everything else forgotten.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from aiokafka import (
    AIOKafkaConsumer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    TopicPartition,
)
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from classifier import header_names, log
from classifier.client import check_consumer, client_settings
from classifier.metrics import Metrics
from classifier.offsets import Claim, Offsets
from classifier.outage import Outages
from classifier.settings import Settings

SERVICE = "kafka"
FETCHING, COMMITTING = "fetching", "committing"

PAUSED_POLL_MS = 250
"""Polls of a paused consumer return nothing, this often."""
IDLE_FETCH_SECONDS = 1.0
"""Longest wait for a first record before `fetch` gives the word back."""
RETRY_SECONDS = 1.0
LAG_TIMEOUT_SECONDS = 10.0
COMMIT_SECONDS = 5.0
"""A commit that takes longer waits for a coordinator that is away."""
BATCH_BYTES = 16 << 20
"""A batch is full with so many bytes, too."""

_log = log.get("consumer")


@dataclass(frozen=True, slots=True)
class Fetched:
    """One fetched batch: records, each partition's in order, and the claims on their offsets."""

    records: list[ConsumerRecord]
    claims: list[Claim]


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
        self.assigned_at = time.monotonic()
        self.lag: dict[TopicPartition, int] = {}
        self.finish: Callable[[], Awaitable[None]] | None = None
        """Awaited, within a bound, before partitions are given up: finish what is in flight."""
        self._instance_id = instance_id
        self._committing = asyncio.Lock()
        self._ended = asyncio.Event()  # set, and replaced, whenever an assignment ends
        self._consumer = self._client()

    def _client(self) -> AIOKafkaConsumer:
        settings = self._settings
        return AIOKafkaConsumer(
            **client_settings(settings),
            group_id=settings.kafka_group,
            group_instance_id=self._instance_id,
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
        """Connects and joins. Raises KafkaError when it cannot; it may then be tried again."""
        # A client whose start failed half-way cannot be started again.
        await self._consumer.stop()
        self._consumer = self._client()
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
        size = 0
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
                size = 0
            if not records:
                deadline = time.monotonic() + self._settings.fetch_wait_ms / 1000
            claims.append(claim)
            for more in got.values():
                # Before message format 1, of Kafka 0.10, records had no timestamp.
                records += (
                    more
                    if more[0].timestamp is not None
                    else [dataclasses.replace(record, timestamp=-1) for record in more]
                )
                size += sum(max(0, record.serialized_value_size) for record in more)
            if size >= BATCH_BYTES:
                break
        if not records:
            return None
        self._metrics.stage_seconds.observe("fetch", time.monotonic() - started)
        return Fetched(records, claims)

    async def idle(self) -> None:
        """Polls once with all partitions paused: alive in the group, and taking nothing.

        What the client has fetched ahead stays with it for later.
        """
        self._pause()
        # Asked for a paused partition, the client drops what it had fetched of it: it would read
        # that again, and megabytes of it would wait for the garbage collector.
        if await self._poll(PAUSED_POLL_MS, 1, TopicPartition(self._settings.kafka_topic, -1)):
            # Not meant to be: what a paused consumer gave is read again, not passed over.
            self._is_lost = True

    async def commit(self) -> bool:
        """Commits what is settled, for as long as the coordinator is away; says whether it did.

        A commit under a membership that is gone is logged and dropped: the next owner of the
        partitions reads from the last commit.
        """
        return await self._commit(self._offsets.committable)

    async def _commit(self, choose: Callable[[], dict[TopicPartition, int]]) -> bool:
        # One commit at a time: the client tries again by itself, and an older one must not come
        # after a newer.
        async with self._committing:
            epoch, ended = self._offsets.epoch, self._ended
            offsets = choose()
            try:
                while offsets and epoch == self._offsets.epoch:
                    try:
                        if not await self._commit_once(offsets, ended):
                            return False
                    except (CommitFailedError, IllegalStateError) as error:
                        reason = str(error) or type(error).__name__
                        _log.warning("commit dropped", reason=reason)
                        return False
                    except KafkaError as error:
                        self._outages.began(SERVICE, f"commit: {error!r}", COMMITTING)
                        self._metrics.retries.inc(SERVICE)
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    self._offsets.committed(offsets, epoch)
                    return epoch == self._offsets.epoch
            finally:
                self._outages.ended(SERVICE, COMMITTING)
        return False

    async def _commit_once(self, offsets: dict[TopicPartition, int], ended: asyncio.Event) -> bool:
        """Whether Kafka took it before the assignment ended; raises KafkaError.

        The client tries for ever while the coordinator is away, and would send the offsets of one
        assignment under the next: it is stopped when the assignment ends.
        """
        asked = asyncio.ensure_future(self._consumer.commit(offsets))
        over = asyncio.ensure_future(ended.wait())
        try:
            while True:
                await asyncio.wait(
                    {asked, over}, timeout=COMMIT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if asked.done():
                    asked.result()
                    return True
                if over.done():
                    return False
                self._outages.began(SERVICE, "commit: the coordinator is away", COMMITTING)
        finally:
            asked.cancel()
            over.cancel()
            await asyncio.gather(asked, over, return_exceptions=True)

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
                ends = await self._consumer.end_offsets(partitions) if partitions else {}
                positions = {p: await self._consumer.position(p) for p in partitions}
        except IllegalStateError:
            return  # a rebalance came in between
        except (KafkaError, TimeoutError) as error:
            self._outages.began(SERVICE, repr(error))
            return
        self._outages.ended(SERVICE)
        if not was_lost and failures == self._failures and self._offsets.skippable(positions):
            await self._commit(lambda: self._offsets.skippable(positions))
        if epoch != self._offsets.epoch:
            return
        done = self._offsets.done(positions)
        # A fetch may have seen the end more lately than it was asked for.
        self.lag = {
            p: max(0, max(ends[p], self._consumer.highwater(p) or 0) - offset)
            for p, offset in done.items()
        }
        if not any(self.lag.values()):
            self._outages.ended(SERVICE, FETCHING)

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
        self._assign(())
        self.lag = {}

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Called by the client after a rebalance."""
        self._assign(assigned)
        self._is_lost = False
        if self._paused and assigned:
            self._consumer.pause(*assigned)
        self.joined = True
        self.assigned_at = time.monotonic()
        self._metrics.rebalances.inc()
        _log.info("partitions assigned", partitions=sorted(p.partition for p in assigned))

    def _assign(self, partitions: Collection[TopicPartition]) -> None:
        self._offsets.assign(partitions)
        self._ended.set()
        self._ended = asyncio.Event()

    async def _poll(
        self, timeout_ms: int, most: int, *only: TopicPartition
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        check_consumer(self._consumer)
        try:
            if self._is_lost:
                await self._find_back()
            got: dict[TopicPartition, list[ConsumerRecord]] = await self._consumer.getmany(
                *only, timeout_ms=timeout_ms, max_records=most
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
            self._outages.began(SERVICE, f"fetch: {error!r}", FETCHING)
            self._metrics.retries.inc(SERVICE)
            await asyncio.sleep(RETRY_SECONDS)
            return {}
        if got:
            self._outages.ended(SERVICE, FETCHING)
        return got

    async def _find_back(self) -> None:
        """Lets every partition go on after the last record that was claimed."""
        epoch = self._offsets.epoch
        for partition in self._offsets.partitions:
            offset = self._offsets.resume(partition)
            if offset is None:
                offset = await self._consumer.committed(partition)
            if epoch == self._offsets.epoch and offset is not None:
                self._consumer.seek(partition, offset)
            elif epoch == self._offsets.epoch:
                await self._consumer.seek_to_beginning(partition)  # as auto_offset_reset says
            if epoch != self._offsets.epoch:
                return
        self._is_lost = False

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._consumer.pause(*self._consumer.assignment())

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._consumer.resume(*self._consumer.paused())
