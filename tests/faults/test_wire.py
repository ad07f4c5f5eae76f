"""The proxies see what passes, and break it as they say."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.produce import ProduceRequest
from pymongo import MongoClient, UpdateOne

from classifier.demo import servers
from tests.conftest import SERVERS
from tests.faults.kafka_wire import COMMIT, PRODUCE, KafkaWire, change, decode, refuse
from tests.faults.mongo_wire import MongoWire, document, with_document
from tests.faults.trace import Kind, Trace
from tests.faults.wire import Mode, Network
from tests.integration.proxy import Request

TOPIC = "offers"


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


def port(address: str) -> int:
    if SERVERS:
        pytest.skip("the lines to the servers in the environment are not broken on purpose")
    return int(address.removeprefix("mongodb://").partition("/")[0].rpartition(":")[2])


@pytest.fixture
def mongo_wire(network: Network, mongodb: str) -> Iterator[MongoWire]:
    wire = MongoWire(network, port(mongodb), TOPIC, Trace())
    yield wire
    wire.close()


@pytest.fixture
async def kafka_wire(network: Network, kafka: str) -> Any:
    topic = f"test-{uuid.uuid4().hex}"
    await servers.create_topic(kafka, topic, 2)
    wire = KafkaWire(network, port(kafka), topic, f"{topic}.dead-letters", Trace())
    yield wire, topic
    wire.close()


def write(topic: str, offset: int) -> UpdateOne:
    source = {"topic": topic, "partition": 3, "offset": offset}
    replacement = {"$literal": {"_id": f"o{offset}", "source": source, "x": offset}}
    return UpdateOne({"_id": f"o{offset}"}, [{"$replaceWith": replacement}], upsert=True)


def test_writes_are_seen_once_they_are_acknowledged(mongo_wire: MongoWire, database: str) -> None:
    with MongoClient[dict[str, Any]](mongo_wire.uri, retryWrites=False) as client:
        offers = client[database]["offers"]
        offers.bulk_write([write(TOPIC, 70_000), write("others", 8), write(TOPIC, 9)])
        assert [tuple(step) for step in mongo_wire._trace] == [
            (Kind.WRITTEN, 3, 70_000),
            (Kind.WRITTEN, 3, 9),
        ]
        offers.create_index("x", unique=True)
        twice = UpdateOne({"_id": "other"}, [{"$set": {"x": 9}}], upsert=True)
        with pytest.raises(pymongo.errors.BulkWriteError):
            offers.bulk_write([twice, write(TOPIC, 10)], ordered=False)
        assert [step.offset for step in mongo_wire._trace] == [70_000, 9, 10]


@pytest.mark.parametrize("mode", ["refused", "silent", "deaf"])
def test_line_that_is_broken_and_mended(mongo_wire: MongoWire, database: str, mode: Mode) -> None:
    with MongoClient[dict[str, Any]](
        mongo_wire.uri, socketTimeoutMS=300, serverSelectionTimeoutMS=300, retryWrites=False
    ) as client:
        offers = client[database]["offers"]
        offers.bulk_write([write(TOPIC, 1)])
        with mongo_wire.under(mode), pytest.raises(pymongo.errors.PyMongoError):
            offers.bulk_write([write(TOPIC, 2)])
        assert [step.offset for step in mongo_wire._trace] == [1]
        deadline = time.monotonic() + 20
        while True:
            try:
                offers.bulk_write([write(TOPIC, 3)])
                break
            except pymongo.errors.PyMongoError:
                assert time.monotonic() < deadline
        assert [step.offset for step in mongo_wire._trace] == [1, 3]
        # Only a deaf line carries the request.
        assert offers.count_documents({"_id": "o2"}) == (mode == "deaf")


def test_answer_is_changed_on_its_way(mongo_wire: MongoWire, database: str) -> None:
    def rewrite(request: object, reply: bytes) -> bytes:
        return with_document(reply, document(reply) | {"ok": 0.0, "code": 11_601, "errmsg": "no"})

    with MongoClient[dict[str, Any]](mongo_wire.uri, retryWrites=False) as client:
        client.admin.command("ping")
        mongo_wire.rewrites.append(rewrite)
        with pytest.raises(pymongo.errors.OperationFailure, match="no"):
            client.admin.command("ping")
        with pytest.raises(pymongo.errors.PyMongoError):
            client[database]["offers"].bulk_write([write(TOPIC, 1)])
    assert not len(mongo_wire._trace)


async def test_commits_and_dead_letters_are_seen(kafka_wire: tuple[KafkaWire, str]) -> None:
    wire, topic = kafka_wire
    producer = AIOKafkaProducer(bootstrap_servers=wire.bootstrap, acks="all")
    await producer.start()
    headers = [("partition", b"1"), ("offset", b"41")]
    await producer.send_and_wait(topic, b"x", partition=1)
    await producer.send_and_wait(f"{topic}.dead-letters", b"x", headers=headers)
    await producer.stop()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=wire.bootstrap, group_id=topic, enable_auto_commit=False
    )
    await consumer.start()
    partition = TopicPartition(topic, 1)
    consumer.assign([partition])
    await consumer.commit({partition: 1})
    await consumer.stop()
    assert [tuple(step) for step in wire._trace] == [
        (Kind.SET_ASIDE, 1, 41),
        (Kind.COMMIT, 1, 1),
    ]
    assert wire._trace.committed == {1: 1}


@pytest.mark.parametrize("version", ProduceRequest._CLASSES)
def test_refused_produce_of_every_version(version: Any) -> None:
    content = {
        "transactional_id": None,
        "required_acks": -1,
        "timeout": 1,
        "topics": [("a", [(0, b""), (5, b"")]), ("b", [(1, b"")])],
    }
    body = version.SCHEMA.encode([content[name] for name in version.SCHEMA.names])
    request = Request(PRODUCE, version.API_VERSION, 77, "c", body)
    reply = refuse(request, 19)
    assert int.from_bytes(reply[:4], "big") == len(reply) - 4
    assert int.from_bytes(reply[4:8], "big") == 77
    told = {
        (topic, number): code
        for topic, partitions in decode(request, reply)["topics"]
        for number, code, *_ in partitions
    }
    assert told == {("a", 0): 19, ("a", 5): 19, ("b", 1): 19}


@pytest.mark.parametrize("version", OffsetCommitRequest._CLASSES)
def test_refused_commit_can_be_changed_again(version: Any) -> None:
    body = version.SCHEMA.encode(["g", 1, "m", -1, [("a", [(0, 9, "")])]])
    request = Request(COMMIT, version.API_VERSION, 78, "c", body)
    reply = change(request, refuse(request, 16), {"error_code": lambda around: around["partition"]})
    assert decode(request, reply)["topics"] == [("a", [(0, 0)])]
