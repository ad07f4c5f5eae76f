"""A network between the clients and a broker that breaks on demand, and a coordinator that says no.

All traffic of the clients passes here when the broker advertises the proxy's address. Requests are
read one by one, so that single ones can be answered in the broker's place, and looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka.protocol.api import RequestHeader_v1
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.structs import TopicPartition

_SIZE = struct.Struct(">i")
_PATIENCE = 10.0
_COMMITS = {version.API_VERSION: version for version in OffsetCommitRequest._CLASSES}

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One request of a client; `body` is what comes after the header."""

    api: int
    version: int
    correlation: int
    client: str
    body: bytes

    @classmethod
    def read(cls, frame: bytes) -> Request:
        data = io.BytesIO(frame)
        api, version, correlation, client = RequestHeader_v1.SCHEMA.decode(data)
        return cls(api, version, correlation, client or "", data.read())

    @property
    def leaves(self) -> bool:
        """Whether a member leaves its group."""
        return bool(self.api == LeaveGroupRequest.API_KEY)

    @property
    def commit(self) -> Commit | None:
        """What it asks to commit, if that is what it asks."""
        if self.api != OffsetCommitRequest.API_KEY:
            return None
        schema = _COMMITS[self.version].SCHEMA
        _, generation, member, _, topics = schema.decode(io.BytesIO(self.body))
        return Commit(
            generation,
            member,
            {
                TopicPartition(topic, partition): offset
                for topic, partitions in topics
                for partition, offset, _ in partitions
            },
        )

    def refuse_commit(self, code: int) -> bytes:
        """The coordinator's answer with one error code for every partition."""
        commit = self.commit
        assert commit is not None
        topics: dict[str, list[tuple[int, int]]] = {}
        for partition in commit.offsets:
            topics.setdefault(partition.topic, []).append((partition.partition, code))
        throttle = (0,) if self.version >= 3 else ()
        schema = _COMMITS[self.version].RESPONSE_TYPE.SCHEMA
        content: bytes = schema.encode((*throttle, list(topics.items())))
        return _SIZE.pack(self.correlation) + content


@dataclass(frozen=True)
class Commit:
    """One request to commit offsets."""

    generation: int
    member: str
    offsets: dict[TopicPartition, int]

    @property
    def is_progress(self) -> bool:
        """Whether it says more than where a group begins."""
        return any(self.offsets.values())


class Proxy:
    """A proxy on a port of the loopback interface that it keeps, in a thread of its own."""

    def __init__(self, upstream_port: int, seat: socket.socket) -> None:
        """`seat` is bound, and is where the clients come to."""
        self._upstream_port = upstream_port
        self._seat = seat
        self.port: int = seat.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.answer: Callable[[Request], bytes | None] = lambda _: None
        """Asked before each request is forwarded; what it gives is the answer, and nothing is."""
        self.forwarded: list[Request] = []
        """Every commit and every leave that reached the broker."""
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._silent: list[asyncio.StreamWriter] = []
        self._hangs = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self.restore()

    @property
    def commits(self) -> list[Commit]:
        """The commits that reached the broker."""
        return [commit for request in self.forwarded if (commit := request.commit)]

    def cut(self) -> None:
        """Resets every connection and refuses new ones, as a machine that was switched off."""
        self._run(self._cut())

    def hang(self) -> None:
        """Keeps every connection and takes new ones, and never says a word on any of them.

        Those of now stay silent for ever, as after a firewall that lost its memory.
        """
        self._run(self._hang())

    def restore(self) -> None:
        """Forwards what new connections say."""
        self._run(self._restore())

    def close(self) -> None:
        self._run(self._cut())
        self._seat.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    async def _cut(self) -> None:
        self._hangs = False
        if self._server is not None:
            self._server.close()
            self._server = None
            # Bound and not listening: connections are refused, and nobody else takes the port.
            self._seat = _seat(self.port)
        for writer in await self._end_connections():
            writer.transport.abort()
        for writer in self._silent:
            writer.transport.abort()
        self._silent.clear()

    async def _hang(self) -> None:
        self._hangs = True
        self._silent += await self._end_connections()

    async def _restore(self) -> None:
        self._hangs = False
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, sock=self._seat)

    async def _end_connections(self) -> list[asyncio.StreamWriter]:
        """Forwards nothing more, and gives the clients' ends, which stay open."""
        ended = dict(self._connections)
        self._connections.clear()
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        return list(ended.values())

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._hangs:
            self._silent.append(writer)
            return
        task = asyncio.create_task(self._forward(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        writer = self._connections.pop(task, None)
        if writer is not None:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        # Kafka answers in the order of the requests: ours by their bytes, the broker's by None.
        answers: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def ask() -> None:
            while True:
                frame = await _frame(reader)
                request = Request.read(frame)
                answer = self.answer(request)
                if answer is None:
                    upstream.write(_SIZE.pack(len(frame)) + frame)
                    await upstream.drain()
                    if request.leaves or request.commit:
                        self.forwarded.append(request)
                answers.put_nowait(answer)

        async def reply() -> None:
            while True:
                answer = await answers.get() or await _frame(upstream_reader)
                writer.write(_SIZE.pack(len(answer)) + answer)
                await writer.drain()

        ways = [asyncio.create_task(ask()), asyncio.create_task(reply())]
        try:
            with contextlib.suppress(OSError, EOFError):
                await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            upstream.transport.abort()


def _seat(port: int) -> socket.socket:
    seat = socket.socket()
    seat.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    seat.bind(("127.0.0.1", port))
    return seat


def seat() -> socket.socket:
    """Any free port of the loopback interface, taken."""
    return _seat(0)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return await reader.readexactly(size)
