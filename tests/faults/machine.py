"""A machine: `classifier serve` as in production, behind its own lines to the servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from classifier.demo import servers
from tests.faults.kafka_wire import KafkaWire
from tests.faults.mongo_wire import MongoWire

STOP_SECONDS = 60.0
ANSWER_SECONDS = 10.0
FULL = Path("/dev/full")


class Machine:
    """One service, its workers, and the proxies through which alone they see the world."""

    def __init__(
        self,
        name: str,
        kafka: KafkaWire,
        mongodb: MongoWire,
        settings: Mapping[str, object],
        directory: Path,
    ) -> None:
        self.name = name
        self.kafka = kafka
        self.mongodb = mongodb
        self._endpoint = directory / f"{name}.endpoint"
        self._log = directory / f"{name}.log"
        self._environment = os.environ | {
            **{key.upper(): str(value) for key, value in settings.items()},
            "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
            "MONGODB_URI": mongodb.uri,
            "HTTP_PORT": "0",
            "CLASSIFIER_ENDPOINT_FILE": str(self._endpoint),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._http = httpx.AsyncClient(timeout=ANSWER_SECONDS)
        self.wanted = False
        """Whether it is to run now."""
        self.changing = asyncio.Lock()
        """Held by whoever stops and starts it."""

    def start(self, has_room: bool = True) -> None:
        """Starts the service; without room its log goes to a disk that is full."""
        self.wanted = True
        self._endpoint.unlink(missing_ok=True)
        with (self._log if has_room else FULL).open("ab", buffering=0) as log:
            self._process = subprocess.Popen(
                [*servers.tied("SIGTERM"), sys.executable, "-m", "classifier", "serve"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the campaign, which then ends it
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_listening(self) -> bool:
        return self._endpoint.exists()

    async def get(self, path: str) -> httpx.Response:
        """Raises OSError or httpx.HTTPError while nothing answers."""
        return await self._http.get(httpx.URL(self._endpoint.read_text().strip()).join(path))

    async def readiness(self) -> dict[str, Any] | None:
        try:
            report: dict[str, Any] = (await self.get("/readyz")).json()
        except (OSError, httpx.HTTPError):
            return None
        return report

    async def is_ready(self) -> bool:
        """Whether each of its workers is."""
        report = await self.readiness()
        return report is not None and all(worker["ready"] for worker in report["workers"])

    def workers(self) -> list[psutil.Process]:
        found = []
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self._process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is none
                        if "classifier.worker" in child.cmdline():
                            found.append(child)
        return found

    def worker_at(self, port: int) -> psutil.Process | None:
        """The worker whose end of a connection this port is."""
        for worker in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(end.laddr.port == port for end in worker.net_connections("tcp")):
                    return worker
        return None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self) -> int:
        """SIGTERM, and the exit code. Raises TimeoutExpired."""
        self.wanted = False
        self.signal(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, STOP_SECONDS)

    def end(self) -> None:
        """Leaves no process behind, whatever happened."""
        self.wanted = False
        for worker in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()

    async def close(self) -> None:
        self.end()
        await self._http.aclose()
