"""A server that speaks MongoDB's wire protocol, parses every bulk write, and only acknowledges.

The database's speed is not the worker's: against this one the worker's own price is what is left.
It remembers which `_id`s were written and how often, so that a benchmark can demand that every
offer arrived, and refuses whatever is no guarded update of one document.

    python -m benchmarks.ackserver PORT
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import bson

HEADER = struct.Struct("<iiii")
OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013


FAILED_TO_PARSE = 9


class AckServer:
    """Counts what is written.

    `ids`: the distinct `_id`s of what stands there. `updates`: all the updates it took.
    `refused`: what was refused, the last time.
    """

    def __init__(self) -> None:
        self._writes: dict[str, int] = {}
        self.updates = 0
        self.refused = ""
        self._replies = count(1)

    @property
    def ids(self) -> Collection[str]:
        return self._writes.keys()

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
            return self._update(_statements(command, sequences, "updates"))
        if name == "delete":
            return self._delete(_statements(command, sequences, "deletes"))
        if name == "written":
            counts = {"ids": len(self.ids), "updates": self.updates, "refused": self.refused}
            return {"ok": 1.0, **counts}
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

    def _update(self, statements: Sequence[dict[str, Any]]) -> dict[str, Any]:
        upserted: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for index, statement in enumerate(statements):
            offer_id = _guarded_id(statement)
            if offer_id is None:
                self.refused = f"no guarded upsert of one document: {statement!r}"[:500]
                errors.append({"index": index, "code": FAILED_TO_PARSE, "errmsg": self.refused})
                continue
            if offer_id not in self._writes:
                self._writes[offer_id] = 0
                upserted.append({"index": index, "_id": offer_id})
            self._writes[offer_id] += 1
        taken = len(statements) - len(errors)
        self.updates += taken
        reply: dict[str, Any] = {"ok": 1.0, "n": taken, "nModified": taken - len(upserted)}
        if upserted:
            reply["upserted"] = upserted
        if errors:
            reply["writeErrors"] = errors
        return reply

    def _delete(self, statements: Sequence[dict[str, Any]]) -> dict[str, Any]:
        deleted = 0
        for statement in statements:
            for offer_id in statement["q"]["_id"]["$in"]:  # as the store takes its probes back
                writes = self._writes.pop(offer_id, 0)
                self.updates -= writes
                deleted += writes > 0
        return {"ok": 1.0, "n": deleted}


def _guarded_id(statement: dict[str, Any]) -> str | None:
    """The id of a guarded upsert of one document by its `_id` alone; None of anything else."""
    match statement:
        case {
            "q": {"_id": {"$eq": offer_id}, **more},
            "u": [{"$replaceWith": {"$cond": [guard, "$$ROOT", replacement]}}],
            "upsert": True,
        } if guard and not more:
            match replacement:
                case {"$literal": {"_id": written}} | {"_id": {"$literal": written}}:
                    return str(offer_id) if written == offer_id else None
    return None


def _statements(
    command: dict[str, Any], sequences: dict[str, list[bytes]], name: str
) -> list[dict[str, Any]]:
    """The updates or deletes of a command, wherever the driver has put them."""
    return [bson.decode(each) for each in sequences.get(name, ())] or command[name]


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
