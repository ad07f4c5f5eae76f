"""Workers are kept running, whatever ends them, and one endpoint answers for all of them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from classifier import address, link, log, supervisor
from classifier.artifact import Artifact, Description, publish
from classifier.settings import Settings
from classifier.slot import Slot
from classifier.supervisor import Backoff, Supervisor, Timing
from classifier.text import TextRecipe

ROOT = Path(__file__).parents[2]
STANDIN = Path(__file__).with_name("standin_worker.py")
QUICK = Timing(first_backoff=0.02, most_backoff=0.1, margin=1, tick=0.05, start=20, fresh=5)
OFFER = {"offer_id": "a", "title": "kettle"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artefact that is whole; nobody here runs it."""
    parent = tmp_path_factory.mktemp("models")
    staging = parent / "staging"
    staging.mkdir()
    labels = [
        {"id": "kettles", "names": {"en": "Kettles", "fr": "Bouilloires"}, "parents": ["kitchen"]},
        {"id": "sofas", "names": {}, "parents": []},
    ]
    golden = {"text": "steel kettle", "category_id": "kettles", "logits": {"kettles": 2}}
    (staging / "labels.json").write_text(json.dumps(labels))
    (staging / "golden.jsonl").write_text(json.dumps(golden) + "\n")
    for name in ("tokenizer.json", "report.json", "model.onnx"):
        (staging / name).write_text("{}")
    description = Description(
        created_at="2026-03-01T10:00:00+00:00",
        kind="encoder",
        target="onnx-cpu",
        precision="fp32",
        checkpoint="0123456789abcdef",
        data={"name": "two", "rows": 2},
        taxonomy="t1",
        text=TextRecipe(),
        max_tokens=32,
        versions={"torch": "2.13.0"},
        temperature=1.0,
        threshold=0.5,
    )
    return publish(staging, description, parent)


@pytest.fixture(autouse=True)
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stand-in workers leave a file each: SLOT.PID, with how they ended."""
    directory = tmp_path / "marks"
    directory.mkdir()
    monkeypatch.setenv("STANDIN_MARKS", str(directory))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return directory


def ends(marks: Path) -> set[str]:
    return {mark.read_text() for mark in marks.iterdir()}


def argv(mode: str) -> tuple[str, ...]:
    return (sys.executable, str(STANDIN), mode)


class Running:
    """A supervisor in this process's loop, and a client of its endpoints."""

    def __init__(self, supervisor: Supervisor, client: httpx.AsyncClient, directory: Path):
        self.supervisor = supervisor
        self.client = client
        self.directory = directory

    async def get(self, path: str) -> dict[str, Any]:
        content: dict[str, Any] = (await self.client.get(path)).json()
        return content

    async def classify(self, *offers: object) -> httpx.Response:
        return await self.client.post("/classify", json={"offers": list(offers)})

    async def ready(self, count: int = 1) -> None:
        async def enough() -> bool:
            workers = (await self.get("/readyz"))["workers"]
            return len([worker for worker in workers if worker["ready"]]) == count

        await until(enough)

    async def total(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families((await self.client.get("/metrics")).text)
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def process(self, slot: int = 0) -> asyncio.subprocess.Process:
        process = self.supervisor._slots[slot].process
        assert process is not None
        return process


async def until(holds: Callable[[], Any], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while True:
            answer = holds()
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer:
                return
            await asyncio.sleep(0.02)


@pytest.fixture
def serve(model: Path, tmp_path: Path) -> Any:
    """Start a supervisor over stand-in workers; stopped with the context."""

    @asynccontextmanager
    async def running(
        mode: str = "ok", timing: Timing = QUICK, **settings: Any
    ) -> AsyncIterator[Running]:
        directory = tmp_path / "run"
        directory.mkdir(mode=0o700)
        given: dict[str, Any] = {
            "mongodb_uri": SecretStr("mongodb://ann:s3cr3t@db"),
            "http_port": 0,
            "drain_seconds": 2,
            "model": model,
        }
        supervisor = Supervisor(
            Settings(**(given | settings)), Artifact.load(model), directory, argv(mode), timing
        )
        served = asyncio.create_task(supervisor.serve())
        listening = asyncio.create_task(supervisor.listening.wait())
        await asyncio.wait({served, listening}, return_when=asyncio.FIRST_COMPLETED)
        async with httpx.AsyncClient(base_url=supervisor.url, timeout=20) as client:
            yield Running(supervisor, client, directory)
        supervisor.stop()
        await asyncio.wait_for(served, 20)

    return running


# Restarts


async def test_a_killed_worker_is_replaced_and_the_restart_is_counted(serve: Any) -> None:
    async with serve() as running:
        await running.ready()
        first = running.process().pid
        os.kill(first, signal.SIGKILL)
        await until(
            lambda: (
                running.supervisor._slots[0].process is not None and running.process().pid != first
            )
        )
        await running.ready()
        assert await running.total("classifier_worker_restarts_total", why="killed") == 1
        assert (await running.get("/readyz"))["workers"][0]["restarts"] == 1
        assert (await running.client.get("/healthz")).status_code == 200


def test_restarts_back_off_up_to_the_bound_and_start_over_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    backoff = Backoff(Timing())
    assert [backoff.after(0.5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [backoff.after(lived) for lived in (60, 59, 1)] == [1, 2, 4]


def test_workers_that_died_together_do_not_come_back_together() -> None:
    waits = [Backoff(Timing()).after(0) for _ in range(100)]
    assert 1 <= min(waits) < max(waits) <= 1.25


async def test_totals_are_exact_and_never_go_back_over_twenty_kills(serve: Any) -> None:
    sent, seen = 0, [0.0]
    async with serve("counting", workers=2) as running:
        slots = running.supervisor._slots
        for times in range(1, 11):
            await running.ready(2)
            offers = [{"offer_id": str(number)} for number in range(times)]
            answers = await asyncio.gather(*(running.classify(*offers) for _ in range(4)))
            assert [answer.status_code for answer in answers] == [200] * 4
            sent += 4 * times
            for slot in slots:
                os.kill(running.process(slot.number).pid, signal.SIGKILL)
            seen.append(await running.total("classifier_offers_total", outcome="classified"))
            assert seen[-1] == sent
            await until(lambda: not any(slot.status for slot in slots))
        await running.ready(2)
        assert await running.total("classifier_offers_total", outcome="classified") == sent == 220
        assert seen == sorted(seen)
        assert await running.total("classifier_worker_restarts_total") == 20
        # As many files as slots, however often they were filled.
        assert len(list(running.directory.glob("*.db"))) == 4


@pytest.mark.parametrize("code", [2, 3])
async def test_a_worker_that_cannot_start_for_good_stops_the_service_with_its_code(
    code: int, model: Path, tmp_path: Path
) -> None:
    settings = Settings(
        mongodb_uri=SecretStr("mongodb://ann:s3cr3t@db"), http_port=0, model=model, workers=2
    )
    supervisor = Supervisor(settings, Artifact.load(model), tmp_path, argv(str(code)), QUICK)
    assert await asyncio.wait_for(supervisor.serve(), 20) == code


async def test_once_a_worker_was_ready_no_exit_code_stops_the_service(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as running:
        await running.ready()
        monkeypatch.setattr(running.supervisor, "_argv", argv("3"))
        running.process().kill()
        await until(lambda: running.supervisor._slots[0].restarts["exited"] >= 2)
        monkeypatch.setattr(running.supervisor, "_argv", argv("ok"))
        await running.ready()


async def test_a_worker_that_fails_for_now_is_tried_again(serve: Any) -> None:
    async with serve("9") as running:
        await until(lambda: running.supervisor._slots[0].restarts["exited"] >= 2)
        ready = await running.client.get("/readyz")
        assert ready.status_code == 503
        assert "worker 0: the last one exited with code 9" in ready.json()["reasons"]
        # A restart of the service would not help: it is alive.
        assert (await running.client.get("/healthz")).status_code == 200


async def test_a_program_that_is_not_there_is_tried_again(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as running:
        await running.ready()
        monkeypatch.setattr(running.supervisor, "_argv", ("/nowhere/worker",))
        running.process().kill()
        await until(lambda: running.supervisor._slots[0].restarts["exited"] >= 2)
        monkeypatch.setattr(running.supervisor, "_argv", argv("ok"))
        await running.ready()


# Hanging workers


@pytest.mark.parametrize("mode", ["stuck", "silent"])
async def test_a_worker_whose_work_stands_still_is_killed_and_replaced(
    serve: Any, mode: str, marks: Path
) -> None:
    async with serve(mode, stall_seconds=1) as running:
        await until(lambda: running.supervisor._slots[0].restarts["stalled"] >= 1)
        await until(lambda: len(list(marks.iterdir())) >= 2)


async def test_a_stopped_process_is_killed_and_replaced(serve: Any) -> None:
    async with serve(stall_seconds=1) as running:
        await running.ready()
        first = running.process().pid
        os.kill(first, signal.SIGSTOP)
        await until(lambda: running.supervisor._slots[0].restarts["stalled"] == 1)
        assert not psutil.pid_exists(first)
        await running.ready()


async def test_a_worker_that_never_connects_is_killed_and_replaced(serve: Any) -> None:
    timing = Timing(first_backoff=0.02, most_backoff=0.1, margin=1, tick=0.05, start=1.5)
    async with serve("deaf", timing) as running:
        await until(lambda: running.supervisor._slots[0].restarts["stalled"] >= 1)


async def test_a_worker_that_waits_on_an_outage_is_left_alone(serve: Any) -> None:
    async with serve("waiting", stall_seconds=1) as running:
        await until(lambda: running.supervisor._slots[0].status is not None)
        pid = running.process().pid
        await asyncio.sleep(2)
        assert running.process().pid == pid
        assert (await running.client.get("/healthz")).status_code == 200
        assert await running.total("classifier_waiting_workers", outage="mongodb") == 1


async def test_a_worker_that_dies_as_it_is_to_be_killed_ends_nothing(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as running:
        await running.ready()
        process, looks = running.process(), 0

        def kill() -> None:
            raise ProcessLookupError

        def hanging(_slot: Slot, _now: float) -> str:
            nonlocal looks
            looks += 1
            return "silent"

        with monkeypatch.context() as patch:
            patch.setattr(process, "kill", kill)
            patch.setattr(Slot, "hanging", hanging)
            await until(lambda: looks >= 3)
        assert (await running.client.get("/healthz")).status_code == 200
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: running.supervisor._slots[0].restarts["killed"] == 1)
        await running.ready()


async def test_a_supervisor_that_stood_still_itself_blames_no_worker(serve: Any) -> None:
    async with serve(stall_seconds=1) as running:
        await running.ready()
        pid = running.process().pid
        time.sleep(3)  # noqa: ASYNC251 - the loop stands still, as on a suspended machine
        await asyncio.sleep(0.5)
        assert running.process().pid == pid
        assert running.supervisor._slots[0].restarts.total() == 0


async def test_a_process_that_is_not_ours_gets_no_line(serve: Any) -> None:
    async with serve("lying") as running:
        await until((running.directory / "supervisor.sock").exists)
        stranger = await link.WorkerLink.connect(
            running.directory / "supervisor.sock", 0, os.getpid()
        )
        assert await asyncio.wait_for(stranger.receive(), 5) is None
        await stranger.close()
        assert running.supervisor._slots[0].line is None


# Requests


async def test_classify_gives_one_result_an_offer_in_order(serve: Any) -> None:
    async with serve() as running:
        await running.ready()
        response = await running.classify(OFFER, {"title": "no id"}, {"offer_id": "b"}, 7)
        assert response.status_code == 200
        assert "server" not in response.headers
        kettle = {
            "category_id": "kettles",
            "score": 0.75,
            "alternatives": [{"category_id": "sofas", "score": 0.25}],
            "status": "classified",
            "model": "0" * 16,
            "taxonomy": "t1",
        }
        refused = {
            "offer_id": None,
            "error": {"reason": "not an offer", "detail": "no offer_id"},
        }
        assert response.json() == {
            "results": [{"offer_id": "a", **kettle}, refused, {"offer_id": "b", **kettle}, refused]
        }


async def test_requests_go_to_the_worker_with_the_fewest(serve: Any) -> None:
    async with serve(workers=2) as running:
        await running.ready(2)
        asks = [asyncio.create_task(running.classify({"offer_id": "slow"})) for _ in range(6)]
        await until(lambda: sum(len(slot.asks) for slot in running.supervisor._slots) == 6)
        assert [len(slot.asks) for slot in running.supervisor._slots] == [3, 3]
        assert [(await ask).status_code for ask in asks] == [200] * 6


async def test_a_full_queue_answers_429_and_when_to_come_back(serve: Any) -> None:
    async with serve(interactive_queue=2) as running:
        await running.ready()
        asks = [asyncio.create_task(running.classify({"offer_id": "slow"})) for _ in range(2)]
        await until(lambda: running.supervisor._seated == 2)
        refused = await running.classify(OFFER)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json() == {"error": "2 requests are being answered or wait; try again"}
        assert [(await ask).status_code for ask in asks] == [200, 200]
        assert (await running.classify(OFFER)).status_code == 200
        assert await running.total("classifier_requests_total", status="429") == 1
        assert await running.total("classifier_requests_total", status="200") == 3


async def test_without_a_ready_worker_the_answer_is_503_and_when_to_come_back(serve: Any) -> None:
    async with serve("unready") as running:
        await until(lambda: running.supervisor._slots[0].status is not None)
        refused = await running.classify(OFFER)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert refused.json() == {"error": "no worker is ready; /readyz says why"}


async def test_a_request_whose_worker_dies_goes_to_another_one(serve: Any) -> None:
    async with serve(workers=2) as running:
        await running.ready(2)
        ask = asyncio.create_task(running.classify({"offer_id": "slow"}))
        await until(lambda: any(slot.asks for slot in running.supervisor._slots))
        (busy,) = (slot.number for slot in running.supervisor._slots if slot.asks)
        running.process(busy).kill()
        assert (await ask).status_code == 200


async def test_a_request_that_kills_its_workers_ends_as_503_and_spares_the_third(
    serve: Any,
) -> None:
    async with serve(workers=3) as running:
        await running.ready(3)
        response = await running.classify({"offer_id": "x", "title": "die"})
        assert response.status_code == 503
        assert await running.total("classifier_workers", state="ready") >= 1
        await until(lambda: sum(slot.restarts["killed"] for slot in running.supervisor._slots) == 2)


async def test_a_request_whose_only_worker_dies_ends_as_503(serve: Any) -> None:
    async with serve() as running:
        await running.ready()
        response = await running.classify({"offer_id": "x", "title": "die"})
        assert response.status_code == 503
        assert response.json() == {"error": "no worker was left to answer; /readyz says why"}


async def test_a_request_without_an_answer_ends_in_time(serve: Any) -> None:
    timing = Timing(answer=0.3, margin=0, tick=0.05)
    async with serve(timing=timing, drain_seconds=0) as running:
        await running.ready()
        response = await running.classify({"offer_id": "x", "title": "hang"})
        assert response.status_code == 503
        assert response.json() == {"error": "the worker did not answer within 0 seconds"}


@pytest.mark.parametrize(
    ("mode", "status", "error"),
    [
        ("full", 429, "the worker's own queue is full"),
        ("broken", 500, "the engine failed"),
        ("short", 500, "the worker did not answer every offer"),
    ],
)
async def test_a_refusal_of_the_worker_reaches_the_client(
    serve: Any, mode: str, status: int, error: str
) -> None:
    async with serve(mode) as running:
        await running.ready()
        response = await running.classify(OFFER)
        assert (response.status_code, response.json()) == (status, {"error": error})


# Probes and reports


async def test_readiness_names_what_each_worker_lacks_without_its_secrets(serve: Any) -> None:
    async with serve("unready", workers=2) as running:
        await until(lambda: all(slot.status for slot in running.supervisor._slots))
        response = await running.client.get("/readyz")
        assert response.status_code == 503
        content = response.json()
        assert content["ready"] is False
        assert content["reasons"] == [
            "worker 0: mongodb://ann:***@db is away",
            "worker 1: mongodb://ann:***@db is away",
        ]
        assert "s3cr3t" not in response.text
        assert [worker["joined"] for worker in content["workers"]] == [True, True]
        assert [worker["mongodb"] for worker in content["workers"]] == [False, False]


async def test_one_ready_worker_makes_the_service_ready(serve: Any) -> None:
    async with serve(workers=2) as running:
        await running.ready(2)
        os.kill(running.process(1).pid, signal.SIGKILL)
        await until(lambda: running.supervisor._slots[1].process is None)
        assert (await running.client.get("/readyz")).status_code == 200


async def test_a_silent_worker_is_not_ready_before_it_is_killed(serve: Any) -> None:
    timing = Timing(fresh=0.5, margin=0, tick=0.05)
    async with serve(timing=timing, drain_seconds=0) as running:
        await running.ready()
        os.kill(running.process().pid, signal.SIGSTOP)
        await running.ready(0)
        (reason,) = (await running.get("/readyz"))["reasons"]
        assert reason.startswith("worker 0: silent for ")


async def test_liveness_is_false_while_a_killed_worker_does_not_die(serve: Any) -> None:
    async with serve() as running:
        await running.ready()
        running.supervisor._slots[0].killed = "silent for 300 s"
        response = await running.client.get("/healthz")
        assert response.status_code == 503
        assert response.json() == {
            "alive": False,
            "reasons": ["worker 0 is silent for 300 s and does not die"],
        }
        running.supervisor._slots[0].killed = ""


async def test_model_and_categories_are_those_of_the_artefact(serve: Any, model: Path) -> None:
    async with serve(promotion=7) as running:
        await running.ready()
        report = await running.get("/model")
        assert report["artifact"] == model.name
        assert report["labels"] == 2
        assert report["promotion"] == 7
        assert report["workers"]["0"]["artifact"] == "0" * 16
        assert await running.get("/categories") == {
            "taxonomy": "t1",
            "categories": [
                {
                    "id": "kettles",
                    "names": {"en": "Kettles", "fr": "Bouilloires"},
                    "parents": ["kitchen"],
                },
                {"id": "sofas", "names": {}, "parents": []},
            ],
        }


async def test_probes_answer_while_every_worker_computes(serve: Any) -> None:
    async with serve(workers=2) as running:
        await running.ready(2)
        asks = [
            asyncio.create_task(running.classify({"offer_id": "x", "title": "hang"}))
            for _ in range(2)
        ]
        await until(lambda: running.supervisor._seated == 2)
        took = []
        for _ in range(20):
            began = time.perf_counter()
            assert (await running.client.get("/healthz")).status_code == 200
            assert (await running.client.get("/metrics")).status_code == 200
            took.append(time.perf_counter() - began)
        assert max(took) < 1
        for slot in running.supervisor._slots:
            assert slot.process is not None
            slot.process.kill()
        assert [(await ask).status_code for ask in asks] == [503, 503]


# The end


async def test_stop_lets_workers_finish_their_requests(serve: Any, marks: Path) -> None:
    async with serve() as running:
        await running.ready()
        ask = asyncio.create_task(running.classify({"offer_id": "slow"}))
        await until(lambda: running.supervisor._slots[0].asks)
        running.supervisor.stop()
        await until(running.supervisor._stopping.is_set)
        assert (await running.client.get("/readyz")).status_code == 503
        assert (await ask).status_code == 200
    assert ends(marks) == {"drained"}


async def test_a_worker_that_does_not_drain_is_killed_within_the_bound(serve: Any) -> None:
    timing = Timing(margin=0.2, tick=0.05)
    async with serve("stubborn", timing, drain_seconds=0.3) as running:
        await running.ready()
        pid = running.process().pid
        began = time.monotonic()
    assert 0.4 < time.monotonic() - began < 4
    assert not psutil.pid_exists(pid)


async def test_a_second_stop_waits_for_nobody(serve: Any) -> None:
    async with serve("stubborn", drain_seconds=60) as running:
        await running.ready()
        running.supervisor.stop()
        await asyncio.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 5


async def test_a_worker_that_is_still_starting_holds_up_no_stop(serve: Any) -> None:
    async with serve("deaf", drain_seconds=60) as running:
        await until(lambda: running.supervisor._slots[0].process is not None)
        began = time.monotonic()
    assert time.monotonic() - began < 5


async def test_a_fault_of_our_own_ends_the_service_and_its_workers(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        mongodb_uri=SecretStr("mongodb://ann:s3cr3t@db"), http_port=0, model=model, drain_seconds=1
    )
    supervisor = Supervisor(settings, Artifact.load(model), tmp_path, argv("ok"), QUICK)
    served = asyncio.create_task(supervisor.serve())
    await until(lambda: supervisor._slots[0].status)
    process = supervisor._slots[0].process
    assert process is not None
    # The watch finds something it cannot judge.
    monkeypatch.setattr(Slot, "hanging", lambda slot, now: 1 / 0)
    assert await asyncio.wait_for(served, 20) == 1
    assert not psutil.pid_exists(process.pid)


class Command:
    """The supervisor as a process of its own, over stand-in workers."""

    def __init__(self, mode: str, model: Path, tmp_path: Path, **settings: Any):
        given = {
            "mongodb_uri": "mongodb://ann:s3cr3t@db",
            "http_port": 0,
            "drain_seconds": 5,
            "model": str(model),
            **settings,
        }
        program = (
            "import json, sys\n"
            "from classifier.settings import Settings\n"
            "from classifier.supervisor import run\n"
            "given = json.loads(sys.stdin.read())\n"
            "sys.exit(run(Settings(**given['settings']), argv=given['argv']))\n"
        )
        self.endpoint = tmp_path / "endpoint"
        # Short: a socket's path has little room.
        self.temporary = Path(tempfile.mkdtemp(prefix="test-", dir="/tmp"))
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                address.ENDPOINT_FILE: str(self.endpoint),
                "TMPDIR": str(self.temporary),
            },
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"settings": given, "argv": argv(mode)}))
        self.process.stdin.close()
        self.process.stdin = None

    def wait_ready(self) -> str:
        for _ in range(1_000):
            if self.endpoint.exists():
                url = self.endpoint.read_text().strip()
                if httpx.get(f"{url}/readyz").status_code == 200:
                    return url
            assert self.process.poll() is None
            time.sleep(0.02)
        raise AssertionError("never ready")

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, [json.loads(line) for line in errors.splitlines()]


@pytest.fixture
def command(model: Path, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(mode: str = "ok", **settings: Any) -> Command:
        started.append(Command(mode, settings.pop("model", model), tmp_path, **settings))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
        shutil.rmtree(one.temporary)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_workers_cleans_up_and_exits_0(
    command: Callable[..., Command], marks: Path, number: int
) -> None:
    running = command(workers=2)
    url = running.wait_ready()
    (directory,) = running.temporary.glob("classifier-run-*")
    assert directory.stat().st_mode & 0o777 == 0o700
    running.process.send_signal(number)
    code, lines = running.end()
    assert code == 0
    assert ends(marks) == {"drained"}
    assert not list(running.temporary.iterdir())
    assert [line["url"] for line in lines if line["event"] == "listening"] == [url]
    assert "s3cr3t" not in json.dumps(lines)


def test_workers_see_their_supervisor_die_and_leave(
    command: Callable[..., Command], marks: Path
) -> None:
    running = command(workers=2)
    running.wait_ready()
    children = psutil.Process(running.process.pid).children()
    running.process.kill()
    assert len(children) == 2
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert ends(marks) == {"orphaned"}


def test_a_taken_port_is_one_line_and_exit_code_2(command: Callable[..., Command]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, lines = command(http_port=port).end()
    assert code == 2
    (line,) = lines
    assert line["event"] == (
        f"cannot listen on 127.0.0.1, port {port}: Address already in use;"
        " set HTTP_HOST and HTTP_PORT (port 0: any free one)"
    )


def test_an_endpoint_file_that_cannot_be_written_is_one_line_and_exit_code_2(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    (tmp_path / "endpoint").mkdir()
    (tmp_path / "endpoint" / "full").touch()
    code, lines = command().end()
    assert code == 2
    (line,) = (line for line in lines if line["level"] == "error")
    assert line["event"].startswith(f"cannot write CLASSIFIER_ENDPOINT_FILE={tmp_path}/endpoint: ")
    assert line["exit_code"] == 2


def test_no_room_for_temporary_files_is_one_line_and_exit_code_1(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervisor, "run_directory", full)
    monkeypatch.setattr(log, "configure", lambda *_, **__: None)
    assert supervisor.run(Settings(model=model)) == 1
    assert "no directory for temporary files: [Errno 28]" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_line_and_exit_code_3(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    code, lines = command(model=tmp_path / "none").end()
    assert code == 3
    (line,) = lines
    assert line["event"] == f"the model cannot be served: {tmp_path}/none: no such directory"


def test_a_folder_of_artefacts_serves_its_current_one(
    command: Callable[..., Command], model: Path
) -> None:
    (model.parent / "current").write_text(model.name + "\n")
    url = command(model=model.parent).wait_ready()
    assert httpx.get(f"{url}/model").json()["artifact"] == model.name
