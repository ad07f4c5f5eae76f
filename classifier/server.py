"""The HTTP server: uvicorn, with this service's bounds, and no say in when the process ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


class Server(uvicorn.Server):
    """A server that leaves the signals to others and says when it is `up`."""

    def __init__(self, app: FastAPI):
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                http="h11",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=2,
                h11_max_incomplete_event_size=16_384,
            )
        )
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()
