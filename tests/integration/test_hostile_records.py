"""Records that somebody made to hurt, or by accident did: each costs itself, and no neighbour."""

from __future__ import annotations

import hashlib

import pytest
from aiokafka.consumer import fetcher
from aiokafka.producer import message_accumulator, producer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from classifier.model import Model
from classifier.offer import Offer
from tests.integration.harness import (
    Place,
    Record,
    classifications,
    dead_letters,
    done,
    offer,
    produce,
    until,
    working,
)

LARGEST = 20_000
"""Bytes of the largest record that is taken, in these tests."""
CUT = 5_000
"""Bytes of the value of a dead letter."""

GOODS = ["kettle", "sofa", "tent", "bicycle", "headphones", "olive oil", "dog food", "desk lamp"]


class NotUtf8(str):
    """A header's name as other clients may write it."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"caf\xe9"


def among_good_ones(hostile: list[Record]) -> list[Record]:
    """All in one partition, so that what one costs its neighbours shows."""
    records: list[Record] = []
    for number, record in enumerate(hostile):
        title = GOODS[number % len(GOODS)]
        good = {"value": offer(f"good-{number}", title=title), "key": b"good-%d" % number}
        records += [good, record]
    records.append({"value": offer("good-last", title="tent")})
    return [record | {"partition": 2} for record in records]


async def check_good_ones(place: Place) -> None:
    """Each has the category that its text has alone."""
    model = Model.load(place.model, threads=1)
    texts = [model.recipe.text(Offer("x", title=title)) for title in GOODS]
    alone = dict(zip(GOODS, model.predict(texts), strict=True))
    model.close()
    for offer_id, document in (await classifications(place)).items():
        if not offer_id.startswith("good-"):
            continue
        title = "tent" if offer_id == "good-last" else GOODS[int(offer_id[5:]) % len(GOODS)]
        expected = alone[title]
        assert expected is not None
        assert document["category_id"] == expected.category_id


async def test_keys_headers_and_sizes_beyond_reason(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_key, wild_key = b"k" * 5_000, b"\xff" * 5_000
    heavy = [(f"h{n}", b"x" * 2_000) for n in range(100)]
    large = offer("too-large", title="tent")
    large += b" " * (LARGEST + 1 - len(large))
    hostile: list[Record] = [
        {"key": long_key, "value": None},
        {"key": wild_key, "value": None},
        {"key": long_key, "value": b"{"},
        {"key": b"heavy", "value": offer("heavy"), "headers": heavy},
        {"key": b"heavy", "value": b"{", "headers": heavy},
        {"key": b"\xff\xfe", "value": offer("wild-key")},
        {"key": b"large", "value": large},
        {"key": b"fits", "value": large[:-1].replace(b"too-large", b"as-fits__")},
    ]
    records = among_good_ones(hostile)
    async with working(place.settings(record_bytes=LARGEST, dead_letter_bytes=CUT)) as worker:
        await produce(place, records)
        await done(place)
        assert worker.status().ready
    good = {f"good-{n}" for n in range(len(hostile))} | {"good-last"}
    assert set(await classifications(place)) == good | {"heavy", "wild-key", "as-fits__"}
    await check_good_ones(place)
    letters = {int(letter["offset"]) // 2: letter for letter in await dead_letters(place)}
    assert {number: letter["reason"] for number, letter in letters.items()} == {
        0: "not an offer",
        1: "not UTF-8",
        2: "malformed JSON",
        4: "malformed JSON",
        6: "too large",
    }
    for number, key in ((0, long_key), (1, wild_key), (2, long_key)):
        assert key.startswith(letters[number]["key"])
        assert 0 < len(letters[number]["key"]) < len(key)
        assert letters[number]["key_sha256"] == hashlib.sha256(key).hexdigest()
    assert letters[0]["value"] is None
    assert letters[4]["headers_cut"] == str(sum(len(name) + len(text) for name, text in heavy))
    assert letters[4]["original.h0"] == "x" * 2_000
    assert letters[6]["value"] == large[:CUT]
    assert letters[6]["cut"] == str(LARGEST + 1)
    assert letters[6]["sha256"] == hashlib.sha256(large).hexdigest()


async def test_header_name_that_is_not_utf8(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the client's own Python writes such a name, and the worker changes how all of this
    # process reads: both are put back.
    monkeypatch.setattr(fetcher, "MemoryRecords", fetcher.MemoryRecords)
    with monkeypatch.context() as patched:
        for module in (producer, message_accumulator):
            patched.setattr(module, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)
        hostile: list[Record] = [
            {"value": offer("named"), "headers": [(NotUtf8("name"), b"1")]},
            {"value": b"{", "headers": [(NotUtf8("name"), b"\xff")]},
        ]
        await produce(place, among_good_ones(hostile))
    async with working(place.settings()) as worker:
        await done(place)
        await until(lambda: worker.status().ready, "ready")
    assert set(await classifications(place)) == {"good-0", "good-1", "good-last", "named"}
    await check_good_ones(place)
    (letter,) = await dead_letters(place)
    assert letter["reason"] == "malformed JSON"
    assert letter["original.caf\ufffd"] == "\ufffd"


IDS = [
    "$where",
    "$set",
    "a.b",
    ".",
    "../x",
    "nul\x00inside",
    "\x00",
    " ",
    "i" * 512,
    "ü" * 512,
    "🪑" * 512,
    '{"$gt": ""}',
    "null",
    "42",
]


async def test_offer_ids_mean_nothing_to_anyone(place: Place) -> None:
    """They are stored as they are, found again, and removed by the same name."""
    hostile: list[Record] = [
        {"value": offer(offer_id, title="desk lamp", revision=1)} for offer_id in IDS
    ]
    async with working(place.settings()):
        await produce(place, among_good_ones(hostile))
        await done(place)
        stored = await classifications(place)
        good = {f"good-{n}" for n in range(len(hostile))} | {"good-last"}
        assert set(stored) == good | set(IDS)
        # One text, one answer, whatever the id.
        assert len({stored[offer_id]["text_hash"] for offer_id in IDS}) == 1
        await check_good_ones(place)
        gone: list[Record] = [
            {"key": offer_id.encode(), "value": None, "partition": 2} for offer_id in IDS
        ]
        await produce(place, gone)
        await done(place)
    stored = await classifications(place)
    assert {key for key, document in stored.items() if document["status"] == "removed"} == set(IDS)
    await check_good_ones(place)
    assert await dead_letters(place) == []
