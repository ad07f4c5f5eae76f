"""The production command under measurement: its processor seconds, its memory, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from pymongo import MongoClient

from benchmarks.load import TOPIC
from classifier.demo.servers import free_port

PATIENCE = 600.0


class Service:
    """`classifier serve` and all its children."""

    def __init__(self, process: psutil.Popen, endpoint: Path) -> None:
        self._process = process
        self._endpoint = endpoint

    def processes(self) -> list[psutil.Process]:
        """The supervisor and its workers."""
        return [self._process, *self._process.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Processor seconds, user and system, of the whole tree since it began."""
        times = [process.cpu_times() for process in self.processes()]
        return sum(time.user + time.system for time in times)

    def workers(self) -> list[psutil.Process]:
        """The workers alone."""
        return [each for each in self.processes() if "classifier.worker" in each.cmdline()]

    def worker_rss(self) -> int:
        """Resident bytes of the largest worker, now."""
        return max(process.memory_info().rss for process in self.workers())

    def worker_peak(self) -> int:
        """The most resident bytes that a worker ever had; without /proc, what it has now."""
        return max(map(_peak, self.workers()))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stands still while its load is laid in, so that waiting for it is not measured."""
        tree = self.processes()
        for process in tree:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in tree:
                process.send_signal(signal.SIGCONT)

    def counter(self, name: str) -> float:
        """The sum of a metric over its labels."""
        url = self._endpoint.read_text().strip()
        lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def is_ready(self) -> bool:
        """Whether /readyz says so. Raises RuntimeError when the service has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the service ended with {self._process.returncode}")
        try:
            url = self._endpoint.read_text().strip()
            return httpx.get(f"{url}/readyz", timeout=10).status_code == 200
        except (OSError, httpx.HTTPError):
            return False


def _peak(process: psutil.Process) -> int:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return int(process.memory_info().rss)
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kilobytes) * 1024


@contextlib.contextmanager
def serving(kafka: str, mongodb: str, model: Path, **settings: object) -> Iterator[Service]:
    """The production command, ready; ended by SIGTERM."""
    with tempfile.TemporaryDirectory() as directory:
        endpoint = Path(directory) / "endpoint"
        given = {
            "kafka_bootstrap_servers": kafka,
            "kafka_topic": TOPIC,
            "mongodb_uri": mongodb,
            "model": model,
            "http_port": 0,
            "log_level": "warning",
            # It stands still for a while, while its load is laid in.
            "kafka_session_timeout_ms": 60_000,
            "stall_seconds": 600,
        } | settings
        environment = os.environ | {name.upper(): str(value) for name, value in given.items()}
        environment["CLASSIFIER_ENDPOINT_FILE"] = str(endpoint)
        process = psutil.Popen([sys.executable, "-m", "classifier", "serve"], env=environment)
        service = Service(process, endpoint)
        try:
            until(service.is_ready, "the service is ready")
            yield service
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def acknowledging() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The server that only acknowledges: its URI, and what it has been given so far.

    Asking for that raises RuntimeError once the server refused anything.
    """
    port = free_port()
    uri = f"mongodb://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.ackserver", str(port)])
    try:
        with MongoClient[dict[str, Any]](uri) as client:
            yield uri, lambda: _sound(client.admin.command("written"))
    finally:
        process.terminate()
        process.wait()


def _sound(written: dict[str, Any]) -> dict[str, Any]:
    if written["refused"]:
        raise RuntimeError(f"the worker wrote {written['refused']}")
    return written


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(0.1)
