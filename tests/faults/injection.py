"""How each kind of fault is done, and undone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import psutil

from tests.faults.kafka_wire import COMMIT, FETCH, PRODUCE
from tests.faults.machine import Machine
from tests.faults.mongo_wire import Command
from tests.faults.plan import Fault
from tests.faults.wire import Fate, Trap, Wire
from tests.integration.proxy import Request

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

TRAP_SECONDS = 15.0
"""Longest wait for a worker to come to where it is to die."""
RECORDS_BYTES = 1_000
"""An answer to a fetch that is larger has records."""


class MissedError(Exception):
    """The moment of a fault did not come; the message says which."""


async def inject(campaign: Campaign, fault: Fault) -> None:
    """Does a fault and undoes it. Raises MissedError where there was no chance to do it."""
    await _KINDS[fault.kind](campaign, campaign.machines[fault.machine], fault)


async def _until(condition: Callable[[], bool], what: str, seconds: float = TRAP_SECONDS) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise MissedError(what)
        await asyncio.sleep(0.02)


# Deaths, each at a moment that the wire shows


def _killer(machine: Machine) -> Callable[[int], None]:
    def kill(port: int) -> None:
        worker = machine.worker_at(port)
        if worker is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()

    return kill


async def _trapped(wire: Wire[Request] | Wire[Command], trap: object, on_reply: bool) -> None:
    name = "reply_trap" if on_reply else "request_trap"
    setattr(wire, name, trap)
    try:
        await _until(lambda: trap.sprung, "no worker came by")  # type: ignore[attr-defined]
    finally:
        setattr(wire, name, None)


async def _kill_at_fetch(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    def wants(request: Request, reply: bytes) -> bool:
        return request.api == FETCH and len(reply) > RECORDS_BYTES

    await _trapped(machine.kafka, Trap(wants, _killer(machine)), on_reply=True)


async def _kill_mid_inference(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    deadline = asyncio.get_running_loop().time() + TRAP_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        report = await machine.readiness()
        busy = [worker for worker in report["workers"] if worker["in_flight"]] if report else []
        workers = machine.workers()
        if busy and workers:
            await asyncio.sleep(fault.seconds)
            with contextlib.suppress(psutil.NoSuchProcess):
                workers[0].kill()
            return
        await asyncio.sleep(0.02)
    raise MissedError("no worker had anything in flight")


async def _kill_at_write(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    def wants(request: Command, reply: bytes) -> bool:
        return request.name == "update" and any(request.places)

    await _trapped(machine.mongodb, Trap(wants, _killer(machine), "drop"), on_reply=True)


def _at_commit(fate: Fate, on_reply: bool) -> Callable[..., Awaitable[None]]:
    async def kill(campaign: Campaign, machine: Machine, fault: Fault) -> None:
        def wants(request: Request, message: bytes) -> bool:
            commit = request.commit if request.api == COMMIT else None
            return commit is not None and commit.is_progress

        await _trapped(machine.kafka, Trap(wants, _killer(machine), fate), on_reply)

    return kill


async def _kill_after_dead_letter(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    def wants(request: Request, reply: bytes) -> bool:
        return request.api == PRODUCE

    await _trapped(machine.kafka, Trap(wants, _killer(machine)), on_reply=True)


_KINDS: dict[str, Callable[[Campaign, Machine, Fault], Awaitable[None]]] = {
    "kill after the fetch": _kill_at_fetch,
    "kill mid-inference": _kill_mid_inference,
    "kill before the write is acknowledged": _kill_at_write,
    "kill between write and commit": _at_commit("drop", on_reply=False),
    "kill before the commit is acknowledged": _at_commit("drop", on_reply=True),
    "kill after a dead letter": _kill_after_dead_letter,
}
