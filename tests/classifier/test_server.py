"""The server says when it is up, bounds what it reads, and leaves the process's signals alone."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from classifier.server import Server


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """The port of a server of one endpoint, once it is up; stopped with the context."""
    app = FastAPI()

    @app.get("/")
    async def root() -> str:
        return "here"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(app)
        serving = asyncio.create_task(server.serve([listener]))
        await asyncio.wait_for(server.up.wait(), 10)
        yield int(listener.getsockname()[1])
        server.should_exit = True
        await asyncio.wait_for(serving, 10)


async def test_it_answers_once_it_is_up_and_does_not_name_itself() -> None:
    async with served() as port, httpx.AsyncClient() as client:
        response = await client.get(f"http://127.0.0.1:{port}/")
    assert response.json() == "here"
    assert "server" not in response.headers


async def test_the_signals_stay_whose_they_were() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    owners = [signal.getsignal(number) for number in numbers]
    async with served():
        assert [signal.getsignal(number) for number in numbers] == owners


async def test_a_head_without_an_end_is_refused() -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000)
        async with asyncio.timeout(10):
            assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
