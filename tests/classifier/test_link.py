"""What is sent arrives whole, or the end of the line is told as such."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from classifier import link
from classifier.link import (
    Alternative,
    Answer,
    Ask,
    Classified,
    Hello,
    LinkError,
    ModelInfo,
    Problem,
    Refused,
    Status,
    Stop,
    SupervisorLink,
    WorkerLink,
)

CLASSIFIED = Classified(
    offer_id="a",
    category_id="kettles",
    score=0.5,
    alternatives=[Alternative("sofas", 0.25)],
    status="uncertain",
    model="m",
    taxonomy="t1",
)
REFUSED = Refused(offer_id=None, error=Problem("not an offer", "Expected `object`, got `int`"))


@asynccontextmanager
async def ends(path: Path) -> AsyncIterator[tuple[SupervisorLink, WorkerLink]]:
    """Both ends of one line."""
    accepted: asyncio.Queue[SupervisorLink] = asyncio.Queue()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(SupervisorLink.accept(reader, writer))

    async with await asyncio.start_unix_server(accept, path / "s"):
        worker = await WorkerLink.connect(path / "s", 3, os.getpid())
        supervisor = await accepted.get()
        try:
            yield supervisor, worker
        finally:
            await worker.close()
            await supervisor.close()


async def test_every_kind_of_message_arrives_as_it_was_sent(tmp_path: Path) -> None:
    status = Status(
        slot=3,
        pid=9,
        state="running",
        model=ModelInfo(
            artifact="m",
            target="onnx-cpu",
            precision="fp32",
            taxonomy="t1",
            labels=2,
            promotion=7,
            created_at="2026-01-01T00:00:00+00:00",
        ),
        golden=True,
        joined=True,
        mongodb=True,
        waiting_on=["kafka"],
        in_flight=12,
        idle_s=0.5,
        lag={"offers/0": 2**40},
        reasons=["why"],
    )
    async with ends(tmp_path) as (supervisor, worker):
        assert await supervisor.receive() == Hello(3, os.getpid())
        assert await worker.send_status(status)
        assert await worker.answer(1, [CLASSIFIED, REFUSED])
        assert await worker.refuse(2, "full", retry=True)
        assert await supervisor.receive() == status
        assert await supervisor.receive() == Answer(1, results=[CLASSIFIED, REFUSED])
        assert await supervisor.receive() == Answer(2, error="full", retry=True)
        assert await supervisor.send(Ask(2**40, [b"\xff\x00", b""]))
        assert await supervisor.send(Stop())
        assert await worker.receive() == Ask(2**40, [b"\xff\x00", b""])
        assert await worker.receive() == Stop()


@pytest.mark.parametrize(
    ("changes", "ready"),
    [
        ({}, True),
        ({"golden": False}, False),
        ({"joined": False}, False),
        ({"mongodb": False}, False),
        ({"state": "draining"}, False),
    ],
)
def test_ready_means_running_with_model_group_and_database(
    changes: dict[str, Any], ready: bool
) -> None:
    status = Status(slot=0, pid=1, state="running", golden=True, joined=True, mongodb=True)
    assert msgspec.structs.replace(status, **changes).ready is ready


async def test_the_iteration_ends_with_the_other_side(tmp_path: Path) -> None:
    async with ends(tmp_path) as (supervisor, worker):
        await supervisor.send(Ask(1, [b"{}"]))
        await supervisor.send(Stop())
        await supervisor.close()
        assert [message async for message in worker] == [Ask(1, [b"{}"]), Stop()]


async def test_sending_to_a_side_that_is_gone_is_no_error(tmp_path: Path) -> None:
    async with ends(tmp_path) as (supervisor, worker):
        await supervisor.close()
        assert await worker.receive() is None
        for _ in range(3):
            sent = await worker.refuse(1, "x" * 100_000, retry=False)
        assert sent is False
        await worker.close()
        assert await worker.refuse(1, "closed", retry=False) is False


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20])
async def test_a_side_that_dies_within_a_frame_is_gone(tmp_path: Path, cut: int) -> None:
    body = msgspec.msgpack.encode(Ask(1, [b"{}" * 20]))
    async with ends(tmp_path) as (supervisor, worker):
        supervisor._writer.write((struct.pack(">I", len(body)) + body)[:cut])
        await supervisor.close()
        assert await worker.receive() is None


@pytest.mark.parametrize(
    ("bytes_", "message"),
    [
        (struct.pack(">I", 2**31), "a frame of 2147483648 bytes is over the bound of 8388608"),
        (struct.pack(">I", 0), "does not decode"),
        (struct.pack(">I", 1) + b"\xc1", "does not decode"),
        (struct.pack(">I", 10_000) + b"\x91" * 10_000, "does not decode"),
        (b"GET / HTTP/1.1\r\n\r\n", "over the bound"),
    ],
)
async def test_bytes_that_are_no_message_are_refused(
    tmp_path: Path, bytes_: bytes, message: str
) -> None:
    async with ends(tmp_path) as (supervisor, worker):
        supervisor._writer.write(bytes_)
        with pytest.raises(LinkError, match=message):
            await worker.receive()


async def test_a_message_of_the_wrong_direction_is_refused(tmp_path: Path) -> None:
    async with ends(tmp_path) as (supervisor, worker):
        await supervisor.send(Hello(0, 1))
        with pytest.raises(LinkError, match="does not decode"):
            await worker.receive()


async def test_a_message_over_the_bound_is_never_sent(tmp_path: Path) -> None:
    async with ends(tmp_path) as (supervisor, worker):
        with pytest.raises(LinkError, match="over the bound"):
            await supervisor.send(Ask(1, [bytes(link.MOST_FRAME_BYTES)]))
        await supervisor.send(Stop())
        assert await worker.receive() == Stop()


async def test_frames_of_many_senders_do_not_mix(tmp_path: Path) -> None:
    async with ends(tmp_path) as (supervisor, worker):
        assert await supervisor.receive() == Hello(3, os.getpid())
        sends = [
            asyncio.create_task(worker.refuse(number, str(number) * 20_000, retry=False))
            for number in range(100)
        ]
        for cancelled in sends[50:60]:
            await asyncio.sleep(0)
            cancelled.cancel()
        received: dict[int, str | None] = {}
        async with asyncio.timeout(10):
            while len(received) < 100:
                answer = await supervisor.receive()
                assert isinstance(answer, Answer)
                received[answer.id] = answer.error
        assert received == {number: str(number) * 20_000 for number in range(100)}
        await asyncio.gather(*sends, return_exceptions=True)


async def test_a_line_to_nobody_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file|refused"):
        await WorkerLink.connect(tmp_path / "none", 0, 1)


def test_the_largest_request_fits_in_a_frame() -> None:
    offers = [bytes(1 << 20), *([b"{}"] * 255)]
    assert len(msgspec.msgpack.encode(Ask(1, offers))) < link.MOST_FRAME_BYTES
