"""Dead letters: the original bytes with the reason why, written for as long as it takes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from hypothesis import given
from hypothesis import strategies as st

from classifier import metrics, patience
from classifier.client import ClientError
from classifier.deadletter import (
    HEADER_BYTES,
    KEY_BYTES,
    SMALLEST_CUT,
    DeadLetters,
    cut,
    headers,
)
from classifier.metrics import Metrics
from classifier.outage import Outages
from classifier.patience import AbandonedError
from classifier.record import Reason, Reject
from tests.classifier.records import TIMESTAMP, Record


def always() -> bool:
    return True


def reject(
    value: bytes | None = b"{",
    key: bytes | None = None,
    reason: Reason = Reason.JSON,
    detail: str = "truncated",
    **place: Any,
) -> Reject:
    return Reject(Record(value, key, **place), reason, detail)


class Office:
    """Dead letters over a producer, and what was said of the world."""

    def __init__(self, producer: Any, topic: str, most_bytes: int = 900_000) -> None:
        self.outages = Outages()
        self.metrics: Metrics = metrics.in_process()
        self.heard: list[list[str]] = []
        self.outages.on_change = lambda: self.heard.append(self.outages.services)
        self.letters = DeadLetters(producer, topic, most_bytes, self.outages, self.metrics)

    async def send(self, *rejects: Reject, wanted: Callable[[], bool] = always) -> None:
        await self.letters.send(rejects, wanted)


@pytest.fixture
async def producer(kafka: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=kafka, acks="all", max_request_size=100_000)
    await producer.start()
    yield producer
    await producer.stop()


@pytest.fixture
def office(producer: AIOKafkaProducer, topic: str) -> Office:
    return Office(producer, f"{topic}.dead-letters")


async def read(kafka: str, topic: str) -> list[ConsumerRecord]:
    """Every dead letter in the topic."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partition = TopicPartition(f"{topic}.dead-letters", 0)
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        records: list[ConsumerRecord] = []
        while len(records) < end:
            for got in (await consumer.getmany(timeout_ms=500)).values():
                records += got
        return records
    finally:
        await consumer.stop()


async def test_dead_letter_is_the_original_with_its_place_and_reason(
    kafka: str, topic: str, office: Office
) -> None:
    await office.send(
        reject(
            b'{"offer_id": 5}\x00\xff',
            b"k\xff",
            Reason.SCHEMA,
            "Expected `str`, got `int` - at `$.offer_id`",
            topic="offers-2",
            partition=3,
            offset=77,
            headers=(("trace", b"\xff\x00"), ("topic", b"elsewhere")),
        )
    )
    (letter,) = await read(kafka, topic)
    assert letter.value == b'{"offer_id": 5}\x00\xff'
    assert letter.key == b"k\xff"
    assert list(letter.headers) == [
        ("topic", b"offers-2"),
        ("partition", b"3"),
        ("offset", b"77"),
        ("timestamp", str(TIMESTAMP).encode()),
        ("reason", b"not an offer"),
        ("error", b"Expected `str`, got `int` - at `$.offer_id`"),
        ("original.trace", b"\xff\x00"),
        ("original.topic", b"elsewhere"),
    ]
    assert office.heard == []


async def test_tombstone_and_missing_key_stay_what_they_are(
    kafka: str, topic: str, office: Office
) -> None:
    await office.send(reject(None, b"k\xff", Reason.ENCODING, offset=1))
    await office.send(reject(b"", None, offset=2))
    await office.send(reject(b"[]", b"", offset=3))
    letters = await read(kafka, topic)
    assert [(letter.value, letter.key) for letter in letters] == [
        (None, b"k\xff"),
        (b"", None),
        (b"[]", b""),
    ]


async def test_all_are_acknowledged_before_anything_goes_on(
    kafka: str, topic: str, office: Office
) -> None:
    await office.send(*(reject(str(n).encode(), offset=n) for n in range(500)))
    letters = await read(kafka, topic)
    assert sorted(int(letter.value) for letter in letters) == list(range(500))
    assert all(dict(letter.headers)["offset"] == letter.value for letter in letters)


async def test_nothing_to_set_aside_is_no_work() -> None:
    await Office(None, "nowhere").send()


# Too large


async def test_value_over_the_limit_is_cut_and_says_so(
    kafka: str, topic: str, producer: AIOKafkaProducer
) -> None:
    office = Office(producer, f"{topic}.dead-letters", most_bytes=2_000)
    value = bytes(range(256)) * 20
    await office.send(reject(value, b"k"), reject(value[:2_000], b"fits"))
    letters = {letter.key: letter for letter in await read(kafka, topic)}
    told = dict(letters[b"k"].headers)
    assert letters[b"k"].value == value[:2_000]
    assert told["cut"] == b"5120"
    assert told["sha256"] == hashlib.sha256(value).hexdigest().encode()
    assert letters[b"fits"].value == value[:2_000]
    assert "cut" not in dict(letters[b"fits"].headers)


async def test_letter_that_the_topic_refuses_for_its_size_is_cut_further(
    kafka: str, topic: str, office: Office
) -> None:
    value = b"x" * 300_000
    await office.send(reject(value), reject(b"small"))
    large, small = sorted(await read(kafka, topic), key=lambda letter: -len(letter.value))
    assert small.value == b"small"
    assert large.value == value[: 900_000 // 16]
    assert dict(large.headers)["cut"] == b"300000"
    assert office.heard == []


async def test_long_key_is_cut_with_the_hash_of_the_whole(
    kafka: str, topic: str, office: Office
) -> None:
    fits, long = b"k" * KEY_BYTES, b"k" * (KEY_BYTES + 1)
    await office.send(reject(key=fits))
    await office.send(reject(key=long))
    kept, replaced = await read(kafka, topic)
    assert kept.key == fits
    assert replaced.key == fits
    told = dict(replaced.headers)
    assert told["key_sha256"] == hashlib.sha256(long).hexdigest().encode()
    assert told["offset"] == b"0"


async def test_tombstone_with_an_endless_key_is_a_dead_letter(
    kafka: str, topic: str, office: Office
) -> None:
    await office.send(reject(None, key=b"\xff" * 5_000))
    (letter,) = await read(kafka, topic)
    assert (letter.key, letter.value) == (b"\xff" * KEY_BYTES, None)


async def test_large_headers_of_the_record_are_left_out(
    kafka: str, topic: str, office: Office
) -> None:
    fits = (("a", b"x" * (HEADER_BYTES - 1)),)
    large = (("a", b"x" * 50_000), ("revision", b"7"), ("b", b"y" * 50_000))
    await office.send(reject(headers=fits))
    await office.send(reject(headers=large))
    kept, left_out = await read(kafka, topic)
    assert dict(kept.headers)["original.a"] == fits[0][1]
    told = dict(left_out.headers)
    assert told["headers_cut"] == b"100011"
    assert told["reason"] == b"malformed JSON"
    assert [name for name in told if name.startswith("original.")] == ["original.revision"]


@given(st.none() | st.binary(max_size=50), st.integers(0, 60))
def test_cut_keeps_the_beginning_within_the_limit(value: bytes | None, most: int) -> None:
    kept, told = cut(value, most)
    if value is None or len(value) <= most:
        assert (kept, told) == (value, [])
    else:
        assert kept == value[:most]
        assert dict(told)["cut"] == str(len(value)).encode()


def test_every_reason_and_any_detail_fit_in_a_header() -> None:
    for reason in Reason:
        named = dict(headers(reject(reason=reason, detail="\ud83d" + "é" * 5_000)))
        assert named["reason"] == reason.value.encode()
        assert named["error"].decode().startswith("?é")
        assert len(named["error"]) < 2_100


# The world at fault


class Failing:
    """Stands in for a producer that fails in given ways before it succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.sent: list[bytes | None] = []
        self._sender = mock.Mock()
        self._sender.sender_task.done.return_value = False

    async def send_and_wait(self, topic: str, value: bytes | None, **_: object) -> None:
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append(value)


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 0.01)


async def test_producer_whose_sender_has_ended_is_given_up() -> None:
    producer = Failing(KafkaConnectionError("gone"))
    producer._sender.sender_task.done.return_value = True
    with pytest.raises(ClientError, match="sender task has ended"):
        await Office(producer, "letters").send(reject())


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize(
    "error",
    [
        KafkaConnectionError("gone"),
        UnknownTopicOrPartitionError("no such topic"),
        RequestTimedOutError(),
        TimeoutError(),
    ],
)
async def test_topic_that_is_away_is_an_outage_and_the_letter_waits(error: Exception) -> None:
    producer = Failing(error, error)
    office = Office(producer, "dlq")
    await office.send(reject(b"value"))
    assert producer.sent == [b"value"]
    assert office.heard == [["dead-letters"], []]
    assert office.metrics.retries.value("dead_letters") == 2


@pytest.mark.usefixtures("_hasty")
async def test_topic_that_refuses_every_size_is_an_outage() -> None:
    producer = Failing(*(RecordTooLargeError() for _ in range(6)))
    office = Office(producer, "dlq", most_bytes=SMALLEST_CUT * 4)
    await office.send(reject(b"x" * 10_000))
    assert producer.sent == [b"x" * SMALLEST_CUT]
    assert office.heard == [["dead-letters"], []]


@pytest.mark.usefixtures("_hasty")
async def test_letter_is_abandoned_when_nobody_wants_it_any_more() -> None:
    producer = Failing(*(KafkaConnectionError("gone") for _ in range(10_000)))
    office = Office(producer, "dlq")
    # What was unwanted once stays so: an assignment that is gone does not come back.
    with pytest.raises(AbandonedError):
        await office.send(reject(b"1"), wanted=lambda: not office.heard)
    assert producer.sent == []
    assert office.heard == [["dead-letters"], []]


async def test_nothing_is_sent_when_nobody_wants_it() -> None:
    producer = Failing()
    with pytest.raises(AbandonedError):
        await Office(producer, "dlq").send(reject(), wanted=lambda: False)
    assert producer.sent == []
