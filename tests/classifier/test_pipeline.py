"""The pipeline: stages in order, what is in flight bounded, and what becomes of faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from pymongo import UpdateOne

from classifier import metrics
from classifier.consumer import Fetched, OfferConsumer
from classifier.deadletter import DeadLetters
from classifier.engine_thread import EngineThread
from classifier.metrics import Metrics
from classifier.model import Asked, Model, Question
from classifier.offer import Offer
from classifier.offsets import Offsets
from classifier.outage import Outages
from classifier.patience import AbandonedError
from classifier.pipeline import Pipeline
from classifier.record import Reason, Reject
from classifier.settings import Settings
from classifier.store import Store, Written
from tests.classifier.records import Record

PARTITION = TopicPartition("offers", 0)


class Source(OfferConsumer):
    """Gives batches of one record each, and remembers what was committed of them."""

    def __init__(self, offsets: Offsets, values: Sequence[bytes | None]) -> None:
        self.offsets = offsets
        self.values = list(values)
        self.fetched = 0
        self.idled = asyncio.Event()
        self.commits: list[int] = []
        offsets.assign([PARTITION])

    async def fetch(self) -> Fetched | None:
        await asyncio.sleep(0)
        if self.fetched == len(self.values):
            await asyncio.sleep(60)
        number = self.fetched
        self.fetched += 1
        claim = self.offsets.claim({PARTITION: (number, number + 1)})
        return Fetched([Record(self.values[number], offset=number)], [claim])

    async def idle(self) -> None:
        self.idled.set()
        await asyncio.sleep(0.01)

    async def commit(self) -> bool:
        offsets = self.offsets.committable()
        self.offsets.committed(offsets, self.offsets.epoch)
        self.commits += offsets.values()
        return True


class Sink(Store):
    """Takes every bulk, as slowly as it is told, or fails."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None
        self.ids: list[str] = []

    async def write(self, updates: Sequence[UpdateOne], wanted: Callable[[], bool]) -> Written:
        while not self.open.is_set():
            if not wanted():
                raise AbandonedError
            await asyncio.sleep(0.01)
        if self.error:
            raise self.error
        self.ids += [update._filter["_id"]["$eq"] for update in updates]
        return Written(inserted=len(updates))


class Letters(DeadLetters):
    def __init__(self) -> None:
        self.sent: list[Reject] = []

    async def send(self, rejects: Sequence[Reject], wanted: Callable[[], bool]) -> None:
        self.sent += rejects


class Bench:
    """A pipeline between a source and a sink of the test's own."""

    def __init__(
        self,
        engine: EngineThread,
        values: Sequence[bytes | None],
        source: type[Source] = Source,
        **more: object,
    ):
        self.settings = Settings.model_validate({"batches_in_flight": 3, "drain_seconds": 5} | more)
        self.offsets = Offsets()
        self.metrics: Metrics = metrics.in_process()
        self.source, self.sink, self.letters = source(self.offsets, values), Sink(), Letters()
        self.pipeline = Pipeline(
            self.settings, engine, self.offsets, self.source, self.sink, self.letters, self.metrics
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        stopping = asyncio.Event()
        task = asyncio.create_task(self.pipeline.run(stopping))
        yield task
        stopping.set()
        await asyncio.wait({task}, timeout=20)

    async def until(self, reached: Callable[[], object]) -> None:
        for _ in range(2_000):
            if reached():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("not within 20 s")


@pytest.fixture
async def engine(artifact: Path) -> AsyncIterator[EngineThread]:
    model = Model.load(artifact, threads=1, cache_offers=100)
    loop = asyncio.get_running_loop()
    thread = EngineThread(model, 0.2, Outages(), metrics.in_process(), loop)
    yield thread
    await asyncio.to_thread(thread.close)


def offers(count: int) -> list[bytes | None]:
    return [b'{"offer_id": "o%d", "title": "kettle %d"}' % (n, n) for n in range(count)]


async def test_batches_are_written_and_committed_in_their_order(engine: EngineThread) -> None:
    bench = Bench(engine, offers(20))
    async with bench.running():
        await bench.until(lambda: bench.source.commits[-1:] == [20])
    assert bench.sink.ids == [f"o{n}" for n in range(20)]
    assert bench.source.commits == list(range(1, 21))
    assert bench.metrics.writes.value("inserted") == 20


async def test_slow_end_bounds_what_is_in_flight_and_pauses(engine: EngineThread) -> None:
    bench = Bench(engine, offers(20))
    bench.sink.open.clear()
    async with bench.running():
        await asyncio.wait_for(bench.source.idled.wait(), 20)
        assert bench.source.fetched == 3
        assert bench.pipeline.offers_in_flight == 3
        assert bench.source.commits == []
        bench.sink.open.set()
        await bench.until(lambda: bench.source.commits[-1:] == [20])
    assert bench.sink.ids == [f"o{n}" for n in range(20)]


async def test_every_record_is_counted_once_under_what_became_of_it(engine: EngineThread) -> None:
    values: list[bytes | None] = [*offers(3), b"{", b'{"offer_id": "x", "title": "?"}', None]
    bench = Bench(engine, values)
    async with bench.running():
        await bench.until(lambda: bench.source.commits[-1:] == [6])
    found = {
        outcome: bench.metrics.offers.value(outcome)
        for outcome in ("removed", "superseded", "skipped", "dead_letter")
    }
    assert found == {"removed": 0, "superseded": 0, "skipped": 1, "dead_letter": 2}
    answered = map(bench.metrics.offers.value, ("classified", "uncertain"))
    assert sum(answered) == 3
    assert [str(reject.reason) for reject in bench.letters.sent] == ["malformed JSON", "no text"]


class Whole(Source):
    """Gives all records as one batch."""

    async def fetch(self) -> Fetched | None:
        if self.fetched:
            await asyncio.sleep(60)
        self.fetched = len(self.values)
        records = [Record(value, offset=number) for number, value in enumerate(self.values)]
        return Fetched(records, [self.offsets.claim({PARTITION: (0, self.fetched)})])


def refusing(
    ask: Callable[[Iterable[Offer]], Asked], word: str, error: Exception
) -> Callable[..., Asked]:
    """As `ask`, but that it raises on every offer with the word in its title."""

    def asked(offers: Iterable[Offer]) -> Asked:
        given = list(offers)
        if any(word in (offer.title or "") for offer in given):
            raise error
        return ask(given)

    return asked


async def test_offer_that_cannot_be_prepared_costs_its_neighbours_nothing(
    engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ZeroDivisionError("this text alone")
    monkeypatch.setattr(engine.model, "ask", refusing(engine.model.ask, "poison", error))
    values = offers(6)
    values[2] = b'{"offer_id": "bad", "title": "poison"}'
    bench = Bench(engine, values, Whole)
    async with bench.running():
        await bench.until(lambda: bench.source.commits[-1:] == [6])
    assert bench.sink.ids == ["o0", "o1", "o3", "o4", "o5"]
    (reject,) = bench.letters.sent
    assert (reject.record.offset, reject.reason) == (2, Reason.UNREADABLE)
    assert "this text alone" in reject.detail


async def test_lack_of_memory_condemns_no_offer(
    engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.model, "ask", refusing(engine.model.ask, "kettle", MemoryError()))
    bench = Bench(engine, offers(2), Whole)
    async with bench.running() as task:
        await asyncio.wait({task}, timeout=20)
        with pytest.raises(ExceptionGroup) as caught:
            task.result()
    assert caught.group_contains(MemoryError)
    assert bench.source.commits == []
    assert bench.letters.sent == []


async def test_tokeniser_that_fails_on_known_texts_condemns_no_offer(
    engine: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(texts: object) -> Question:
        raise ZeroDivisionError("a fault of our own")

    monkeypatch.setattr(engine.model, "prepare", broken)
    bench = Bench(engine, offers(2), Whole)
    async with bench.running() as task:
        await asyncio.wait({task}, timeout=20)
        with pytest.raises(ExceptionGroup) as caught:
            task.result()
    assert caught.group_contains(ZeroDivisionError)
    assert bench.source.commits == []
    assert bench.letters.sent == []


async def test_fault_in_a_stage_ends_the_run_and_commits_nothing_of_its_batch(
    engine: EngineThread,
) -> None:
    bench = Bench(engine, offers(1))
    bench.sink.error = ZeroDivisionError("a fault of our own")
    async with bench.running() as task:
        await asyncio.wait({task}, timeout=20)
        with pytest.raises(ExceptionGroup) as caught:
            task.result()
    assert caught.group_contains(ZeroDivisionError)
    assert bench.source.commits == []


async def test_drain_ends_within_its_bound_and_leaves_the_rest_uncommitted(
    engine: EngineThread,
) -> None:
    bench = Bench(engine, offers(5), drain_seconds=0.2)
    bench.sink.open.clear()
    async with bench.running():
        await bench.until(lambda: bench.pipeline.offers_in_flight == 3)
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 5
    assert bench.source.commits == []


async def test_batch_of_an_earlier_assignment_is_dropped_and_never_committed(
    engine: EngineThread,
) -> None:
    bench = Bench(engine, offers(3))
    bench.sink.open.clear()
    async with bench.running():
        await bench.until(lambda: bench.pipeline.offers_in_flight == 3)
        bench.offsets.assign([])
        await bench.until(lambda: bench.pipeline.offers_in_flight == 0)
        await asyncio.wait_for(bench.pipeline.finished(), 1)
    assert bench.sink.ids == []
    assert bench.source.commits == []
    assert sum(map(bench.metrics.offers.value, ("classified", "uncertain"))) == 0
