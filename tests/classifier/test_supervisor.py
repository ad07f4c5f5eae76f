"""Workers are kept running, whatever ends them, and end with their supervisor."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from pydantic import SecretStr

from classifier import address, link, log, supervisor
from classifier.artifact import Artifact
from classifier.settings import Settings
from classifier.slot import Slot
from classifier.supervisor import Supervisor, Timing
from tests.classifier.standin_service import QUICK, argv, until

pytestmark = pytest.mark.usefixtures("marks")


def ends(marks: Path) -> set[str]:
    return {mark.read_text() for mark in marks.iterdir()}


# Restarts


async def test_a_killed_worker_is_replaced_and_the_restart_is_counted(serve: Any) -> None:
    async with serve() as running:
        await running.ready()
        first = running.process().pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: running.slots[0].process is not None and running.process().pid != first)
        await running.ready()
        assert await running.total("classifier_worker_restarts_total", why="killed") == 1
        assert (await running.get("/readyz"))["workers"][0]["restarts"] == 1
        assert (await running.client.get("/healthz")).status_code == 200


async def test_totals_are_exact_and_never_go_back_over_twenty_kills(serve: Any) -> None:
    sent, seen = 0, [0.0]
    async with serve("counting", workers=2) as running:
        slots = running.slots
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
    code: int, unrun_model: Path, tmp_path: Path
) -> None:
    settings = Settings(
        mongodb_uri=SecretStr("mongodb://ann:s3cr3t@db"), http_port=0, model=unrun_model, workers=2
    )
    supervisor = Supervisor(settings, Artifact.load(unrun_model), tmp_path, argv(str(code)), QUICK)
    assert await asyncio.wait_for(supervisor.serve(), 20) == code


async def test_once_a_worker_was_ready_no_exit_code_stops_the_service(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as running:
        await running.ready()
        monkeypatch.setattr(running.supervisor, "_argv", argv("3"))
        running.process().kill()
        await until(lambda: running.slots[0].restarts["exited"] >= 2)
        monkeypatch.setattr(running.supervisor, "_argv", argv("ok"))
        await running.ready()


async def test_a_worker_that_fails_for_now_is_tried_again(serve: Any) -> None:
    async with serve("9") as running:
        await until(lambda: running.slots[0].restarts["exited"] >= 2)
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
        await until(lambda: running.slots[0].restarts["exited"] >= 2)
        monkeypatch.setattr(running.supervisor, "_argv", argv("ok"))
        await running.ready()


# Hanging workers


@pytest.mark.parametrize("mode", ["stuck", "silent"])
async def test_a_worker_whose_work_stands_still_is_killed_and_replaced(
    serve: Any, mode: str, marks: Path
) -> None:
    async with serve(mode, stall_seconds=1) as running:
        await until(lambda: running.slots[0].restarts["stalled"] >= 1)
        await until(lambda: len(list(marks.iterdir())) >= 2)


async def test_a_stopped_process_is_killed_and_replaced(serve: Any) -> None:
    async with serve(stall_seconds=1) as running:
        await running.ready()
        first = running.process().pid
        os.kill(first, signal.SIGSTOP)
        await until(lambda: running.slots[0].restarts["stalled"] == 1)
        assert not psutil.pid_exists(first)
        await running.ready()


async def test_a_worker_that_never_connects_is_killed_and_replaced(serve: Any) -> None:
    timing = Timing(first_backoff=0.02, most_backoff=0.1, margin=1, tick=0.05, start=1.5)
    async with serve("deaf", timing) as running:
        await until(lambda: running.slots[0].restarts["stalled"] >= 1)


async def test_a_worker_that_waits_on_an_outage_is_left_alone(serve: Any) -> None:
    async with serve("waiting", stall_seconds=1) as running:
        await until(lambda: running.slots[0].status is not None)
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
        await until(lambda: running.slots[0].restarts["killed"] == 1)
        await running.ready()


async def test_a_supervisor_that_stood_still_itself_blames_no_worker(serve: Any) -> None:
    async with serve(stall_seconds=1) as running:
        await running.ready()
        pid = running.process().pid
        time.sleep(3)  # noqa: ASYNC251 - the loop stands still, as on a suspended machine
        await asyncio.sleep(0.5)
        assert running.process().pid == pid
        assert running.slots[0].restarts.total() == 0


async def test_a_process_that_is_not_ours_gets_no_line(serve: Any) -> None:
    async with serve("lying") as running:
        await until((running.directory / "supervisor.sock").exists)
        stranger = await link.WorkerLink.connect(
            running.directory / "supervisor.sock", 0, os.getpid()
        )
        assert await asyncio.wait_for(stranger.receive(), 5) is None
        await stranger.close()
        assert running.slots[0].line is None


# The end


async def test_stop_lets_workers_finish_their_requests(serve: Any, marks: Path) -> None:
    async with serve() as running:
        await running.ready()
        ask = asyncio.create_task(running.classify({"offer_id": "slow"}))
        await until(lambda: running.slots[0].asks)
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
        await until(lambda: running.slots[0].process is not None)
        began = time.monotonic()
    assert time.monotonic() - began < 5


async def test_a_fault_of_our_own_ends_the_service_and_its_workers(
    unrun_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        mongodb_uri=SecretStr("mongodb://ann:s3cr3t@db"),
        http_port=0,
        model=unrun_model,
        drain_seconds=1,
    )
    supervisor = Supervisor(settings, Artifact.load(unrun_model), tmp_path, argv("ok"), QUICK)
    served = asyncio.create_task(supervisor.serve())
    await until(lambda: supervisor.pool.slots[0].status)
    process = supervisor.pool.slots[0].process
    assert process is not None
    # The watch finds something it cannot judge.
    monkeypatch.setattr(Slot, "hanging", lambda slot, now: 1 / 0)
    assert await asyncio.wait_for(served, 20) == 1
    assert not psutil.pid_exists(process.pid)


class Command:
    """The supervisor as a process of its own, over stand-in workers."""

    def __init__(self, mode: str, unrun_model: Path, tmp_path: Path, **settings: Any):
        given = {
            "mongodb_uri": "mongodb://ann:s3cr3t@db",
            "http_port": 0,
            "drain_seconds": 5,
            "model": str(unrun_model),
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
def command(unrun_model: Path, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(mode: str = "ok", **settings: Any) -> Command:
        started.append(Command(mode, settings.pop("model", unrun_model), tmp_path, **settings))
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
    unrun_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervisor, "run_directory", full)
    monkeypatch.setattr(log, "configure", lambda *_, **__: None)
    assert supervisor.run(Settings(model=unrun_model)) == 1
    assert "no directory for temporary files: [Errno 28]" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_line_and_exit_code_3(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    code, lines = command(model=tmp_path / "none").end()
    assert code == 3
    (line,) = lines
    assert line["event"] == f"the model cannot be served: {tmp_path}/none: no such directory"


def test_a_folder_of_artefacts_serves_its_current_one(
    command: Callable[..., Command], unrun_model: Path
) -> None:
    (unrun_model.parent / "current").write_text(unrun_model.name + "\n")
    url = command(model=unrun_model.parent).wait_ready()
    assert httpx.get(f"{url}/model").json()["artifact"] == unrun_model.name
