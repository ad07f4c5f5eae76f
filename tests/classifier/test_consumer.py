"""A member of the group: what it takes it commits, once it is settled, and nothing that is not its.

Against the real broker, but for what no broker does on demand.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from unittest import mock

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import (
    CommitFailedError,
    CorruptRecordException,
    GroupCoordinatorNotAvailableError,
    IllegalStateError,
    KafkaConnectionError,
)
from aiokafka.record.memory_records import MemoryRecords

from classifier import consumer, metrics
from classifier.client import ClientError
from classifier.consumer import Fetched, OfferConsumer
from classifier.metrics import Metrics
from classifier.offsets import Claim, Offsets
from classifier.outage import Outages
from classifier.settings import Settings
from tests.classifier.records import Record

Create = Callable[[int], Awaitable[str]]


class Member:
    """A member of a group, its offsets, and what it said of the world."""

    def __init__(self, kafka: str, topic: str, group: str, **more: Any) -> None:
        fields: dict[str, Any] = {
            "kafka_bootstrap_servers": kafka,
            "kafka_topic": topic,
            "kafka_group": group,
            "kafka_session_timeout_ms": 6_000,
            "revoke_seconds": 3,
            "fetch_offers": 1_000,
            "fetch_wait_ms": 200,
            **more,
        }
        self.settings = Settings(**fields)
        self.offsets = Offsets()
        self.outages = Outages()
        self.metrics: Metrics = metrics.in_process()
        self.heard: list[list[str]] = []
        self.outages.on_change = lambda: self.heard.append(self.outages.services)
        self.consumer = OfferConsumer(self.settings, self.offsets, self.outages, self.metrics)

    async def fetch(self) -> Fetched:
        """The next batch that is not empty."""
        async with asyncio.timeout(30):
            while (fetched := await self.consumer.fetch()) is None:
                pass
        return fetched

    async def take(self, count: int) -> list[bytes]:
        """So many records, settled and committed."""
        values: list[bytes] = []
        while len(values) < count:
            fetched = await self.fetch()
            values += [record.value for record in fetched.records]
            for claim in fetched.claims:
                self.offsets.settle(claim)
            assert await self.consumer.commit()
        return values

    async def until(self, reached: Callable[[], bool]) -> None:
        """Polls, paused, until something is so."""
        async with asyncio.timeout(30):
            while not reached():
                await self.consumer.idle()

    @property
    def paused(self) -> set[TopicPartition]:
        return set(self.consumer._consumer.paused())


@asynccontextmanager
async def joined(kafka: str, topic: str, group: str, **more: Any) -> AsyncIterator[Member]:
    member = Member(kafka, topic, group, **more)
    await member.consumer.join()
    try:
        yield member
    finally:
        await member.consumer.leave()


@asynccontextmanager
async def seated(
    kafka: str, topic: str, group: str, partitions: int = 1, **more: Any
) -> AsyncIterator[Member]:
    """A member that was given its partitions by hand: a broker takes seconds for a group."""
    member = Member(kafka, topic, group, **more)
    held = [TopicPartition(topic, number) for number in range(partitions)]
    member.consumer._consumer.assign(held)
    await member.consumer._consumer.start()
    await member.consumer.on_partitions_assigned(held)
    try:
        yield member
    finally:
        await member.consumer.leave()


@contextmanager
def stand_in(member: OfferConsumer) -> Iterator[mock.MagicMock]:
    """A client that does as the test says, and whose tasks live."""
    with mock.patch.object(member, "_consumer") as client:
        client._fetcher._fetch_task.done.return_value = False
        client._coordinator._coordination_task.done.return_value = False
        yield client


def alone(**more: Any) -> Member:
    """A member whose client is a stand-in."""
    with mock.patch.object(consumer, "AIOKafkaConsumer"):
        return Member("127.0.0.1:1", "offers", "g", **more)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex}"


@pytest.fixture
async def producer(kafka: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    yield producer
    await producer.stop()


async def produce(
    producer: AIOKafkaProducer, topic: str, numbers: Iterable[int], partitions: int = 1
) -> None:
    for number in numbers:
        # Each in a batch of its own: the embedded broker takes a batch's first offset for its last.
        await producer.send_and_wait(topic, b"%d" % number, partition=number % partitions)


async def committed(kafka: str, group: str, topic: str, partitions: int = 1) -> list[int | None]:
    """What the group has committed, by partition."""
    asking = AIOKafkaConsumer(bootstrap_servers=kafka, group_id=group, enable_auto_commit=False)
    await asking.start()
    try:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        asking.assign(asked)
        return [await asking.committed(partition) for partition in asked]
    finally:
        await asking.stop()


# Batches, claims and commits


async def test_batch_claims_the_offsets_of_its_records(
    kafka: str, topic: str, group: str, producer: AIOKafkaProducer
) -> None:
    await produce(producer, topic, range(40), partitions=4)
    async with seated(kafka, topic, group, 4) as member:
        seen: dict[int, list[int]] = {}
        claims: list[Claim] = []
        count = 0
        while count < 40:
            fetched = await member.fetch()
            count += len(fetched.records)
            claims += fetched.claims
            spans: dict[int, tuple[int, int]] = {}
            for claim in fetched.claims:
                for partition, (first, end) in claim.spans.items():
                    spans[partition.partition] = (
                        spans.get(partition.partition, (first, 0))[0],
                        end,
                    )
            for number, (first, end) in spans.items():
                offsets = [r.offset for r in fetched.records if r.partition == number]
                assert offsets == list(range(first, end))
                seen.setdefault(number, []).extend(offsets)
        assert seen == {number: list(range(10)) for number in range(4)}
        assert member.metrics.stage_seconds["fetch"].count > 0
        assert not await member.consumer.commit()
        for claim in claims[1:]:
            member.offsets.settle(claim)
        member.offsets.settle(claims[0])
        assert await member.consumer.commit()
        assert not await member.consumer.commit()
    assert await committed(kafka, group, topic, 4) == [10, 10, 10, 10]


async def test_nothing_that_is_unsettled_is_committed(
    kafka: str, create_topic: Create, group: str, producer: AIOKafkaProducer
) -> None:
    topic = await create_topic(1)
    await produce(producer, topic, range(10))
    async with seated(kafka, topic, group, fetch_offers=4) as member:
        fetched = [await member.fetch() for _ in range(3)]
        assert [len(each.records) for each in fetched] == [4, 4, 2]
        for each in (fetched[0], fetched[2]):
            for claim in each.claims:
                member.offsets.settle(claim)
        assert await member.consumer.commit()
    assert await committed(kafka, group, topic) == [4]


async def test_next_member_goes_on_after_the_last_record_committed(
    kafka: str, create_topic: Create, group: str, producer: AIOKafkaProducer
) -> None:
    topic = await create_topic(1)
    await produce(producer, topic, range(10))
    async with seated(kafka, topic, group) as member:
        assert await member.take(10) == [b"%d" % n for n in range(10)]
        await member.consumer.measure_lag()
        assert member.consumer.lag == {TopicPartition(topic, 0): 0}
    assert await committed(kafka, group, topic) == [10]
    async with seated(kafka, topic, group) as member:
        assert await member.consumer.fetch() is None
        await produce(producer, topic, [10])
        assert await member.take(1) == [b"10"]
    assert await committed(kafka, group, topic) == [11]


async def test_what_a_transaction_has_not_committed_is_not_asked_for(
    kafka: str, topic: str, group: str
) -> None:
    async with seated(kafka, topic, group) as member:
        # What each request of the client carries.
        assert member.consumer._consumer._fetcher._isolation_level == fetcher.READ_COMMITTED


async def test_without_records_the_word_is_given_back_soon(
    kafka: str, topic: str, group: str
) -> None:
    async with seated(kafka, topic, group, 4) as member:
        started = time.monotonic()
        assert await member.consumer.fetch() is None
        assert time.monotonic() - started < 5
        assert member.offsets.unsettled == 0


# Pauses and lag


async def test_paused_member_takes_nothing_and_then_everything(
    kafka: str, create_topic: Create, group: str, producer: AIOKafkaProducer
) -> None:
    topic = await create_topic(2)
    await produce(producer, topic, range(10), partitions=2)
    async with seated(kafka, topic, group, 2) as member:
        await member.take(10)
        await member.consumer.idle()
        assert member.paused == {TopicPartition(topic, n) for n in range(2)}
        await produce(producer, topic, range(10, 30), partitions=2)
        for _ in range(3):
            await member.consumer.idle()
        assert member.offsets.unsettled == 0
        await member.consumer.measure_lag()
        assert member.consumer.lag == {TopicPartition(topic, n): 10 for n in range(2)}
        assert sorted(await member.take(20)) == sorted(b"%d" % n for n in range(10, 30))
        assert member.paused == set()
        await member.consumer.measure_lag()
        assert member.consumer.lag == {TopicPartition(topic, n): 0 for n in range(2)}
        assert member.heard == []


async def test_what_is_fetched_ahead_outlives_a_pause(
    kafka: str, create_topic: Create, group: str, producer: AIOKafkaProducer
) -> None:
    topic = await create_topic(1)
    await produce(producer, topic, range(50), partitions=1)
    async with seated(kafka, topic, group, 1, fetch_offers=20) as member:
        assert await member.take(20) == [b"%d" % n for n in range(20)]
        fetcher = member.consumer._consumer._fetcher
        (held,) = fetcher._records.values()
        for _ in range(3):
            await member.consumer.idle()
        assert list(fetcher._records.values()) == [held]
        assert held.has_more()
        assert await member.take(30) == [b"%d" % n for n in range(20, 50)]


async def test_members_share_partitions_and_a_pause_survives_the_handover(
    kafka: str, topic: str, group: str, producer: AIOKafkaProducer
) -> None:
    async with joined(kafka, topic, group) as member:
        await member.until(lambda: len(member.offsets.partitions) == 4)
        await member.consumer.idle()
        assert len(member.paused) == 4
        async with joined(kafka, topic, group) as other:
            joining = asyncio.create_task(other.until(lambda: len(other.offsets.partitions) == 2))
            await member.until(lambda: len(member.offsets.partitions) == 2)
            await joining
            assert member.paused == set(member.offsets.partitions)
            assert member.offsets.partitions.isdisjoint(other.offsets.partitions)
            await produce(producer, topic, range(40), partitions=4)
            for one in (member, other):
                await one.consumer.idle()
                await one.consumer.measure_lag()
                assert one.consumer.lag == dict.fromkeys(one.offsets.partitions, 10)
                assert one.offsets.unsettled == 0
            assert member.consumer.joined
            assert member.metrics.rebalances.value >= 2
            taken = await asyncio.gather(member.take(20), other.take(20))
            numbers = [int(value) for values in taken for value in values]
            assert sorted(numbers) == list(range(40))
        await member.until(lambda: len(member.offsets.partitions) == 4)
        assert member.paused == set(member.offsets.partitions)
        await produce(producer, topic, range(40, 48), partitions=4)
        assert sorted(map(int, await member.take(8))) == list(range(40, 48))


async def test_lag_of_records_in_flight_is_theirs(
    kafka: str, create_topic: Create, group: str, producer: AIOKafkaProducer
) -> None:
    topic = await create_topic(1)
    partition = TopicPartition(topic, 0)
    await produce(producer, topic, range(10))
    async with seated(kafka, topic, group, fetch_offers=4) as member:
        first = await member.fetch()
        await member.consumer.measure_lag()
        assert member.consumer.lag == {partition: 10}
        second = await member.fetch()
        for claim in first.claims:
            member.offsets.settle(claim)
        await member.consumer.commit()
        await member.consumer.measure_lag()
        assert member.consumer.lag == {partition: 6}
        assert second.records[0].offset == 4


async def test_tail_without_records_is_committed_and_no_lag() -> None:
    """Markers of transactions: no broker at hand writes them, so the client is a stand-in."""
    member = alone()
    partition = TopicPartition("offers", 0)
    member.offsets.assign([partition])
    member.offsets.settle(member.offsets.claim({partition: (0, 10)}))
    member.offsets.committed({partition: 10}, member.offsets.epoch)
    with stand_in(member.consumer) as client:
        client.end_offsets = mock.AsyncMock(return_value={partition: 111})
        client.position = mock.AsyncMock(return_value=111)
        client.highwater.return_value = None
        client.commit = mock.AsyncMock()
        await member.consumer.measure_lag()
        client.commit.assert_awaited_once_with({partition: 111})
        assert member.consumer.lag == {partition: 0}
        await member.consumer.measure_lag()
        client.commit.assert_awaited_once()


# Rebalances


async def test_what_is_finished_in_time_is_committed_before_partitions_are_given_up(
    kafka: str, create_topic: Create, group: str, producer: AIOKafkaProducer
) -> None:
    topic = await create_topic(1)
    await produce(producer, topic, range(10))
    async with joined(kafka, topic, group) as one:
        fetched = await one.fetch()
        assert len(fetched.records) == 10
        finished: list[float] = []

        async def finish() -> None:
            for claim in fetched.claims:
                one.offsets.settle(claim)
            assert await one.consumer.commit()
            finished.append(time.monotonic())

        one.consumer.finish = finish
        async with joined(kafka, topic, group) as other:
            joining = asyncio.create_task(other.until(lambda: other.consumer.joined))
            await one.until(lambda: bool(finished) and one.consumer.joined)
            await joining
            assert await committed(kafka, group, topic) == [10]
            assert not any(map(one.offsets.is_valid, fetched.claims))
            await produce(producer, topic, [10])
            owner = one if one.offsets.partitions else other
            assert await owner.take(1) == [b"10"]


@pytest.mark.parametrize("failure", [None, RuntimeError("a bug")])
async def test_work_that_is_not_finished_in_time_is_dropped_without_a_word_to_the_client(
    failure: Exception | None,
) -> None:
    member = alone(revoke_seconds=0.05)
    partition = TopicPartition("offers", 0)
    member.offsets.assign([partition])
    claim = member.offsets.claim({partition: (0, 10)})
    member.consumer.joined = True
    member.consumer.lag = {partition: 10}

    async def finish() -> None:
        if failure is not None:
            raise failure
        await asyncio.sleep(60)

    member.consumer.finish = finish
    await asyncio.wait_for(member.consumer.on_partitions_revoked([partition]), 5)
    assert not member.consumer.joined
    assert not member.offsets.is_valid(claim)
    assert member.offsets.partitions == frozenset()
    assert member.consumer.lag == {}


async def test_without_partitions_there_is_nothing_to_finish() -> None:
    member = alone()
    member.consumer.finish = mock.AsyncMock()
    await member.consumer.on_partitions_revoked([])
    member.consumer.finish.assert_not_awaited()


@pytest.mark.parametrize(("each", "taken"), [(0.05, 5), (10.0, 1)])
async def test_batch_that_does_not_fill_leaves_in_time(
    monkeypatch: pytest.MonkeyPatch, each: float, taken: int
) -> None:
    """With records that trickle in for ever, `each` seconds one, and with none that follows."""
    member = alone(fetch_wait_ms=210)
    partition = TopicPartition("offers", 0)
    member.offsets.assign([partition])
    now, polls = 0.0, 0
    monkeypatch.setattr(consumer, "time", mock.Mock(monotonic=lambda: now))

    async def getmany(*, timeout_ms: int, **_: object) -> dict[TopicPartition, list[Record]]:
        nonlocal now, polls
        polls += 1
        waited = min(each, timeout_ms / 1000) if polls > 1 else 0.0
        now += waited
        return {partition: [Record(b"x", offset=polls)]} if polls == 1 or waited == each else {}

    with stand_in(member.consumer) as client:
        client.getmany = getmany
        fetched = await member.consumer.fetch()
    assert fetched is not None
    assert len(fetched.records) == taken
    assert 0.2 <= now <= 0.21


async def test_records_gathered_before_a_rebalance_are_dropped() -> None:
    member = alone()
    p0, p1 = TopicPartition("offers", 0), TopicPartition("offers", 1)
    member.offsets.assign([p0])
    polls = 0

    async def getmany(**_: object) -> dict[TopicPartition, list[Record]]:
        nonlocal polls
        polls += 1
        await asyncio.sleep(0)
        if polls == 1:
            return {p0: [Record(b"old", offset=5)]}
        if polls == 2:
            await member.consumer.on_partitions_revoked([p0])
            member.offsets.assign([p0, p1])
            return {p0: [Record(b"a", offset=3), Record(b"b", offset=4)]}
        if polls == 3:
            return {p1: [Record(b"c", partition=1, offset=9)]}
        return {}

    with stand_in(member.consumer) as client:
        client.getmany = getmany
        fetched = await member.consumer.fetch()
    assert fetched is not None
    assert [record.value for record in fetched.records] == [b"a", b"b", b"c"]
    assert [claim.spans for claim in fetched.claims] == [{p0: (3, 5)}, {p1: (9, 10)}]
    assert all(map(member.offsets.is_valid, fetched.claims))


# Commits that fail


@pytest.fixture
async def settled() -> Member:
    """A member with ten records that may be committed, and no broker."""
    member = alone()
    partition = TopicPartition("offers", 0)
    member.offsets.assign([partition])
    member.offsets.settle(member.offsets.claim({partition: (0, 10)}))
    return member


@pytest.mark.parametrize("error", [CommitFailedError("rebalanced"), IllegalStateError("gone")])
async def test_commit_under_a_membership_that_is_gone_is_dropped(
    settled: Member, error: Exception
) -> None:
    with stand_in(settled.consumer) as client:
        client.commit = mock.AsyncMock(side_effect=error)
        assert not await settled.consumer.commit()
        client.commit.assert_awaited_once()
    assert settled.heard == []


async def test_commit_is_tried_again_while_the_coordinator_is_away(
    settled: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "RETRY_SECONDS", 0.01)
    away = [GroupCoordinatorNotAvailableError(), KafkaConnectionError("refused")]
    with stand_in(settled.consumer) as client:
        client.commit = mock.AsyncMock(side_effect=[*away, None])
        assert await settled.consumer.commit()
        assert client.commit.await_count == 3
    assert settled.offsets.unsettled == 0
    assert settled.heard == [["kafka"], []]
    assert settled.metrics.retries.value("kafka") == 2


async def test_commit_ends_with_its_assignment(
    settled: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "RETRY_SECONDS", 0.01)
    with stand_in(settled.consumer) as client:
        client.commit = mock.AsyncMock(side_effect=KafkaConnectionError("refused"))
        committing = asyncio.create_task(settled.consumer.commit())
        await asyncio.sleep(0.05)
        assert not committing.done()
        settled.offsets.assign(())
        assert not await asyncio.wait_for(committing, 5)


async def test_acknowledgement_that_comes_after_a_rebalance_counts_for_nothing(
    settled: Member,
) -> None:
    partition = TopicPartition("offers", 0)

    async def commit(_: object) -> None:
        settled.offsets.assign([partition])
        settled.offsets.claim({partition: (0, 10)})

    with stand_in(settled.consumer) as client:
        client.commit = commit
        assert not await settled.consumer.commit()
    assert settled.offsets.unsettled == 1


# Batches that cannot be read


class Spoilt:
    """Reads fetched bytes as the client does, but fails once, at a partition's third batch."""

    mark = b""  # is in every value of that partition
    left = 0

    def __init__(self, data: bytes) -> None:
        self._records = MemoryRecords(data)
        self._is_marked = self.mark in bytes(data)
        self._batches = 0

    def next_batch(self) -> Any:
        self._batches += 1
        if self._is_marked and self._batches == 3 and Spoilt.left:
            Spoilt.left -= 1
            raise CorruptRecordException("Invalid CRC")
        return self._records.next_batch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)


@pytest.mark.parametrize("spoilt", [0, 1])
@pytest.mark.parametrize("known", [0, 2])
async def test_batch_that_arrives_damaged_costs_no_record(
    kafka: str,
    create_topic: Create,
    group: str,
    producer: AIOKafkaProducer,
    monkeypatch: pytest.MonkeyPatch,
    known: int,
    spoilt: int,
) -> None:
    """Also none of another partition that the client had taken out before it failed."""
    monkeypatch.setattr(consumer, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(fetcher, "MemoryRecords", Spoilt)
    monkeypatch.setattr(Spoilt, "mark", b"partition %d" % spoilt)
    topic = await create_topic(2)

    async def fill(count: int) -> None:
        for _ in range(count):
            for number in range(2):
                await producer.send_and_wait(topic, b"partition %d" % number, partition=number)

    await fill(known)
    async with seated(kafka, topic, group, 2) as member:
        await member.take(2 * known)
        await member.consumer.idle()
        await fill(10 - known)
        Spoilt.left = 1
        fetched: list[Fetched] = []
        async with asyncio.timeout(20):
            while sum(len(each.records) for each in fetched) < 20 - 2 * known:
                got = await member.consumer.fetch()
                # Nothing may be taken for passed that nobody has seen.
                await member.consumer.measure_lag()
                if got is not None:
                    fetched.append(got)
        assert Spoilt.left == 0
        seen = sorted((r.partition, r.offset) for each in fetched for r in each.records)
        assert seen == [(number, offset) for number in range(2) for offset in range(known, 10)]
        assert await committed(kafka, group, topic, 2) == [known or None] * 2
        assert ["kafka"] in member.heard


BAD_HEADER = """
import asyncio, sys
from aiokafka import AIOKafkaProducer

class Name(str):
    def encode(self, *_):
        return b"caf\\xe9"

async def main(servers, topic):
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number in range(10):
            headers = [(Name("x"), b"1")] if number in (4, 7) else []
            await producer.send_and_wait(topic, b"%d" % number, headers=headers)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_header_name_that_is_not_utf8_stops_nothing(
    kafka: str, create_topic: Create, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "MemoryRecords", MemoryRecords)
    topic = await create_topic(1)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BAD_HEADER, kafka, topic,
        env={**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"},
    )  # fmt: skip
    assert await process.wait() == 0
    async with seated(kafka, topic, group) as member:
        fetched: list[Fetched] = []
        while sum(len(each.records) for each in fetched) < 10:
            fetched.append(await member.fetch())
        records = [record for each in fetched for record in each.records]
        assert [record.value for record in records] == [b"%d" % n for n in range(10)]
        assert records[4].headers == records[7].headers == (("caf\ufffd", b"1"),)
        assert records[5].headers == ()
        assert member.heard == []


# Kafka away


@pytest.mark.parametrize("part", ["_fetcher._fetch_task", "_coordinator._coordination_task"])
async def test_client_whose_task_has_ended_is_given_up(settled: Member, part: str) -> None:
    """aiokafka tells nobody: the polls would be empty, or fail, for ever."""
    owner, task = part.split(".")
    with stand_in(settled.consumer) as client:
        client.getmany = mock.AsyncMock(return_value={})
        assert await settled.consumer.fetch() is None
        getattr(getattr(client, owner), task).done.return_value = True
        with pytest.raises(ClientError, match="task has ended"):
            await settled.consumer.fetch()


async def test_commit_that_the_coordinator_does_not_answer_is_a_named_outage(
    settled: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client tries for ever, in silence, and must not go on under the next assignment."""
    monkeypatch.setattr(consumer, "COMMIT_SECONDS", 0.02)
    cancelled = asyncio.Event()

    async def commit(_: object) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with stand_in(settled.consumer) as client:
        client.commit = commit
        committing = asyncio.create_task(settled.consumer.commit())
        await asyncio.sleep(0.1)
        assert settled.outages.reasons == ["kafka is away: commit: the coordinator is away"]
        await settled.consumer.on_partitions_revoked([])
        assert await asyncio.wait_for(committing, 5) is False
        assert cancelled.is_set()
    assert settled.outages.services == []


async def test_joining_can_be_tried_again_after_it_failed_half_way(
    kafka: str, create_topic: Create, group: str, producer: AIOKafkaProducer
) -> None:
    topic = await create_topic(1)
    await produce(producer, topic, range(3))
    member = Member(kafka, topic, group)
    with (
        mock.patch(
            "aiokafka.consumer.group_coordinator.GroupCoordinator.__init__",
            side_effect=KafkaConnectionError("group full"),
        ),
        pytest.raises(KafkaConnectionError),
    ):
        await member.consumer.join()
    await member.consumer.join()
    try:
        fetched = None
        while fetched is None:
            fetched = await member.consumer.fetch()
        assert len(fetched.records) == 3
    finally:
        await member.consumer.leave()


async def test_records_without_a_timestamp_count_as_the_oldest(settled: Member) -> None:
    partition = TopicPartition("offers", 0)
    old = ConsumerRecord("offers", 0, 10, None, 0, None, b"x", None, -1, 1, ())
    with stand_in(settled.consumer) as client:
        client.getmany = mock.AsyncMock(side_effect=[{partition: [old]}, {}])
        fetched = await settled.consumer.fetch()
    assert fetched is not None
    assert fetched.records[0].timestamp == -1


async def test_batch_is_full_with_so_many_bytes_too(
    settled: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "BATCH_BYTES", 1_000)
    partition = TopicPartition("offers", 0)

    def polled(offset: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        record = ConsumerRecord("offers", 0, offset, 5, 0, None, b"x" * 600, None, -1, 600, ())
        return {partition: [record]}

    with stand_in(settled.consumer) as client:
        client.getmany = mock.AsyncMock(side_effect=[polled(10), polled(11), polled(12)])
        fetched = await settled.consumer.fetch()
    assert fetched is not None
    assert len(fetched.records) == 2


@pytest.mark.parametrize("error", [KafkaConnectionError("refused"), CorruptRecordException("crc")])
async def test_fetch_that_fails_is_an_outage_and_no_error(
    settled: Member, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(consumer, "RETRY_SECONDS", 0.01)
    with stand_in(settled.consumer) as client:
        client.getmany = mock.AsyncMock(side_effect=error)
        assert await settled.consumer.fetch() is None
        await settled.consumer.idle()
    assert settled.outages.services == ["kafka"]
    assert settled.metrics.retries.value("kafka") == 2


async def test_lag_that_cannot_be_asked_begins_an_outage_and_an_answer_ends_it(
    settled: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "LAG_TIMEOUT_SECONDS", 0.05)
    partition = TopicPartition("offers", 0)

    async def never(_: object) -> None:
        await asyncio.sleep(60)

    with stand_in(settled.consumer) as client:
        for failing in (mock.AsyncMock(side_effect=KafkaConnectionError("refused")), never):
            client.end_offsets = failing
            await settled.consumer.measure_lag()
            assert settled.outages.services == ["kafka"]
        client.end_offsets = mock.AsyncMock(return_value={partition: 15})
        client.position = mock.AsyncMock(return_value=10)
        client.highwater.return_value = 12
        await settled.consumer.measure_lag()
        assert settled.consumer.lag == {partition: 15}
        client.highwater.return_value = 17
        await settled.consumer.measure_lag()
        assert settled.consumer.lag == {partition: 17}
    assert settled.outages.services == []


async def test_member_without_partitions_has_no_lag_and_still_asks_the_brokers() -> None:
    member = alone()
    member.consumer.lag = {TopicPartition("offers", 0): 7}
    with stand_in(member.consumer) as client:
        client.topics = mock.AsyncMock(side_effect=KafkaConnectionError("refused"))
        await member.consumer.measure_lag()
        assert member.outages.services == ["kafka"]
        client.topics = mock.AsyncMock(return_value={"offers"})
        await member.consumer.measure_lag()
    assert member.consumer.lag == {}
    assert member.outages.services == []


async def test_broker_that_is_not_there_is_said_on_joining() -> None:
    member = Member("127.0.0.1:1", "offers", "g")
    with pytest.raises(KafkaConnectionError):
        await member.consumer.join()
    with suppress(Exception):
        await member.consumer.leave()
