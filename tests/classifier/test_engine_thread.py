"""One thread owns the engine: batches in order, people for their share, faults to the asker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from classifier import engine_thread, metrics
from classifier.artifact import Artifact
from classifier.batching import Call
from classifier.engine_thread import EngineThread
from classifier.metrics import Metrics
from classifier.model import DeviceError, Model, Question
from classifier.outage import Outages
from tests.classifier import toy


class Recorder:
    """Stands in for the model: notes whose call goes when, and holds the engine until let go."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.go = threading.Event()
        self.entered = threading.Event()
        self.errors: dict[str, list[Exception]] = {}
        self.before: Callable[[str], None] = lambda name: None
        self.closed = False

    def compute(self, question: Question, call: Call) -> None:
        name = question.hashes[0].decode()
        self.entered.set()
        self.go.wait(20)
        self.before(name)
        waiting = self.errors.get(name)
        if waiting:
            raise waiting.pop(0)
        self.order.append(name)

    def close(self) -> None:
        self.closed = True


class Thread:
    """An engine thread over a recorder, and what it says of the world."""

    def __init__(self, share: float = 0.25) -> None:
        self.model = Recorder()
        self.outages = Outages()
        self.metrics: Metrics = metrics.in_process()
        self.heard: list[list[str]] = []
        self.outages.on_change = lambda: self.heard.append(self.outages.services)
        self.engine = EngineThread(
            cast(Model, self.model), share, self.outages, self.metrics, asyncio.get_running_loop()
        )

    def ask(
        self,
        name: str,
        calls: int = 1,
        wanted: Callable[[], bool] = lambda: True,
        interactive: bool = False,
    ) -> asyncio.Task[None]:
        question = Question([name.encode()], [None], calls=[Call([0], 8)] * calls)
        work = self.engine.compute(question, wanted, interactive=interactive)
        return asyncio.create_task(work)

    async def hold(self) -> asyncio.Task[None]:
        """Asks something that occupies the engine until it is let go."""
        held = self.ask("first")
        await asyncio.to_thread(self.model.entered.wait, 20)
        return held


@pytest.fixture
async def thread(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Thread]:
    monkeypatch.setattr(engine_thread, "RETRY_SECONDS", 0.01)
    thread = Thread()
    yield thread
    thread.model.go.set()
    await asyncio.to_thread(thread.engine.close)


async def test_questions_are_computed_in_their_order_each_whole(thread: Thread) -> None:
    held = await thread.hold()
    asked = [thread.ask(name, 2) for name in "abc"]
    await asyncio.sleep(0)
    thread.model.go.set()
    await asyncio.gather(held, *asked)
    assert thread.model.order == ["first", "a", "a", "b", "b", "c", "c"]
    assert thread.metrics.batch_offers.count == 7
    assert thread.metrics.batch_tokens.sum == 7 * 8
    assert thread.metrics.stage_seconds["queue"].count == 4
    assert thread.metrics.stage_seconds["infer"].count == 4


async def test_question_without_calls_is_answered_at_once(thread: Thread) -> None:
    await thread.hold()
    await asyncio.wait_for(thread.ask("cached", calls=0), 5)
    thread.model.go.set()


# People


def longest_lead(order: list[str], share: float) -> float:
    """By how many calls interactive questions ever exceeded their share of a stretch of calls."""
    lead, lowest, most = 0.0, 0.0, 0.0
    for name in order:
        lead += (name == "person") - share
        most = max(most, lead - lowest)
        lowest = min(lowest, lead)
    return most


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.3, 0.5, 0.9])
async def test_people_get_their_share_of_the_calls_and_no_more(share: float) -> None:
    thread = Thread(share)
    held = await thread.hold()
    stream = [thread.ask("stream", 20) for _ in range(10)]
    people = [thread.ask("person", interactive=True) for _ in range(200)]
    await asyncio.sleep(0)
    assert thread.engine.interactive_waiting == 200
    thread.model.go.set()
    await asyncio.gather(held, *stream, *people)
    await asyncio.to_thread(thread.engine.close)
    order = thread.model.order[1:]
    assert Counter(order) == {"stream": 200, "person": 200}
    contested = order[: min(len(order) - order[::-1].index(name) for name in ("stream", "person"))]
    assert longest_lead(contested, share) <= 2.01
    people_first = contested.count("person") / len(contested)
    assert people_first == pytest.approx(share, abs=0.02)
    assert thread.engine.interactive_waiting == 0


async def test_person_waits_for_one_call_of_the_stream_and_not_for_its_queue(
    thread: Thread,
) -> None:
    held = await thread.hold()
    stream = [thread.ask("stream", 5) for _ in range(5)]
    await asyncio.sleep(0)
    person = thread.ask("person", interactive=True)
    await asyncio.sleep(0)
    thread.model.go.set()
    await asyncio.gather(held, person, *stream)
    assert thread.model.order.index("person") == 1


async def test_without_a_stream_people_have_the_engine_for_themselves(thread: Thread) -> None:
    thread.model.go.set()
    await asyncio.gather(*(thread.ask("person", 3, interactive=True) for _ in range(20)))
    assert thread.model.order == ["person"] * 60


# Nobody waits any more


async def test_question_that_nobody_wants_is_skipped(thread: Thread) -> None:
    held = await thread.hold()
    wanted = {"a": True, "b": True}
    asked = [
        thread.ask("a", 3, lambda: wanted["a"]),
        thread.ask("b", 3, lambda: wanted["b"]),
        thread.ask("c"),
    ]
    await asyncio.sleep(0)
    wanted["a"] = False
    thread.model.before = lambda name: wanted.update(b=thread.model.order.count("b") < 1)
    thread.model.go.set()
    await asyncio.wait_for(asyncio.gather(held, *asked), 20)
    assert thread.model.order == ["first", "b", "b", "c"]


async def test_asker_that_was_cancelled_harms_nobody(thread: Thread) -> None:
    held = await thread.hold()
    cancelled = [thread.ask("gone", 3), thread.ask("gone", 3, interactive=True)]
    others = [thread.ask("a", 2), thread.ask("b", interactive=True)]
    await asyncio.sleep(0)
    for task in (held, *cancelled):
        task.cancel()
    await asyncio.gather(held, *cancelled, return_exceptions=True)
    thread.model.go.set()
    await asyncio.wait_for(asyncio.gather(*others), 20)
    await asyncio.wait_for(thread.ask("later"), 20)
    assert Counter(thread.model.order) == {"first": 1, "a": 2, "b": 1, "later": 1}
    assert thread.engine.interactive_waiting == 0


# Faults


async def test_device_that_is_away_is_an_outage_and_the_question_waits(thread: Thread) -> None:
    thread.model.errors["a"] = [DeviceError("no memory"), DeviceError("no memory")]
    thread.model.go.set()
    await asyncio.wait_for(asyncio.gather(thread.ask("a"), thread.ask("b")), 20)
    assert thread.model.order == ["a", "b"]
    await asyncio.sleep(0)
    assert thread.heard == [["engine"], []]
    assert thread.metrics.retries.value("engine") == 2


async def test_device_that_is_away_keeps_nobody_who_no_longer_wants_the_answer(
    thread: Thread,
) -> None:
    thread.model.errors["a"] = [DeviceError("no memory") for _ in range(10_000)]
    thread.model.go.set()
    asked = thread.ask("a", wanted=lambda: "engine" not in thread.outages)
    await asyncio.wait_for(asked, 20)
    assert thread.model.order == []
    assert thread.outages.reasons == ["engine is away: no memory"]


@pytest.mark.parametrize("interactive", [False, True])
async def test_any_other_error_goes_to_the_asker_and_the_thread_lives(
    thread: Thread, interactive: bool
) -> None:
    thread.model.errors["a"] = [ZeroDivisionError("a bug")]
    thread.model.go.set()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await asyncio.wait_for(thread.ask("a", 3, interactive=interactive), 20)
    await asyncio.wait_for(thread.ask("b"), 20)
    assert thread.model.order == ["b"]
    assert thread.heard == []


# Its end


async def test_closing_waits_for_the_running_call_and_frees_the_engine() -> None:
    thread = Thread()
    held = await thread.hold()
    asked = thread.ask("never")
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(thread.engine.close))
    await asyncio.sleep(0.05)
    assert not closing.done()
    thread.model.go.set()
    await asyncio.wait_for(closing, 20)
    await held
    assert thread.model.closed
    assert thread.model.order == ["first"]
    asked.cancel()


async def test_time_of_the_last_call_moves_with_the_work(thread: Thread) -> None:
    before = thread.engine.last_call
    await asyncio.sleep(0.01)
    thread.model.go.set()
    await thread.ask("a")
    assert before < thread.engine.last_call <= time.monotonic()


async def test_question_of_a_person_is_no_work_of_the_stream(thread: Thread) -> None:
    before = thread.engine.last_call
    await asyncio.sleep(0.01)
    thread.model.go.set()
    await thread.ask("a", interactive=True)
    assert thread.model.order == ["a"]
    assert thread.engine.last_call == before


async def test_real_model_answers_through_the_thread(published: Artifact, thread: Thread) -> None:
    model = Model(published, toy.Engine(), cache_offers=10, batch_tokens=16, alternatives=1)
    engine = EngineThread(model, 0.25, thread.outages, thread.metrics, asyncio.get_running_loop())
    questions = [model.prepare(texts) for texts in (["Sofa", "Crash"], ["Tent", "Kettle blue"])]
    await asyncio.gather(*(engine.compute(question, lambda: True) for question in questions))
    await asyncio.to_thread(engine.close)
    found = [answer and answer.category_id for each in questions for answer in each.answers]
    assert found == ["sofas", None, "tents", "kettles"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return toy.publish(tmp_path_factory.mktemp("toy"))


async def test_device_that_does_not_come_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some faults of a device stay with the process: the asker gets the error, and ends it."""
    monkeypatch.setattr(engine_thread, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(engine_thread, "DEVICE_SECONDS", 0.1)
    thread = Thread()
    thread.model.go.set()
    thread.model.errors["lost"] = [DeviceError("illegal address") for _ in range(10_000)]
    with pytest.raises(DeviceError, match="illegal address"):
        await asyncio.wait_for(thread.ask("lost"), 10)
    assert thread.heard[0] == ["engine"]
    await asyncio.to_thread(thread.engine.close)
