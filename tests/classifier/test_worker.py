"""What a worker decides by itself: when it joins, what it says of itself, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from classifier import cpu, link, metrics, worker
from classifier.consumer import OfferConsumer
from classifier.demo import servers
from classifier.engine_thread import EngineThread
from classifier.engines.onnx import OnnxEngine
from classifier.exit_codes import BAD_MODEL, BAD_SETTINGS, FAULT, STOPPED
from classifier.model import Model, ModelError, Question
from classifier.run_directory import SOCKET
from classifier.settings import Settings
from classifier.worker import LEAVE_SECONDS, StalledError, Worker
from tests.classifier import toy
from tests.conftest import PARTITIONS, SERVERS
from tests.integration.harness import Broker, until

ROOT = Path(__file__).parents[2]
SLOT = 3
LOADING = "the model is loading"
NOT_JOINED = "the group is not joined"
UNANSWERED = "mongodb has not answered yet"
KETTLE = b'{"offer_id": "k-1", "title": "Kettle"}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.publish(tmp_path_factory.mktemp("toy")).path


@pytest.fixture(scope="module")
def liar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is whole and does not give its checkpoint's answers."""
    golden = [toy.question("Kettle", off=0.5)]
    return toy.publish(tmp_path_factory.mktemp("liar"), golden=golden).path


@pytest.fixture
def nowhere(model: Path) -> Settings:
    """Settings whose Kafka and MongoDB refuse every connection."""
    return Settings.model_validate(
        {
            "kafka_bootstrap_servers": "127.0.0.1:1",
            "mongodb_uri": "mongodb://127.0.0.1:1",
            "mongodb_timeout_ms": 200,
            "model": model,
            "promotion": 7,
            "engine_threads": 1,
            "fetch_wait_ms": 5,
            # The embedded broker lets a group wait for half of this before it begins.
            "kafka_session_timeout_ms": 2_000,
            "revoke_seconds": 1,
        }
    )


def but(settings: Settings, **changes: object) -> Settings:
    return Settings.model_validate(dict(settings) | changes)


@pytest.fixture
def here(nowhere: Settings, kafka: str, mongodb: str, topic: str, database: str) -> Settings:
    """Settings of a real topic and a real database."""
    return but(
        nowhere,
        kafka_bootstrap_servers=kafka,
        kafka_topic=topic,
        kafka_dead_letter_topic=f"{topic}.dead-letters",
        kafka_group=f"{topic}.group",
        mongodb_uri=mongodb,
        mongodb_database=database,
        mongodb_timeout_ms=5_000,
    )


class Supervisor:
    """The other end of the worker's line: keeps every word and asks."""

    def __init__(self) -> None:
        self.hello: link.Hello | None = None
        self.said: list[link.Status] = []
        self._line: link.SupervisorLink | None = None
        self._listening: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[link.Answer]] = {}

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._listening = asyncio.current_task()
        self._line = link.SupervisorLink.accept(reader, writer)
        async for word in self._line:
            if isinstance(word, link.Status):
                self.said.append(word)
            elif isinstance(word, link.Answer):
                self._answers[word.id].set_result(word)
            else:
                self.hello = word
        await self._line.close()

    @property
    def latest(self) -> link.Status | None:
        return self.said[-1] if self.said else None

    @property
    def is_ready(self) -> bool:
        return self.latest is not None and self.latest.ready

    async def send(self, message: link.FromSupervisor) -> None:
        assert self._line is not None
        assert await self._line.send(message)

    async def ask(self, *offers: bytes) -> link.Answer:
        number = len(self._answers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self.send(link.Ask(number, list(offers)))
        return await asyncio.wait_for(self._answers[number], 10)

    async def die(self) -> None:
        assert self._line is not None
        await self._line.close()

    async def heard(self) -> None:
        """Waits until the worker's end of the line is closed and everything on it is read."""
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=10)


@asynccontextmanager
async def supervisor(directory: Path) -> AsyncIterator[Supervisor]:
    """A supervisor that listens in a directory."""
    other = Supervisor()
    server = await asyncio.start_unix_server(other.listen, directory / SOCKET)
    try:
        yield other
    finally:
        await other.heard()
        server.close()


class Employed:
    """A worker in this process, on a line to a supervisor."""

    def __init__(self, worker: Worker, supervisor: Supervisor) -> None:
        self.worker = worker
        self.supervisor = supervisor
        self.running = asyncio.create_task(worker.run())

    @property
    def reasons(self) -> list[str]:
        latest = self.supervisor.latest
        return latest.reasons if latest else []

    async def end(self) -> float:
        """Waits for it, and gives the seconds that took; raises what `run` does."""
        began = time.monotonic()
        await asyncio.wait_for(asyncio.shield(self.running), 30)
        return time.monotonic() - began


@asynccontextmanager
async def employed(settings: Settings, directory: Path) -> AsyncIterator[Employed]:
    async with supervisor(directory) as other:
        line = await link.WorkerLink.connect(directory / SOCKET, SLOT, os.getpid())
        each = Employed(Worker(settings, metrics.in_process(), SLOT, line), other)
        try:
            yield each
        finally:
            each.worker.stop()
            await asyncio.wait([each.running], timeout=30)
            each.running.cancel()
            await line.close()


@contextmanager
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def place(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def was_asked(listener: socket.socket) -> bool:
    """Whether anybody connected."""
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


class Gate:
    """Holds a method up until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def passed(self) -> None:
        self.reached.set()
        assert self.opened.wait(30)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


def hold(monkeypatch: pytest.MonkeyPatch, gate: Gate, name: str) -> None:
    """Lets Model.NAME wait at the gate before it does what it always does."""
    honest = getattr(Model, name)

    def held(*given: Any, **named: Any) -> Any:
        gate.passed()
        return honest(*given, **named)

    monkeypatch.setattr(Model, name, held)


# The start


async def test_a_model_that_answers_wrongly_asks_neither_mongodb_nor_kafka(
    nowhere: Settings, liar: Path, tmp_path: Path
) -> None:
    with silent() as kafka, silent() as mongodb:
        settings = but(
            nowhere,
            model=liar,
            kafka_bootstrap_servers=place(kafka),
            mongodb_uri=f"mongodb://{place(mongodb)}",
        )
        async with employed(settings, tmp_path) as each:
            with pytest.RaisesGroup(pytest.RaisesExc(ModelError, match="golden question 1")):
                await each.end()
        assert not was_asked(mongodb)
        assert not was_asked(kafka)
    assert not any(status.golden for status in each.supervisor.said)


async def test_kafka_is_not_asked_before_mongodb_takes_writes(
    nowhere: Settings, tmp_path: Path
) -> None:
    with silent() as kafka:
        settings = but(
            nowhere, kafka_bootstrap_servers=place(kafka), kafka_group_instance_id="machine-1"
        )
        async with employed(settings, tmp_path) as each:
            await until(lambda: len(each.reasons) == 2, "the outage is told", 10)
            # The workers of one machine are different members.
            assert each.worker._consumer is not None
            assert each.worker._consumer._instance_id == f"machine-1-{SLOT}"
            status = each.supervisor.said[-1]
            assert (status.state, status.golden, status.mongodb, status.joined) == (
                *("starting", True),
                *(False, False),
            )
            assert status.waiting_on == ["mongodb"]
            assert status.reasons[0].startswith("mongodb is away: 127.0.0.1:1: ")
            assert status.reasons[1] == NOT_JOINED
        assert not was_asked(kafka)


async def test_kafka_that_is_away_is_told_by_its_name(here: Settings, tmp_path: Path) -> None:
    settings = but(here, kafka_bootstrap_servers="127.0.0.1:1")
    async with employed(settings, tmp_path) as each:
        await until(lambda: len(each.reasons) == 2, "the outage is told", 10)
        status = each.supervisor.said[-1]
        assert (status.state, status.golden, status.mongodb, status.joined) == (
            *("starting", True),
            *(True, False),
        )
        assert status.waiting_on == ["kafka"]
        assert status.reasons[0].startswith("kafka is away: ")
        assert status.reasons[1] == NOT_JOINED


async def test_a_worker_tells_each_step_of_its_life(
    here: Settings, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    hold(monkeypatch, gate, "check_golden")
    async with employed(here, tmp_path) as each:
        await until(lambda: each.supervisor.said, "the first word", 10)
        assert each.supervisor.hello == link.Hello(SLOT, os.getpid())
        first = each.supervisor.said[0]
        assert first == link.Status(slot=SLOT, pid=os.getpid(), state="starting", reasons=[LOADING])
        gate.opened.set()
        await until(lambda: each.supervisor.is_ready, "ready", 20)
        steps = [
            (status.golden, status.mongodb, status.joined, status.ready)
            for status in each.supervisor.said
        ]
        # What was reached stays, and each needs the one before.
        assert steps == sorted(steps)
        assert all(list(step) == sorted(step, reverse=True) for step in steps)
        assert [UNANSWERED] in [status.reasons for status in each.supervisor.said]
        ready = each.supervisor.said[-1]
        assert (ready.state, ready.reasons, ready.waiting_on) == ("running", [], [])
        assert ready.model == link.ModelInfo(
            artifact=model.name,
            target="onnx-cpu",
            precision="fp32",
            taxonomy="toy-1",
            labels=3,
            promotion=7,
            created_at="2026-03-01T10:00:00+00:00",
        )
        partitions = {f"{here.kafka_topic}/{number}": 0 for number in range(PARTITIONS)}
        await until(lambda: each.supervisor.said[-1].lag == partitions, "the lag is told", 10)
        each.worker.stop()
        await each.end()
    last = each.supervisor.said[-1]
    assert (last.state, last.ready, last.reasons) == ("draining", False, ["draining"])


async def test_engine_and_tokeniser_take_the_threads_of_the_quota(
    nowhere: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "quota", lambda *_: 6)
    # Set, so that what the worker sets is gone after the test, and then deleted.
    monkeypatch.setenv("RAYON_NUM_THREADS", "")
    for workers, given, threads in ((1, 0, 6), (2, 0, 3), (2, 1, 1)):
        monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
        settings = but(nowhere, workers=workers, engine_threads=given)
        loaded = await Worker(settings, metrics.in_process())._load()
        try:
            engine = loaded.model._engine
            assert isinstance(engine, OnnxEngine)
            assert engine._session.get_session_options().intra_op_num_threads == threads
            assert os.environ["RAYON_NUM_THREADS"] == str(threads)
        finally:
            loaded.close()


# Readiness


async def test_what_is_away_is_told_at_once_and_costs_what_it_is_needed_for(
    here: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STATUS_SECONDS", 60.0)
    monkeypatch.setattr(worker, "CHECK_SECONDS", 0.1)
    async with employed(here, tmp_path) as each:
        await until(lambda: each.supervisor.is_ready, "ready", 20)
        monkeypatch.setattr(worker, "CHECK_SECONDS", 60.0)
        await asyncio.sleep(0.3)  # from here on, no word is due
        for service, golden, joined, mongodb in (
            ("engine", False, True, True),
            ("kafka", True, False, True),
            ("mongodb", True, True, False),
            # What can be read goes on; what cannot waits, and says so.
            ("dead-letters", True, True, True),
        ):
            words = len(each.supervisor.said)
            each.worker._outages.began(service, "a cable was cut", "a test")
            await until(lambda n=words: len(each.supervisor.said) > n, service, 10)  # type: ignore[misc]
            status = each.supervisor.said[-1]
            assert (status.golden, status.joined, status.mongodb) == (golden, joined, mongodb)
            assert status.ready == (service == "dead-letters")
            assert status.waiting_on == [service]
            assert status.reasons == [f"{service} is away: a cable was cut"]
            each.worker._outages.ended(service, "a test")
            await until(lambda: each.supervisor.is_ready, "ready again", 10)


async def produce(settings: Settings, *values: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka_bootstrap_servers)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(settings.kafka_topic, value)
    finally:
        await producer.stop()


async def test_work_that_stands_still_is_told_with_how_long_and_how_much(
    here: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    async with employed(here, tmp_path) as each:
        await until(lambda: each.supervisor.is_ready, "ready", 20)
        hold(monkeypatch, gate, "compute")
        await produce(here, KETTLE)
        await until(lambda: each.supervisor.said[-1].in_flight, "it is taken", 10)
        await until(lambda: each.supervisor.said[-1].idle_s > 1, "it is told again", 10)
        still = each.supervisor.said[-1]
        assert (still.in_flight, still.waiting_on) == (1, [])
        assert 1 < still.idle_s < 10
        assert sum(still.lag.values()) <= 1
        gate.opened.set()
        await until(lambda: not each.supervisor.said[-1].in_flight, "it is done", 10)
        assert each.supervisor.said[-1].idle_s == 0


async def test_records_that_wait_while_none_is_fetched_end_the_worker(
    here: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gives nothing any more, as one whose partitions stay paused."""
    monkeypatch.setattr(OfferConsumer, "fetch", OfferConsumer.idle)
    monkeypatch.setattr(worker, "CHECK_SECONDS", 0.2)
    settings = but(here, stall_seconds=1.0)
    async with employed(settings, tmp_path) as each:
        await until(lambda: each.supervisor.is_ready, "ready", 20)
        await asyncio.sleep(1.5)  # nothing waits, so nothing is wrong
        each.worker._outages.began("engine", "no device", "a test")
        await produce(here, KETTLE, KETTLE)
        await until(lambda: sum(each.supervisor.said[-1].lag.values()) == 2, "lag", 10)
        await asyncio.sleep(0.5)  # an outage explains it
        assert not each.running.done()
        each.worker._outages.ended("engine", "a test")
        with pytest.RaisesGroup(
            pytest.RaisesGroup(pytest.RaisesExc(StalledError, match="^2 records wait"))
        ):
            await each.end()


# The end


@pytest.mark.parametrize("service", ["mongodb", "kafka"])
async def test_a_stop_does_not_wait_for_a_server_that_is_silent_at_the_start(
    here: Settings, tmp_path: Path, service: str
) -> None:
    with silent() as listener:
        settings = {
            "mongodb": but(
                here, mongodb_uri=f"mongodb://{place(listener)}", mongodb_timeout_ms=60_000
            ),
            "kafka": but(here, kafka_bootstrap_servers=place(listener)),
        }[service]
        async with employed(settings, tmp_path) as each:
            await until(lambda: was_asked(listener), f"{service} is asked", 10)
            each.worker.stop()
            assert await each.end() < LEAVE_SECONDS + 1


async def test_a_stop_while_the_model_loads_joins_nothing(
    nowhere: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    hold(monkeypatch, gate, "check_golden")
    with silent() as kafka:
        settings = but(nowhere, kafka_bootstrap_servers=place(kafka))
        async with employed(settings, tmp_path) as each:
            await asyncio.to_thread(gate.reached.wait)
            each.worker.stop()
            gate.opened.set()
            assert await each.end() < LEAVE_SECONDS + 1
        assert not was_asked(kafka)


@pytest.mark.parametrize("way", ["stop", "die"])
async def test_a_worker_ends_when_its_supervisor_says_so_or_is_gone(
    nowhere: Settings, tmp_path: Path, way: str
) -> None:
    async with employed(nowhere, tmp_path) as each:
        await until(lambda: each.reasons, "the first word", 10)
        if way == "stop":
            await each.supervisor.send(link.Stop())
        else:
            await each.supervisor.die()
        assert await each.end() < LEAVE_SECONDS + 1
    assert "engine" not in {thread.name for thread in threading.enumerate()}


# Requests over the line, which need the model and nothing else


async def test_a_request_is_answered_with_the_model_alone_and_refused_before_and_after(
    nowhere: Settings, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    hold(monkeypatch, gate, "check_golden")
    async with employed(nowhere, tmp_path) as each:
        await until(lambda: each.reasons == [LOADING], "it loads", 10)
        early = await each.supervisor.ask(KETTLE)
        assert (early.results, early.error, early.retry) == (None, "not ready", True)
        gate.opened.set()
        await until(lambda: each.supervisor.said[-1].golden, "the model is there", 10)
        answer = await each.supervisor.ask(KETTLE, b"7")
        assert (answer.error, answer.retry) == (None, False)
        assert answer.results is not None
        kettle, refused = answer.results
        assert isinstance(kettle, link.Classified)
        assert (kettle.offer_id, kettle.category_id, kettle.model) == ("k-1", "kettles", model.name)
        assert isinstance(refused, link.Refused)
        each.worker.stop()
        late = await each.supervisor.ask(KETTLE)
        assert (late.results, late.error, late.retry) == (None, "not ready", True)


async def test_a_full_queue_refuses_for_now_and_a_failed_engine_for_good(
    nowhere: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    async with employed(but(nowhere, interactive_queue=2), tmp_path) as each:
        await until(lambda: each.supervisor.latest and each.supervisor.latest.golden, "model", 10)
        with monkeypatch.context() as patch:
            hold(patch, gate, "compute")
            waiting = [asyncio.create_task(each.supervisor.ask(KETTLE)) for _ in range(2)]
            engine = each.worker._engine
            assert isinstance(engine, EngineThread)
            await until(lambda: engine.interactive_waiting == 2, "two wait", 10)
            full = await each.supervisor.ask(KETTLE)
            assert (full.results, full.error, full.retry) == (None, "the queue is full", True)
            gate.opened.set()
            assert all([(await ask).results for ask in waiting])

        def fail(_model: Model, _question: Question, _call: object) -> None:
            raise RuntimeError("mongodb://ann:s3cr3t@db")

        monkeypatch.setattr(Model, "compute", fail)
        failed = await each.supervisor.ask(b'{"offer_id": "t-1", "title": "Tent"}')
        assert (failed.results, failed.error, failed.retry) == (None, "the engine failed", False)
        assert not each.running.done()


# The process


class Process:
    """A worker as its supervisor starts it; `before` is run in it first."""

    def __init__(self, settings: Settings, directory: Path, before: str = "") -> None:
        program = f"{before}\nimport sys\nfrom classifier import worker\nsys.exit(worker.main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"CLASSIFIER_SLOT": str(SLOT), "CLASSIFIER_RUN_DIR": str(directory)},
        )
        assert self.process.stdin is not None
        self.process.stdin.write(settings.worker_json().encode())
        self.process.stdin.close()
        self.process.stdin = None

    async def end(self) -> tuple[int, list[dict[str, Any]]]:
        """The exit code, and the lines of the log."""
        _, errors = await asyncio.to_thread(self.process.communicate, timeout=30)
        return self.process.returncode, [json.loads(line) for line in errors.splitlines()]


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(settings: Settings, directory: Path, before: str = "") -> Process:
        started.append(Process(settings, directory, before))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


async def test_ctrl_c_is_left_to_the_supervisor_and_sigterm_ends_with_0(
    nowhere: Settings, tmp_path: Path, process: Callable[..., Process]
) -> None:
    async with supervisor(tmp_path) as other:
        started = process(
            nowhere, tmp_path, "from classifier import worker; worker.STATUS_SECONDS = 0.1"
        )
        await until(lambda: other.latest and other.latest.golden, "the model is there", 30)
        assert other.hello == link.Hello(SLOT, started.process.pid)
        started.process.send_signal(signal.SIGINT)
        words = len(other.said)
        await until(lambda: len(other.said) > words + 1, "it goes on", 10)
        started.process.send_signal(signal.SIGTERM)
        code, lines = await started.end()
    assert code == STOPPED
    assert not [line for line in lines if line["level"] == "error"]
    assert {line["slot"] for line in lines} == {SLOT}
    # What it counts, the supervisor finds under its slot.
    assert b"classifier_offers_total" in metrics.scrape(tmp_path)


@pytest.mark.skipif(
    "KAFKA_BOOTSTRAP_SERVERS" in SERVERS, reason="the given Kafka is not silenced on purpose"
)
async def test_a_stop_does_not_wait_for_a_coordinator_that_fell_silent(
    here: Settings, tmp_path: Path, process: Callable[..., Process]
) -> None:
    leave = 1.0
    broker = Broker()
    broker.start()
    try:
        await servers.create_topic(broker.proxy.bootstrap, here.kafka_topic, 1)
        # The embedded broker's first generation is 0, which the client takes for none, and such a
        # member never says that it leaves. The second generation's does.
        async with AIOKafkaConsumer(
            here.kafka_topic,
            bootstrap_servers=broker.proxy.bootstrap,
            group_id=here.kafka_group,
            session_timeout_ms=1_000,
            heartbeat_interval_ms=300,
        ) as first:
            await until(first.assignment, "the first generation", 10)
        async with supervisor(tmp_path) as other:
            settings = but(here, kafka_bootstrap_servers=broker.proxy.bootstrap)
            before = f"from classifier import worker; worker.LEAVE_SECONDS = {leave}"
            started = process(settings, tmp_path, before)
            await until(lambda: other.is_ready, "ready", 30)
            broker.proxy.hang()
            began = time.monotonic()
            await other.send(link.Stop())
            code, _ = await started.end()
            # The client itself would wait for twelve seconds.
            assert leave - 0.1 < time.monotonic() - began < leave + 5
            assert code == STOPPED
    finally:
        broker.end()


async def test_a_model_that_cannot_serve_is_one_line_and_exit_code_3(
    nowhere: Settings, liar: Path, tmp_path: Path, process: Callable[..., Process]
) -> None:
    async with supervisor(tmp_path):
        code, lines = await process(but(nowhere, model=liar), tmp_path).end()
    assert code == BAD_MODEL
    (line,) = lines
    assert line["event"].startswith(
        f"the model cannot serve: artefact {liar.name}, golden question 1: "
    )
    assert line["exit_code"] == BAD_MODEL


async def test_a_codec_that_is_missing_is_one_line_and_exit_code_2(
    nowhere: Settings, tmp_path: Path, process: Callable[..., Process]
) -> None:
    before = "from aiokafka import codec\ncodec.has_lz4 = lambda: False"
    code, lines = await process(nowhere, tmp_path, before).end()
    assert code == BAD_SETTINGS
    (line,) = lines
    assert line["event"] == "no codec for lz4; pip install cramjam"
    assert line["exit_code"] == BAD_SETTINGS


async def test_a_fault_of_our_own_is_an_event_with_its_traceback_and_exit_code_1(
    nowhere: Settings, tmp_path: Path, process: Callable[..., Process]
) -> None:
    """No supervisor listens where the worker looks for it."""
    code, lines = await process(nowhere, tmp_path).end()
    assert code == FAULT
    (line,) = lines
    assert (line["event"], line["exit_code"]) == ("worker failed", FAULT)
    assert "FileNotFoundError" in line["exception"]
