"""The line between the supervisor and a worker: one Unix socket, framed messages of fixed kinds.

A frame is its length (4 bytes, big-endian) and one MessagePack object, tagged by its kind. The
worker connects and says Hello, then tells its Status about once a second and answers what it is
asked; the supervisor asks, and says Stop. Either side sees the other's death as the end of the
stream: a worker then finishes what it holds and leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

# 256 offers in a body of at most 1 MiB, and the same offers' answers, fit several times.
MOST_FRAME_BYTES = 8 << 20
_LENGTH = struct.Struct(">I")


class LinkError(Exception):
    """The other side does not keep to the format; the message says how."""


# Dataclasses where the HTTP endpoints show the very same: msgspec and pydantic both take them.


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The artefact that a worker answers with."""

    artifact: str
    target: str
    precision: str
    taxonomy: str
    labels: int
    promotion: int
    created_at: str


@dataclass(frozen=True)
class Alternative:
    """A category that came after the first."""

    category_id: str
    score: float


@dataclass(frozen=True)
class Problem:
    """Why one offer has no category; reasons are those of the dead letters."""

    reason: str
    detail: str


class Classified(msgspec.Struct, frozen=True, kw_only=True, tag="classified"):
    """One offer's category."""

    offer_id: str
    category_id: str
    score: float
    alternatives: list[Alternative]
    status: str
    model: str
    taxonomy: str


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """One offer that cannot be classified; `offer_id` is None where it cannot even be read."""

    offer_id: str | None
    error: Problem


Result = Classified | Refused


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of a worker: which slot it fills, as which process."""

    slot: int
    pid: int


class Status(msgspec.Struct, frozen=True, kw_only=True, tag="status"):
    """How a worker is.

    state: "starting", "running" or "draining".
    golden, joined, mongodb: the model answered its golden questions, the group is joined, MongoDB
    takes writes: together with "running" the worker is ready.
    waiting_on: outages that explain why work stands still: "kafka", "mongodb", "engine",
        "dead-letters".
    in_flight: offers fetched and not yet committed.
    idle_s: seconds since work last moved; 0 when nothing is in flight.
    lag: records behind, by "topic/partition", of the partitions this worker holds.
    reasons: why it is not ready, one line each, no secrets.
    """

    slot: int
    pid: int
    state: str
    model: ModelInfo | None = None
    golden: bool = False
    joined: bool = False
    mongodb: bool = False
    waiting_on: list[str] = []
    in_flight: int = 0
    idle_s: float = 0.0
    lag: dict[str, int] = {}
    reasons: list[str] = []

    @property
    def ready(self) -> bool:
        return self.state == "running" and self.golden and self.joined and self.mongodb


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The results for one Ask, one an offer and in its order, or why there are none.

    `retry`: another worker, or this one later, may well answer (full, draining).
    """

    id: int
    results: list[Result] | None = None
    error: str | None = None
    retry: bool = False


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Offers to classify: the bytes of one JSON value each, as in a Kafka record."""

    id: int
    offers: list[bytes]


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Finish what is in flight, commit it, leave the group, exit 0."""


FromWorker = Hello | Status | Answer
FromSupervisor = Ask | Stop

_Received = TypeVar("_Received")


class Link(Generic[_Received]):
    """One end of the line. Iterate over what arrives; the iteration ends with the other side."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: msgspec.msgpack.Decoder[_Received],
    ):
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._sending = asyncio.Lock()

    async def send(self, message: FromWorker | FromSupervisor) -> bool:
        """Send a message, waiting while the other side is slow; False when it is gone.

        A dead other side is no error here: the iteration reports it, once. Raises LinkError for a
        message beyond MOST_FRAME_BYTES.
        """
        body = self._encoder.encode(message)
        if len(body) > MOST_FRAME_BYTES:
            raise LinkError(f"a frame of {len(body)} bytes is over the bound of {MOST_FRAME_BYTES}")
        if self._writer.is_closing():
            return False
        try:
            # A frame is handed over in one piece, so a cancelled wait never cuts one in two.
            self._writer.write(_LENGTH.pack(len(body)) + body)
            async with self._sending:
                await self._writer.drain()
        except (OSError, RuntimeError):  # closed, by them or by us
            return False
        return True

    async def receive(self) -> _Received | None:
        """Give the next message, or None when the other side is gone.

        A side that dies in the middle of a frame is gone, too. Raises LinkError for a frame beyond
        the bound or of no known kind; the stream is of no use after that.
        """
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > MOST_FRAME_BYTES:
                raise LinkError(
                    f"a frame of {length} bytes is over the bound of {MOST_FRAME_BYTES}"
                )
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise LinkError(f"a frame does not decode: {error}") from error

    def __aiter__(self) -> AsyncIterator[_Received]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[_Received]:
        while (message := await self.receive()) is not None:
            yield message

    async def close(self) -> None:
        """Close this end; the other side's iteration ends."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class WorkerLink(Link[FromSupervisor]):
    """The worker's end."""

    @classmethod
    async def connect(cls, path: Path, slot: int, pid: int) -> WorkerLink:
        """Connect to the supervisor's socket and say Hello. Raises OSError where nobody listens."""
        reader, writer = await asyncio.open_unix_connection(path)
        link = cls(reader, writer, msgspec.msgpack.Decoder(FromSupervisor))
        await link.send(Hello(slot, pid))
        return link

    async def send_status(self, status: Status) -> bool:
        return await self.send(status)

    async def answer(self, ask: int, results: list[Result]) -> bool:
        """Give the results for the Ask with that id, one an offer, in the order of its offers."""
        return await self.send(Answer(ask, results=results))

    async def refuse(self, ask: int, error: str, *, retry: bool) -> bool:
        """Say in one line why that Ask has no answer, and whether to ask again elsewhere."""
        return await self.send(Answer(ask, error=error, retry=retry))


class SupervisorLink(Link[FromWorker]):
    """The supervisor's end of one worker's line."""

    @classmethod
    def accept(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> SupervisorLink:
        return cls(reader, writer, msgspec.msgpack.Decoder(FromWorker))
