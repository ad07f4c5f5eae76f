"""A slot judges its worker by what that one says, and when it said so."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import Mock

import msgspec
import pytest

from classifier.link import Answer, Ask, ModelInfo, Status, SupervisorLink
from classifier.slot import Slot

READY = Status(slot=0, pid=1, state="running", golden=True, joined=True, mongodb=True)
MODEL = ModelInfo(
    artifact="a" * 16,
    target="onnx-cpu",
    precision="fp32",
    taxonomy="t1",
    labels=2,
    promotion=7,
    created_at="2026-01-01T00:00:00+00:00",
)


class Line:
    """The end of a line to nobody."""

    def __init__(self, open_: bool = True) -> None:
        self.open = open_
        self.sent: list[Ask] = []

    async def send(self, message: Ask) -> bool:
        self.sent.append(message)
        return self.open


def slot(status: Status | None = READY, line: Any = None) -> Slot:
    made = Slot(0, fresh=10, stall=300)
    made.process = Mock(spec=asyncio.subprocess.Process)
    made.connect(cast(SupervisorLink, line or Line()), now=100)
    if status is not None:
        made.tell(status)
    return made


def but(**changes: Any) -> Status:
    return msgspec.structs.replace(READY, **changes)


@pytest.mark.parametrize(
    "status",
    [
        but(golden=False),
        but(joined=False),
        but(mongodb=False),
        but(state="starting"),
        but(state="draining"),
        None,
    ],
)
def test_a_worker_is_ready_only_with_all_of_it(status: Status | None) -> None:
    assert slot().ready(now=101)
    assert not slot(status).ready(now=101)


def test_a_word_that_is_old_counts_no_more() -> None:
    assert slot().ready(now=110)
    assert not slot().ready(now=110.1)
    assert slot().report(now=130).reasons == ["silent for 30 s"]


def test_only_the_first_of_several_ready_words_makes_it_ready_anew() -> None:
    made = slot(None)
    assert [made.tell(status) for status in (READY, READY, but(mongodb=False), READY)] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("status", "now", "why"),
    [
        (READY, 400, ""),
        (READY, 401, "silent for 301 s"),
        (None, 401, "silent for 301 s"),
        (but(in_flight=7, idle_s=301.0), 101, "stuck with 7 offers for 301 s"),
        (but(in_flight=7, idle_s=300.0), 101, ""),
        (but(in_flight=0, idle_s=900.0), 101, ""),
        (but(in_flight=7, idle_s=900.0, waiting_on=["mongodb"]), 101, ""),
        (but(in_flight=7, idle_s=900.0, waiting_on=["kafka"]), 401, "silent for 301 s"),
    ],
)
def test_a_worker_hangs_when_it_is_silent_or_stuck_without_an_outage(
    status: Status | None, now: float, why: str
) -> None:
    assert slot(status).hanging(now) == why


def test_a_worker_without_a_line_hangs_only_once_its_time_is_over() -> None:
    made = slot()
    made.disconnect(connect_by=120)
    assert made.hanging(now=120) == ""
    assert made.hanging(now=121) == "not connected in time"
    made.process = None
    assert made.hanging(now=121) == ""


@pytest.mark.parametrize(
    ("code", "killed", "why", "ended"),
    [
        (3, "", "exited", "exited with code 3"),
        (-9, "", "killed", "was killed by SIGKILL"),
        (-11, "", "killed", "was killed by SIGSEGV"),
        (-9, "silent for 300 s", "stalled", "silent for 300 s"),
    ],
)
def test_the_next_one_knows_how_the_last_one_ended(
    code: int, killed: str, why: str, ended: str
) -> None:
    made = slot()
    made.killed = killed
    assert made.end(code) == why
    made.process = None
    made.disconnect()
    assert not made.killed
    report = made.report(now=101)
    assert (report.state, report.reasons) == ("absent", [f"the last one {ended}"])


def test_a_ready_worker_has_no_reasons_left() -> None:
    made = slot(None)
    made.end(1)
    made.tell(but(model=MODEL, reasons=["stale"]))
    report = made.report(now=101)
    assert report.ready
    assert report.reasons == []
    assert report.model is not None
    assert report.model.promotion == 7


async def test_an_answer_reaches_the_one_who_asked() -> None:
    line = Line()
    made = slot(line=line)
    first = asyncio.create_task(made.ask([b"1"], 5))
    second = asyncio.create_task(made.ask([b"2"], 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for ask in reversed(line.sent):
        made.answer(Answer(ask.id, error=ask.offers[0].decode()))
        made.answer(Answer(ask.id, error="again"))
    made.answer(Answer(-1, error="nobody asked"))
    answers = await first, await second
    assert [answer and answer.error for answer in answers] == ["1", "2"]
    assert not made.asks


async def test_those_who_wait_learn_at_once_that_the_worker_is_gone() -> None:
    made = slot()
    asked = asyncio.create_task(made.ask([b"1"], 60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    made.disconnect()
    assert await asked is None
    assert await made.ask([b"2"], 60) is None


async def test_a_line_that_is_closed_gives_no_answer() -> None:
    assert await slot(line=Line(open_=False)).ask([b"1"], 60) is None


async def test_nobody_waits_for_ever() -> None:
    made = slot()
    with pytest.raises(TimeoutError):
        await made.ask([b"1"], 0.01)
    assert not made.asks
