"""The line between one machine's workers and Kafka."""

from __future__ import annotations

import asyncio
import io
import struct
from typing import Any

from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.types import Array, Schema
from aiokafka.record.memory_records import MemoryRecords

from tests.faults.trace import Kind, Trace
from tests.faults.wire import Network, Wire
from tests.integration.proxy import Request

_SIZE = struct.Struct(">i")
_CORRELATION = 4

PRODUCE: int = ProduceRequest.API_KEY
FETCH: int = FetchRequest.API_KEY
LIST_OFFSETS: int = OffsetRequest.API_KEY
METADATA: int = MetadataRequest.API_KEY
COMMIT: int = OffsetCommitRequest.API_KEY
FIND_COORDINATOR: int = FindCoordinatorRequest.API_KEY
JOIN: int = JoinGroupRequest.API_KEY
SYNC: int = SyncGroupRequest.API_KEY
HEARTBEAT: int = HeartbeatRequest.API_KEY

_REQUESTS: dict[tuple[int, int], Any] = {
    (request.API_KEY, version.API_VERSION): version
    for request in (
        ProduceRequest,
        FetchRequest,
        OffsetRequest,
        MetadataRequest,
        OffsetCommitRequest,
        FindCoordinatorRequest,
        HeartbeatRequest,
    )
    for version in request._CLASSES
}


class KafkaWire(Wire[Request]):
    """Tells the clients that the broker is here, and writes down what they commit and set aside."""

    def __init__(
        self, network: Network, broker_port: int, topic: str, dead_letter_topic: str, trace: Trace
    ) -> None:
        self._topic = topic
        self._dead_letter_topic = dead_letter_topic
        self._trace = trace
        super().__init__(network, broker_port)
        self.bootstrap = f"127.0.0.1:{self.port}"

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        size = await reader.readexactly(_SIZE.size)
        return size + await reader.readexactly(*_SIZE.unpack(size))

    def request(self, message: bytes) -> Request:
        return Request.read(message[_SIZE.size :])

    def pair(self, message: bytes) -> int:
        return int.from_bytes(message[8:12], "big")

    def pair_of_reply(self, reply: bytes) -> int:
        return int.from_bytes(reply[4:8], "big")

    def asked(self, request: Request) -> None:
        commit = request.commit
        if commit is not None:
            for partition, offset in commit.offsets.items():
                if partition.topic == self._topic:
                    self._trace.add(Kind.COMMIT, partition.partition, offset)

    def answered(self, request: Request, reply: bytes) -> bytes:
        if request.api in (METADATA, FIND_COORDINATOR):
            return change(request, reply, {"host": "127.0.0.1", "port": self.port})
        if request.api == COMMIT:
            commit = request.commit
            assert commit is not None
            for topic, partitions in decode(request, reply)["topics"]:
                for number, error in partitions:
                    if topic == self._topic and not error:
                        self._trace.committed[number] = next(
                            offset
                            for partition, offset in commit.offsets.items()
                            if partition.partition == number
                        )
        elif request.api == PRODUCE:
            for partition, offset in self._set_aside(request, reply):
                self._trace.add(Kind.SET_ASIDE, partition, offset)
        return reply

    def _set_aside(self, request: Request, reply: bytes) -> list[tuple[int, int]]:
        """The places of the records whose dead letters are acknowledged."""
        acknowledged = {
            (topic, number)
            for topic, partitions in decode(request, reply)["topics"]
            for number, error, *_ in partitions
            if not error
        }
        places = []
        for topic, partitions in asked(request)["topics"]:
            for number, records in partitions:
                if topic != self._dead_letter_topic or (topic, number) not in acknowledged:
                    continue
                batches = MemoryRecords(bytes(records))
                while batches.has_next():
                    for record in batches.next_batch():
                        named = dict(record.headers)
                        places.append((int(named["partition"]), int(named["offset"])))
        return places


def asked(request: Request) -> dict[str, Any]:
    """The fields of a request."""
    schema = _REQUESTS[request.api, request.version].SCHEMA
    return dict(zip(schema.names, schema.decode(io.BytesIO(request.body)), strict=True))


def decode(request: Request, reply: bytes) -> dict[str, Any]:
    """The fields of the answer to a request."""
    schema = _REQUESTS[request.api, request.version].RESPONSE_TYPE.SCHEMA
    content = io.BytesIO(reply[_SIZE.size + _CORRELATION :])
    return dict(zip(schema.names, schema.decode(content), strict=True))


def refuse(request: Request, code: int) -> bytes:
    """The answer to a commit or a produce with one error code for every partition."""
    schema = _REQUESTS[request.api, request.version].RESPONSE_TYPE.SCHEMA
    topics = [
        (topic, [number for number, *_ in partitions])
        for topic, partitions in asked(request)["topics"]
    ]
    content: bytes = schema.encode(
        [
            [
                (
                    topic,
                    [
                        tuple(
                            {"partition": number, "error_code": code}.get(field, -1)
                            for field in _fields_of_a_partition(schema)
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in topics
            ]
            if name == "topics"
            else 0
            for name in schema.names
        ]
    )
    return (
        _SIZE.pack(_CORRELATION + len(content)) + request.correlation.to_bytes(4, "big") + content
    )


def _fields_of_a_partition(schema: Any) -> tuple[str, ...]:
    topic = schema.fields[schema.names.index("topics")].array_of
    names: tuple[str, ...] = topic.fields[topic.names.index("partitions")].array_of.names
    return names


def change(request: Request, reply: bytes, values: dict[str, Any]) -> bytes:
    """The answer with every field of these names changed, at any depth.

    A value that is callable gets what surrounds the field, by name, and gives what to put there.
    """
    schema = _REQUESTS[request.api, request.version].RESPONSE_TYPE.SCHEMA
    start = _SIZE.size + _CORRELATION
    content: bytes = schema.encode(
        _changed(schema, schema.decode(io.BytesIO(reply[start:])), values)
    )
    return _SIZE.pack(_CORRELATION + len(content)) + reply[_SIZE.size : start] + content


def _changed(kind: Any, value: Any, values: dict[str, Any]) -> Any:
    if isinstance(kind, Array):
        return value and [_changed(kind.array_of, one, values) for one in value]
    if isinstance(kind, Schema):
        around = dict(zip(kind.names, value, strict=True))
        return tuple(
            (values[name](around) if callable(values[name]) else values[name])
            if name in values
            else _changed(field, one, values)
            for name, field, one in zip(kind.names, kind.fields, value, strict=True)
        )
    return value
