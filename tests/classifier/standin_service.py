"""A supervisor over stand-in workers, and what a test asks of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from classifier.slot import Slot
from classifier.supervisor import Supervisor, Timing

STANDIN = Path(__file__).with_name("standin_worker.py")
QUICK = Timing(first_backoff=0.02, most_backoff=0.1, margin=1, tick=0.05, start=20, fresh=5)


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

    @property
    def slots(self) -> list[Slot]:
        return self.supervisor.pool.slots

    def process(self, slot: int = 0) -> asyncio.subprocess.Process:
        process = self.slots[slot].process
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
