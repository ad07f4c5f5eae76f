from __future__ import annotations

import gzip
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from classifier import jsonl, produce
from classifier.demo import servers
from classifier.produce import Counts, Record

LINES = [
    b'{"offer_id":"a","title":"Kettle"}',
    b'{"title":"no id"}',
    b"not json",
    b'{"offer_id":7}',
    '{"offer_id":"ü","title":"Toaster"}'.encode(),
]


async def read_all(kafka: str, topic: str) -> list[ConsumerRecord]:
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        while len(records) < sum(ends.values()):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                records += batch
        return records
    finally:
        await consumer.stop()


@pytest.mark.parametrize("name", ["offers.jsonl", "offers.jsonl.gz", "misnamed.jsonl"])
def test_every_line_is_a_record_as_it_stands(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    content = b"\r\n".join([*LINES, b"", b"  "])
    path.write_bytes(content if name == "offers.jsonl" else gzip.compress(content))
    records = list(produce.from_file(path))
    assert [record.value for record in records] == LINES
    assert [record.key for record in records] == [b"a", None, None, None, "ü".encode()]


def test_reading_tells_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "offers.jsonl"
    path.write_bytes(b"\n".join(LINES))
    told: list[int] = []
    assert len(list(produce.from_file(path, told.append))) == len(LINES)
    assert told[-1] == path.stat().st_size


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        (gzip.compress(b"{}\n" * 99, mtime=0)[:-9], "damaged gzip, or cut short"),
    ],
)
def test_unreadable_file_is_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "offers.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(jsonl.FileError, match=said) as caught:
        list(produce.from_file(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_endless_line_is_cut_and_the_next_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "LINE_BYTES", 10)
    path = tmp_path / "offers.jsonl"
    path.write_bytes(b"x" * 35 + b"\n" + b"y" * 9 + b"\nz\n" + b"x" * 10 + b"\nlast")
    assert list(jsonl.read(path)) == [b"x" * 10, b"y" * 9, b"z", b"x" * 10, b"last"]


async def test_records_arrive_with_keys_headers_and_times(kafka: str, topic: str) -> None:
    records = [
        Record(b"a", b"1"),
        Record(None, b"2"),
        Record(b"a", None, (("revision", b"3"),), timestamp_ms=1_700_000_000_123),
    ]
    told: list[Counts] = []
    counts = await produce.produce(
        records, topic, {"bootstrap_servers": kafka}, on_progress=told.append
    )
    assert (counts.sent, counts.without_id, counts.too_large) == (3, 1, 0)
    assert told == [counts]
    arrived = {record.value: record for record in await read_all(kafka, topic)}
    assert {value: record.key for value, record in arrived.items()} == {
        b"1": b"a",
        b"2": None,
        None: b"a",
    }
    assert arrived[None].headers == (("revision", b"3"),)
    assert arrived[None].timestamp == 1_700_000_000_123
    assert arrived[b"1"].partition == arrived[None].partition
    assert arrived[b"1"].offset < arrived[None].offset


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_arrives(
    kafka: str, topic: str, compression: produce.Compression
) -> None:
    records = [Record(b"%d" % number, b"value %d" % number) for number in range(500)]
    client = {"bootstrap_servers": kafka}
    await produce.produce(records, topic, client, compression=compression)
    arrived = await read_all(kafka, topic)
    assert {record.value for record in arrived} == {record.value for record in records}


async def test_too_large_record_is_counted_and_costs_no_other(kafka: str, topic: str) -> None:
    records = [Record(b"a", b"1"), Record(b"b", b"x" * 3_000_000), Record(b"c", b"3")]
    counts = await produce.produce(records, topic, {"bootstrap_servers": kafka})
    assert (counts.sent, counts.too_large) == (2, 1)
    assert {record.value for record in await read_all(kafka, topic)} == {b"1", b"3"}


async def test_rate_is_kept(kafka: str, topic: str) -> None:
    started = time.perf_counter()
    counts = await produce.produce(
        (Record(b"a", b"%d" % number) for number in range(200)),
        topic,
        {"bootstrap_servers": kafka},
        rate=400,
    )
    assert counts.sent == 200
    assert 0.45 < time.perf_counter() - started < 2.0


async def test_records_are_not_drawn_ahead(kafka: str, topic: str) -> None:
    drawn: list[int] = []
    seen: list[tuple[int, int]] = []

    def records() -> Iterator[Record]:
        for number in range(10_000):
            drawn.append(number)
            yield Record(b"%d" % number, b"x")

    await produce.produce(
        records(),
        topic,
        {"bootstrap_servers": kafka},
        on_progress=lambda counts: seen.append((len(drawn), counts.sent)),
    )
    assert len(seen) == 5
    assert all(ahead == sent for ahead, sent in seen)


async def test_broker_that_is_away_is_one_line() -> None:
    server = f"127.0.0.1:{servers.free_port()}"
    with pytest.raises(produce.ProduceError, match=f"no Kafka broker answers at {server}"):
        await produce.produce([], uuid.uuid4().hex, {"bootstrap_servers": server})


def test_counts_are_said_with_what_went_wrong() -> None:
    assert produce.say(Counts(1_200, seconds=2.0)) == "1,200 records sent in 2.0 s"
    assert produce.say(Counts(5, 2, 1, 0.5)) == (
        "5 records sent in 0.5 s, 2 of them without a readable offer_id, 1 too large, not sent"
    )
