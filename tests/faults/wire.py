"""Proxies on loopback between the workers of one machine and a server, which break on demand.

They pass whole messages, so that they can be slow by the byte, silent in one direction or both,
answer in the server's place, change what the server answered, and say which message is passing:
whoever wants a worker to die between its write and its commit, waits for that commit.

All run in one thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from tests.integration.proxy import _seat as take
from tests.integration.proxy import seat

_PATIENCE = 10.0
_PIECE = 16_384
"""Bytes between two pauses of a narrow line."""

Mode = Literal["open", "refused", "silent", "deaf"]
"""refused: connections are reset, and new ones refused. silent: they stay, new ones are taken, and
nobody ever says a word. deaf: requests arrive, and no answer comes back. What was silent or deaf
once stays so when the line is open again, as after a firewall that lost its memory.
"""

R = TypeVar("R")
T = TypeVar("T")


class Network:
    """The thread that all proxies of a campaign run in."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="network")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_PATIENCE)

    def call(self, function: Callable[[], T]) -> T:
        async def work() -> T:
            return function()

        return self.run(work())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_PATIENCE)
        self.loop.close()


@dataclass(eq=False)
class Connection:
    """A client's connection and ours to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    silent: bool = False
    deaf: bool = False

    @property
    def client_port(self) -> int:
        """The port of the worker's end, by which its process is found."""
        port: int = self.writer.get_extra_info("peername")[1]
        return port


Fate = Literal["pass", "drop"]


@dataclass(eq=False)
class Trap(Generic[R]):
    """Springs at the first message that it `wants`, before that passes on.

    Asked with the request and the message, which is the request's own or the answer to it. `spring`
    gets the port of the worker's end; the message then passes, or is dropped.
    """

    wants: Callable[[R, bytes], bool]
    spring: Callable[[int], None]
    fate: Fate = "pass"
    sprung: bool = False


class Wire(Generic[R]):
    """One proxy, on a port that it keeps; R is what a request is read as."""

    def __init__(self, network: Network, upstream_port: int) -> None:
        self._network = network
        self._upstream_port = upstream_port
        self._seat = seat()
        self.port: int = self._seat.getsockname()[1]
        self.latency = 0.0
        """Seconds that every message takes."""
        self.bandwidth = 0.0
        """Bytes a second; 0: no limit."""
        self.answers: list[Callable[[R], bytes | None]] = []
        """Asked before a request passes; what one gives is the answer, and nothing passes."""
        self.rewrites: list[Callable[[R, bytes], bytes]] = []
        """What becomes of an answer."""
        self.request_traps: list[Trap[R]] = []
        self.reply_traps: list[Trap[R]] = []
        """They spring at the answer to a request."""
        self._modes: list[Mode] = []
        self._mode: Mode = "open"
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Connection] = {}
        network.run(self._listen())

    @contextlib.contextmanager
    def under(self, mode: Mode) -> Iterator[None]:
        """In another mode for the time of the context; of several the last one holds."""
        self._modes.append(mode)
        self._network.run(self._set(self._modes[-1]))
        try:
            yield
        finally:
            self._modes.remove(mode)
            self._network.run(self._set(self._modes[-1] if self._modes else "open"))

    def close(self) -> None:
        self._network.run(self._set("refused"))
        self._seat.close()

    # What a protocol says

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """One message, whole."""
        raise NotImplementedError

    def request(self, message: bytes) -> R | None:
        """What a client's message asks; None passes by unseen."""
        raise NotImplementedError

    def asked(self, request: R) -> None:
        """Called as a request passes."""

    def answered(self, request: R, reply: bytes) -> bytes:
        """Called as an answer passes; gives what passes instead."""
        raise NotImplementedError

    def pair(self, message: bytes) -> int:
        """What ties a request to its answer."""
        raise NotImplementedError

    def pair_of_reply(self, reply: bytes) -> int:
        raise NotImplementedError

    # The line

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, sock=self._seat)

    async def _set(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "refused" and self._server is not None:
            self._server.close()
            self._server = None
            # Bound and not listening: connections are refused, and nobody else takes the port.
            self._seat = take(self.port)
            ended = list(self._connections)
            for task, connection in list(self._connections.items()):
                connection.writer.transport.abort()
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)
        elif mode != "refused" and self._server is None:
            await self._listen()
        for connection in self._connections.values():
            connection.silent |= mode == "silent"
            connection.deaf |= mode == "deaf"

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(
            reader, writer, silent=self._mode == "silent", deaf=self._mode == "deaf"
        )
        task = asyncio.create_task(self._carry(connection))
        self._connections[task] = connection
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task).writer.transport.abort()

    async def _carry(self, connection: Connection) -> None:
        try:
            if connection.silent:
                await self._sink(connection)
                return
            up_reader, up = await asyncio.open_connection(
                "127.0.0.1", self._upstream_port, limit=1 << 20
            )
        except OSError:
            return
        pending: dict[int, R] = {}
        ways = [
            asyncio.create_task(self._ask(connection, up, pending)),
            asyncio.create_task(self._reply(connection, up_reader, pending)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if not ways[0].done() and self._is_quiet(connection):
                # The server gave up on us; the client is told nothing.
                await asyncio.wait(ways[:1])
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            up.transport.abort()

    def _is_quiet(self, connection: Connection) -> bool:
        return connection.silent or connection.deaf

    async def _sink(self, connection: Connection) -> None:
        while await connection.reader.read(1 << 16):
            pass

    async def _ask(
        self, connection: Connection, up: asyncio.StreamWriter, pending: dict[int, R]
    ) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                message = await self.read(connection.reader)
                if connection.silent:
                    continue
                request = self.request(message)
                if request is not None:
                    if _sprung(self.request_traps, request, message, connection):
                        continue
                    own = next(filter(None, (answer(request) for answer in self.answers)), None)
                    if own is not None:
                        while pending:  # noqa: ASYNC110  answers come in the order of the requests
                            await asyncio.sleep(0.005)
                        await self._send(connection.writer, own)
                        continue
                    pending[self.pair(message)] = request
                    self.asked(request)
                await self._send(up, message)

    async def _reply(
        self, connection: Connection, up_reader: asyncio.StreamReader, pending: dict[int, R]
    ) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                reply = await self.read(up_reader)
                if connection.silent or connection.deaf:
                    continue
                request = pending.pop(self.pair_of_reply(reply), None)
                if request is not None:
                    if _sprung(self.reply_traps, request, reply, connection):
                        continue
                    for rewrite in self.rewrites:
                        reply = rewrite(request, reply)
                    reply = self.answered(request, reply)
                await self._send(connection.writer, reply)

    async def _send(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        if self.latency:
            await asyncio.sleep(self.latency)
        if self.bandwidth:
            for start in range(0, len(message), _PIECE):
                piece = message[start : start + _PIECE]
                await asyncio.sleep(len(piece) / self.bandwidth)
                writer.write(piece)
                await writer.drain()
        else:
            writer.write(message)
            await writer.drain()


def _sprung(traps: list[Trap[R]], request: R, message: bytes, connection: Connection) -> bool:
    """Springs the traps that wait for this; True where the message goes no further."""
    dropped = False
    for trap in traps:
        if not trap.sprung and trap.wants(request, message):
            trap.sprung = True
            trap.spring(connection.client_port)
            dropped |= trap.fate == "drop"
    return dropped
