"""How each kind of fault is done, and undone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil

from tests.faults.kafka_wire import (
    COMMIT,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SYNC,
    asked,
    change,
    refuse,
)
from tests.faults.machine import Machine
from tests.faults.mongo_wire import Command, document, with_document
from tests.faults.plan import Fault
from tests.faults.wire import Fate, Mode, Trap, Wire
from tests.integration.proxy import Request

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

CHANCE_SECONDS = 20.0
"""Longest wait for the moment of a fault."""
RECORDS_BYTES = 1_000
"""An answer to a fetch that is larger has records."""
SMALL_BYTES = 8_192
"""A dead-letter topic that is too small takes no more at once."""
ORPHAN_SECONDS = 30.0
"""Workers without their supervisor finish what they hold and are gone within this."""
LATENCY, BANDWIDTH = 0.15, 150_000.0
"""A slow line: seconds a message, bytes a second."""

EARLIEST = -2
NOT_PRIMARY = 10_107

Do = Callable[["Campaign", Machine, Fault], Awaitable[None]]


class MissedError(Exception):
    """The moment of a fault did not come; the message says which."""


async def inject(campaign: Campaign, fault: Fault) -> None:
    """Does a fault and undoes it. Raises MissedError where there was no chance to do it."""
    await DOES[fault.kind](campaign, campaign.machines[fault.machine], fault)


async def _until(
    condition: Callable[[], bool], missed: str, seconds: float = CHANCE_SECONDS
) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise MissedError(missed)
        await asyncio.sleep(0.02)


def _kill(worker: psutil.Process | None, number: signal.Signals = signal.SIGKILL) -> None:
    if worker is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.send_signal(number)


async def _worker(machine: Machine) -> psutil.Process:
    await _until(lambda: bool(machine.workers()), f"{machine.name} has no worker")
    workers = machine.workers()
    if not workers:
        raise MissedError(f"the worker of {machine.name} is just gone")
    return workers[0]


# Deaths at a moment that the wire shows


async def _trapped(traps: list[Trap[Any]], trap: Trap[Any]) -> None:
    traps.append(trap)
    try:
        await _until(lambda: trap.sprung, "no worker came by")
    finally:
        traps.remove(trap)


def _killer(machine: Machine) -> Callable[[int], None]:
    return lambda port: _kill(machine.worker_at(port))


async def _kill_at_fetch(_: Campaign, machine: Machine, fault: Fault) -> None:
    def wants(request: Request, reply: bytes) -> bool:
        return request.api == FETCH and len(reply) > RECORDS_BYTES

    await _trapped(machine.kafka.reply_traps, Trap(wants, _killer(machine)))


async def _kill_mid_inference(_: Campaign, machine: Machine, fault: Fault) -> None:
    deadline = asyncio.get_running_loop().time() + CHANCE_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        report = await machine.readiness()
        if report and any(worker["in_flight"] for worker in report["workers"]):
            worker = await _worker(machine)
            await asyncio.sleep(fault.seconds)
            _kill(worker)
            return
        await asyncio.sleep(0.02)
    raise MissedError("no worker had anything in flight")


def _is_write(request: Command, _: bytes) -> bool:
    return request.name == "update" and any(request.places)


def _is_commit(request: Request, _: bytes) -> bool:
    commit = request.commit if request.api == COMMIT else None
    return commit is not None and commit.is_progress


async def _kill_before_write(_: Campaign, machine: Machine, fault: Fault) -> None:
    await _trapped(machine.mongodb.request_traps, Trap(_is_write, _killer(machine), "drop"))


async def _kill_at_write(_: Campaign, machine: Machine, fault: Fault) -> None:
    await _trapped(machine.mongodb.reply_traps, Trap(_is_write, _killer(machine), "drop"))


async def _kill_before_commit(_: Campaign, machine: Machine, fault: Fault) -> None:
    await _trapped(machine.kafka.request_traps, Trap(_is_commit, _killer(machine), "drop"))


async def _kill_at_commit(_: Campaign, machine: Machine, fault: Fault) -> None:
    await _trapped(machine.kafka.reply_traps, Trap(_is_commit, _killer(machine), "drop"))


async def _kill_after_dead_letter(_: Campaign, machine: Machine, fault: Fault) -> None:
    def wants(request: Request, reply: bytes) -> bool:
        return request.api == PRODUCE

    await _trapped(machine.kafka.reply_traps, Trap(wants, _killer(machine)))


async def _kill_mid_rebalance(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    """Another member leaves, and this one dies as it joins anew, or as it waits for its share."""
    step = JOIN if fault.choice == "joining" else SYNC

    def wants(request: Request, message: bytes) -> bool:
        return request.api == step

    fate: Fate = "drop" if fault.choice == "joining" else "pass"
    trapped = asyncio.ensure_future(
        _trapped(machine.kafka.request_traps, Trap(wants, _killer(machine), fate))
    )
    try:
        others = [other for other in campaign.machines if other is not machine]
        if others:
            _kill(await _worker(others[0]), signal.SIGTERM)
        else:
            _kill(await _worker(machine), signal.SIGTERM)
        await trapped
    finally:
        trapped.cancel()
        await asyncio.gather(trapped, return_exceptions=True)


async def _kill_at_start(_: Campaign, machine: Machine, fault: Fault) -> None:
    old = await _worker(machine)
    _kill(old)
    # The supervisor waits longer each time.
    await _until(
        lambda: any(worker.pid != old.pid for worker in machine.workers()), "none came", 60
    )
    await asyncio.sleep(fault.seconds)
    _kill(await _worker(machine))


async def _terminate(_: Campaign, machine: Machine, fault: Fault) -> None:
    _kill(await _worker(machine), signal.SIGTERM)


async def _freeze(_: Campaign, machine: Machine, fault: Fault) -> None:
    worker = await _worker(machine)
    _kill(worker, signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        _kill(worker, signal.SIGCONT)


# The service and its members


def _restart(has_room: bool) -> Do:
    async def restart(campaign: Campaign, machine: Machine, fault: Fault) -> None:
        """A deployment: SIGTERM, an orderly end, and the next one."""
        async with machine.changing:
            code = await machine.stop()
            if code:
                campaign.broken("exit code of an orderly stop", f"{machine.name}: {code}")
            await asyncio.sleep(fault.seconds)
            machine.start(has_room)

    return restart


async def _kill_supervisor(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    """Its workers see the end of their line, finish what they hold and leave."""
    async with machine.changing:
        workers = machine.workers()
        machine.wanted = False
        machine.signal(signal.SIGKILL)
        await machine.wait()
        try:
            await _until(lambda: not any(map(_lives, workers)), "orphans", ORPHAN_SECONDS)
        except MissedError:
            campaign.broken("workers outlived their supervisor", machine.name)
        finally:
            for worker in filter(_lives, workers):
                _kill(worker)
        machine.start()


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


async def _storm(campaign: Campaign, _: Machine, fault: Fault) -> None:
    """A further machine comes and goes, some times in good order and some times not."""
    spare = campaign.spare
    draw = random.Random(f"{fault}")
    async with spare.changing:
        for _round in range(int(fault.choice or 1)):
            spare.start()
            with contextlib.suppress(MissedError):
                await _until(lambda: bool(spare.workers()), "no worker yet", 10)
            await asyncio.sleep(draw.uniform(0.5, 5))
            if draw.random() < 0.6:
                await spare.stop()
            else:
                spare.end()


# The lines


def _kafka(machine: Machine) -> Wire[Any]:
    return machine.kafka


def _mongodb(machine: Machine) -> Wire[Any]:
    return machine.mongodb


def _wires(
    campaign: Campaign, machine: Machine, fault: Fault, of: Callable[[Machine], Wire[Any]]
) -> list[Wire[Any]]:
    """Of one machine, or of all."""
    machines = [*campaign.machines, campaign.spare] if fault.choice == "all" else [machine]
    return [of(one) for one in machines]


def _line(of: Callable[[Machine], Wire[Any]], mode: Mode) -> Do:
    async def cut(campaign: Campaign, machine: Machine, fault: Fault) -> None:
        with contextlib.ExitStack() as stack:
            for wire in _wires(campaign, machine, fault, of):
                stack.enter_context(wire.under(mode))
            await asyncio.sleep(fault.seconds)

    return cut


def _slow(of: Callable[[Machine], Wire[Any]]) -> Do:
    async def slow(campaign: Campaign, machine: Machine, fault: Fault) -> None:
        wires = _wires(campaign, machine, fault, of)
        for wire in wires:
            wire.latency += LATENCY
            wire.bandwidth = BANDWIDTH
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            for wire in wires:
                wire.latency = max(0.0, wire.latency - LATENCY)
                wire.bandwidth = 0.0

    return slow


# The database


async def _restart_database(campaign: Campaign, _: Machine, fault: Fault) -> None:
    async with campaign.changing_database:
        await asyncio.to_thread(campaign.database.kill)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(campaign.database.start)


def _fail_point(data: Callable[[Fault], dict[str, object]]) -> Do:
    async def fail(campaign: Campaign, _: Machine, fault: Fault) -> None:
        async with campaign.changing_database:
            await asyncio.to_thread(campaign.database.fail, "alwaysOn", **data(fault))
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                await asyncio.to_thread(campaign.database.fail, "off")

    return fail


async def _partial_bulks(_: Campaign, machine: Machine, fault: Fault) -> None:
    """Of every bulk each third update is told to have failed, though it did not."""

    def rewrite(request: Command, reply: bytes) -> bytes:
        if not _is_write(request, reply):
            return reply
        told = document(reply)
        failed = range(0, len(request.places), 3)
        told["writeErrors"] = [
            {"index": index, "code": fault.choice, "errmsg": "interrupted"} for index in failed
        ]
        told["n"] = max(0, told.get("n", 0) - len(failed))
        told["upserted"] = [
            one for one in told.get("upserted", ()) if one["index"] not in set(failed)
        ]
        return with_document(reply, told)

    with _rewriting(machine.mongodb, rewrite):
        await asyncio.sleep(fault.seconds)


async def _step_down(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    """The server says that it is no primary, in its greeting and to every write."""

    def rewrite(request: Command, reply: bytes) -> bytes:
        told = document(reply)
        if request.name == "update":
            return with_document(
                reply,
                {"ok": 0.0, "code": NOT_PRIMARY, "codeName": "NotWritablePrimary", "errmsg": "no"},
            )
        if "isWritablePrimary" not in told:
            return reply
        return with_document(reply, told | {"isWritablePrimary": False, "secondary": True})

    with contextlib.ExitStack() as stack:
        for wire in _wires(campaign, machine, fault, _mongodb):
            stack.enter_context(_rewriting(wire, rewrite))
        await asyncio.sleep(fault.seconds)


# What Kafka answers


@contextlib.contextmanager
def _rewriting(wire: Wire[Any], rewrite: Callable[[Any, bytes], bytes]) -> Iterator[None]:
    wire.rewrites.append(rewrite)
    try:
        yield
    finally:
        wire.rewrites.remove(rewrite)


@contextlib.contextmanager
def _answering(wire: Wire[Any], answer: Callable[[Any], bytes | None]) -> Iterator[None]:
    wire.answers.append(answer)
    try:
        yield
    finally:
        wire.answers.remove(answer)


def _code(fault: Fault) -> int:
    assert isinstance(fault.choice, int)
    return fault.choice


def _kafka_error(api: int) -> Do:
    """The broker did what was asked, and says that it did not."""

    async def fail(_: Campaign, machine: Machine, fault: Fault) -> None:
        def told(around: dict[str, Any]) -> int:
            # Of a fetch not the field of the session; of a lookup the only one.
            return _code(fault) if api != FETCH or "partition" in around else around["error_code"]

        def rewrite(request: Request, reply: bytes) -> bytes:
            return change(request, reply, {"error_code": told}) if request.api == api else reply

        with _rewriting(machine.kafka, rewrite):
            await asyncio.sleep(fault.seconds)

    return fail


async def _refuse_commits(_: Campaign, machine: Machine, fault: Fault) -> None:
    def answer(request: Request) -> bytes | None:
        return refuse(request, _code(fault)) if request.api == COMMIT else None

    with _answering(machine.kafka, answer):
        await asyncio.sleep(fault.seconds)


async def _refuse_dead_letters(_: Campaign, machine: Machine, fault: Fault) -> None:
    def answer(request: Request) -> bytes | None:
        return refuse(request, _code(fault)) if request.api == PRODUCE else None

    with _answering(machine.kafka, answer):
        await asyncio.sleep(fault.seconds)


async def _small_dead_letter_topic(_: Campaign, machine: Machine, fault: Fault) -> None:
    def answer(request: Request) -> bytes | None:
        too_large = request.api == PRODUCE and len(request.body) > SMALL_BYTES
        return refuse(request, 10) if too_large else None  # MESSAGE_TOO_LARGE

    with _answering(machine.kafka, answer):
        await asyncio.sleep(fault.seconds)


async def _missing_dead_letter_topic(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    unknown = 3  # UNKNOWN_TOPIC_OR_PARTITION

    def told(around: dict[str, Any]) -> int:
        missing = around.get("topic") == campaign.dead_letter_topic
        return unknown if missing else around["error_code"]

    def rewrite(request: Request, reply: bytes) -> bytes:
        return change(request, reply, {"error_code": told}) if request.api == METADATA else reply

    def answer(request: Request) -> bytes | None:
        return refuse(request, unknown) if request.api == PRODUCE else None

    with _rewriting(machine.kafka, rewrite), _answering(machine.kafka, answer):
        await asyncio.sleep(fault.seconds)


async def _expire_offset(campaign: Campaign, machine: Machine, fault: Fault) -> None:
    """The log of one partition now begins after what its reader asks for, as far as Kafka says.

    It begins with a record that is done, so that the reader finds everything that is not.
    """
    partition = _code(fault)
    begins = max(0, campaign.trace.committed.get(partition, 0) - campaign.EXPIRED_RECORDS)
    found = False

    def is_it(around: dict[str, Any]) -> bool:
        return around.get("partition") == partition

    def error(around: dict[str, Any]) -> int:
        out_of_range = is_it(around) and not found
        return 1 if out_of_range else around["error_code"]  # OFFSET_OUT_OF_RANGE

    def begin(around: dict[str, Any]) -> int:
        offset = int(around["offset"])
        return max(begins, offset) if is_it(around) else offset

    def rewrite(request: Request, reply: bytes) -> bytes:
        nonlocal found
        if request.api == FETCH:
            return change(request, reply, {"error_code": error})
        if request.api == LIST_OFFSETS and any(
            topic == campaign.topic and (partition, EARLIEST) in map(tuple, partitions)
            for topic, partitions in asked(request)["topics"]
        ):
            found = True
            return change(request, reply, {"offset": begin})
        return reply

    with contextlib.ExitStack() as stack:
        for one in [*campaign.machines, campaign.spare]:
            stack.enter_context(_rewriting(one.kafka, rewrite))
        await _until(lambda: found, f"nobody asked where partition {partition} begins")


DOES: dict[str, Do] = {
    "kill -9 after the fetch": _kill_at_fetch,
    "kill -9 mid-inference": _kill_mid_inference,
    "kill -9 before the write": _kill_before_write,
    "kill -9 before the write is acknowledged": _kill_at_write,
    "kill -9 between write and commit": _kill_before_commit,
    "kill -9 before the commit is acknowledged": _kill_at_commit,
    "kill -9 after a dead letter": _kill_after_dead_letter,
    "kill -9 mid-rebalance": _kill_mid_rebalance,
    "kill -9 during the start": _kill_at_start,
    "SIGTERM of a worker": _terminate,
    "SIGSTOP beyond the session": _freeze,
    "restart of a service": _restart(has_room=True),
    "restart with a full disk for logs": _restart(has_room=False),
    "kill -9 of a supervisor": _kill_supervisor,
    "members come and go": _storm,
    "Kafka refuses connections": _line(_kafka, "refused"),
    "Kafka is half-open": _line(_kafka, "silent"),
    "Kafka hears and is not heard": _line(_kafka, "deaf"),
    "Kafka is slow": _slow(_kafka),
    "MongoDB refuses connections": _line(_mongodb, "refused"),
    "MongoDB is half-open": _line(_mongodb, "silent"),
    "MongoDB hears and is not heard": _line(_mongodb, "deaf"),
    "MongoDB is slow": _slow(_mongodb),
    "MongoDB is killed and restarted": _restart_database,
    "MongoDB fails writes": _fail_point(lambda fault: {"errorCode": fault.choice}),
    "MongoDB closes sockets": _fail_point(lambda _: {"closeConnection": True}),
    "MongoDB blocks writes": _fail_point(
        lambda fault: {"blockConnection": True, "blockTimeMS": fault.choice}
    ),
    "MongoDB has no majority": _fail_point(
        lambda fault: {"writeConcernError": {"code": fault.choice, "errmsg": "waiting timed out"}}
    ),
    "MongoDB does bulks in part": _partial_bulks,
    "MongoDB is not primary": _step_down,
    "fetches fail": _kafka_error(FETCH),
    "heartbeats fail": _kafka_error(HEARTBEAT),
    "the coordinator is away": _kafka_error(FIND_COORDINATOR),
    "commits are done and told to fail": _kafka_error(COMMIT),
    "commits are refused": _refuse_commits,
    "dead letters are written and told to fail": _kafka_error(PRODUCE),
    "dead letters are refused": _refuse_dead_letters,
    "the dead-letter topic is too small": _small_dead_letter_topic,
    "the dead-letter topic is missing": _missing_dead_letter_topic,
    "a committed offset has expired": _expire_offset,
}
