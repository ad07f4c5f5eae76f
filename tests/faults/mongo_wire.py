"""The line between one machine's workers and MongoDB."""

from __future__ import annotations

import asyncio
import re
import struct
from dataclasses import dataclass
from typing import Any

import bson

from tests.faults.trace import Kind, Trace
from tests.faults.wire import Network, Wire

# https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/: size, request id, the id
# that is answered, opcode; of OP_MSG then flags, and sections of a document or of many.
_HEADER = struct.Struct("<iiii")
_INT = struct.Struct("<i")
_OP_MSG = 2013
_BODY = _HEADER.size + 4 + 1
_CHECKSUM = 1


@dataclass(frozen=True)
class Command:
    """One command of a client; `places` are those of the events that an update writes."""

    name: str
    places: tuple[tuple[int, int] | None, ...] = ()


class MongoWire(Wire[Command]):
    """Writes down which events MongoDB has acknowledged."""

    def __init__(self, network: Network, database_port: int, topic: str, trace: Trace) -> None:
        self._trace = trace
        length = _INT.pack(len(topic) + 1)
        # The source of an event, as it stands in its document and in a marker alike.
        self._source = re.compile(
            re.escape(b"\x02topic\0" + length + topic.encode() + b"\0")
            + rb"\x10partition\0(.{4})\x10offset\0(.{4})",
            re.DOTALL,
        )
        super().__init__(network, database_port)
        self.uri = f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        size = await reader.readexactly(_INT.size)
        return size + await reader.readexactly(_INT.unpack(size)[0] - _INT.size)

    def request(self, message: bytes) -> Command | None:
        if _HEADER.unpack_from(message)[3] != _OP_MSG or message[_BODY - 1] != 0:
            return None
        # The first key of the document is the name of the command.
        start = _BODY + _INT.size + 1
        name = message[start : message.index(b"\0", start)].decode()
        return Command(name, tuple(self._places(message)) if name == "update" else ())

    def pair(self, message: bytes) -> int:
        return int(_HEADER.unpack_from(message)[1])

    def pair_of_reply(self, reply: bytes) -> int:
        return int(_HEADER.unpack_from(reply)[2])

    def answered(self, request: Command, reply: bytes) -> bytes:
        if request.name == "update":
            result = document(reply)
            if result.get("ok") and "writeConcernError" not in result:
                refused = {error["index"] for error in result.get("writeErrors", ())}
                for index, place in enumerate(request.places):
                    if place is not None and index not in refused:
                        self._trace.add(Kind.WRITTEN, *place)
        return reply

    def _places(self, message: bytes) -> list[tuple[int, int] | None]:
        """Of each update where the event comes from; None of a probe."""
        flags = _INT.unpack_from(message, _HEADER.size)[0]
        end = len(message) - (4 if flags & _CHECKSUM else 0)
        section = _BODY + _INT.unpack_from(message, _BODY)[0]
        places: list[tuple[int, int] | None] = []
        while section < end:
            assert message[section] == 1, "a sequence of documents"
            after = section + 1 + _INT.unpack_from(message, section + 1)[0]
            at = message.index(b"\0", section + 5) + 1
            while at < after:
                size = _INT.unpack_from(message, at)[0]
                found = self._source.search(message, at, at + size)
                places.append(
                    None if found is None else (_INT.unpack(found[1])[0], _INT.unpack(found[2])[0])
                )
                at += size
            section = after
        return places


def document(reply: bytes) -> dict[str, Any]:
    """The document of an answer."""
    size = _INT.unpack_from(reply, _BODY)[0]
    decoded: dict[str, Any] = bson.decode(reply[_BODY : _BODY + size])
    return decoded


def with_document(reply: bytes, changed: dict[str, Any]) -> bytes:
    """The answer with another document."""
    content = bson.encode(changed)
    _, request, answers, opcode = _HEADER.unpack_from(reply)
    flags_and_kind = b"\0\0\0\0\0"
    size = _HEADER.size + len(flags_and_kind) + len(content)
    return _HEADER.pack(size, request, answers, opcode) + flags_and_kind + content
