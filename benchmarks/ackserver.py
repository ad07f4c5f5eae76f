"""A server that speaks MongoDB's wire protocol, parses every bulk write, and only acknowledges.

The database's speed is not the worker's: against this one the worker's own price is what is left.
It remembers which `_id`s were written, so that a benchmark can demand that every offer arrived.

    python -m benchmarks.ackserver PORT
"""

from __future__ import annotations

import asyncio
import struct
import sys
from datetime import UTC, datetime
from itertools import count
from typing import Any

import bson

HEADER = struct.Struct("<iiii")
OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013


class AckServer:
    """Counts what is written. `ids` are the distinct `_id`s, `updates` all updates."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.updates = 0
        self._replies = count(1)

    async def serve(self, port: int) -> None:
        """Listens on localhost until cancelled."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, limit=1 << 26)
        async with server:
            await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length, request, _, opcode = HEADER.unpack(await reader.readexactly(HEADER.size))
                body = await reader.readexactly(length - HEADER.size)
                if opcode == OP_MSG:
                    command, sequences = _message(body)
                    answer = b"\0\0\0\0\0" + bson.encode(self._answer(command, sequences))
                    reply = OP_MSG
                else:
                    start = body.index(b"\0", 4) + 9
                    answer = struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(
                        self._answer(bson.decode(body[start:]), {})
                    )
                    reply = OP_REPLY
                size = HEADER.size + len(answer)
                writer.write(HEADER.pack(size, next(self._replies), request, reply) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, command: dict[str, Any], sequences: dict[str, list[bytes]]) -> dict[str, Any]:
        name = next(iter(command))
        if name == "update":
            return self._update(command, sequences)
        if name == "written":
            return {"ok": 1.0, "ids": len(self.ids), "updates": self.updates}
        if name.lower() in {"hello", "ismaster"}:
            return {
                "ok": 1.0,
                "ismaster": True,
                "isWritablePrimary": True,
                "helloOk": True,
                "maxBsonObjectSize": 16 << 20,
                "maxMessageSizeBytes": 48_000_000,
                "maxWriteBatchSize": 100_000,
                "localTime": datetime.now(UTC),
                "logicalSessionTimeoutMinutes": 30,
                "minWireVersion": 0,
                "maxWireVersion": 21,
            }
        return {"ok": 1.0}

    def _update(self, command: dict[str, Any], sequences: dict[str, list[bytes]]) -> dict[str, Any]:
        statements = sequences.get("updates") or [bson.encode(s) for s in command["updates"]]
        upserted = []
        for index, statement in enumerate(statements):
            update = bson.decode(statement)
            offer_id = update["q"]["_id"]["$eq"]
            if not update["u"][0]["$replaceWith"]:
                raise ValueError(f"no replacement for {offer_id!r}")
            if offer_id not in self.ids:
                self.ids.add(offer_id)
                upserted.append({"index": index, "_id": offer_id})
        self.updates += len(statements)
        matched = len(statements) - len(upserted)
        reply: dict[str, Any] = {"ok": 1.0, "n": len(statements), "nModified": matched}
        if upserted:
            reply["upserted"] = upserted
        return reply


def _message(body: bytes) -> tuple[dict[str, Any], dict[str, list[bytes]]]:
    """The command of an OP_MSG, and its document sequences by name, each document's bytes."""
    command: dict[str, Any] = {}
    sequences: dict[str, list[bytes]] = {}
    at = 4  # the flags
    while at < len(body):
        kind, at = body[at], at + 1
        (size,) = struct.unpack_from("<i", body, at)
        if kind == 0:
            command = bson.decode(body[at : at + size])
        else:
            end = body.index(b"\0", at + 4)
            documents: list[bytes] = []
            place = end + 1
            while place < at + size:
                (length,) = struct.unpack_from("<i", body, place)
                documents.append(body[place : place + length])
                place += length
            sequences[body[at + 4 : end].decode()] = documents
        at += size
    return command, sequences


if __name__ == "__main__":
    asyncio.run(AckServer().serve(int(sys.argv[1])))
