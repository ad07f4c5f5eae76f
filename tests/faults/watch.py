"""The watch: how the machines are, all the time, as their endpoints and the system say."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import psutil

from tests.faults.machine import Machine

TICK_SECONDS = 0.5


@dataclass
class Watch:
    """What was seen since the start."""

    machines: Sequence[Machine]
    not_alive: list[str] = field(default_factory=list)
    """Every time that a service said it is not alive."""
    most_bytes: int = 0
    """Of the largest worker, resident."""

    async def run(self) -> None:
        while True:
            await asyncio.gather(*(self._look(machine) for machine in self.machines))
            await asyncio.sleep(TICK_SECONDS)

    async def _look(self, machine: Machine) -> None:
        if not machine.wanted or not machine.is_listening:
            return
        for worker in machine.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                self.most_bytes = max(self.most_bytes, worker.memory_info().rss)
        with contextlib.suppress(OSError, httpx.HTTPError):
            answer = await machine.get("/healthz")
            if answer.status_code != 200:
                when = time.strftime("%H:%M:%S")
                self.not_alive.append(f"{when} {machine.name}: {answer.text}")
