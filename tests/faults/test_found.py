"""What campaigns have found, each made small: it holds from now on."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest
from aiokafka import AIOKafkaProducer

from classifier import deadletter, metrics
from classifier.deadletter import DeadLetters
from classifier.outage import Outages
from classifier.patience import AbandonedError
from classifier.record import Reason, Reject
from tests.classifier.records import Record
from tests.conftest import SERVERS
from tests.faults.kafka_wire import KafkaWire
from tests.faults.trace import Trace
from tests.faults.wire import Network


async def test_dead_letter_without_an_answer_is_a_named_outage_and_is_given_up_when_not_wanted(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a half-open connection the client waits for 40 seconds, and says nothing meanwhile."""
    if SERVERS:
        pytest.skip("the lines to the servers in the environment are not broken on purpose")
    monkeypatch.setattr(deadletter, "ANSWER_SECONDS", 0.5)
    network = Network()
    topic = f"test-{uuid.uuid4().hex}"
    wire = KafkaWire(network, int(kafka.rpartition(":")[2]), topic, topic, Trace())
    outages, wanted = Outages(), True
    producer = AIOKafkaProducer(bootstrap_servers=wire.bootstrap, acks="all")
    await producer.start()
    letters = DeadLetters(producer, topic, 10_000, outages, metrics.in_process())
    reject = Reject(Record(b"{"), Reason.JSON, "truncated")
    try:
        await letters.send([reject], lambda: True)
        with wire.under("silent"):
            sending = asyncio.create_task(letters.send([reject], lambda: wanted))
            await asyncio.wait({sending}, timeout=3)
            assert outages.services == ["dead-letters"]
            wanted = False
            began = time.monotonic()
            with pytest.raises(AbandonedError):
                await sending
            assert time.monotonic() - began < 3
            assert outages.services == []
    finally:
        await asyncio.gather(asyncio.wait_for(producer.stop(), 1), return_exceptions=True)
        await producer.client.close()  # what was sent last keeps it from stopping by itself
        wire.close()
        network.close()
