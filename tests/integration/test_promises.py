"""The promises of the design, each by its name, over a real broker and a real database."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from classifier.model import Model
from classifier.offer import Offer
from tests.integration.harness import (
    Place,
    Service,
    classifications,
    committed,
    dead_letters,
    done,
    offer,
    produce,
    until,
    working,
)
from training.tiny import tiny_offers

Serve = Callable[[dict[str, object]], Service]

BAD = (
    b'{"offer_id": "cut-off", "title": "Ka',
    '{"offer_id": "latin", "title": "Caf\xe9 M\xfchle"}'.encode("latin-1"),
    '{"offer_id": "wide", "title": "Schrank"}'.encode("utf-16"),
    b"\x1f\x8b\x08\x00compressed",
    b"\x00\x00\x00\x00\x2a" + offer("framed"),
    b'["an", "array"]',
    b'"ok"',
    b"",
    b'{"title": "without an id"}',
    b'{"offer_id": "number", "title": 12345}',
    b'{"offer_id": "blank", "title": "  "}',
    b'{"offer_id": "barcode", "title": "4012345678901"}',
    b'{"offer_id": "nan", "title": "Schrank", "price": NaN}',
    b'{"offer_id": "deep", "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
)


async def test_every_record_is_accounted_for_though_workers_are_killed(
    place: Place, serve: Serve
) -> None:
    """Promise 1: a classification, a removal, a counted skip or a dead letter, whatever dies."""
    values: list[bytes | dict[str, object] | None] = []
    for number in range(2_000):
        values.append({"key": f"o{number}".encode(), "value": offer(f"o{number}", revision=1)})
        if number % 100 == 0:
            values.append({"value": BAD[number // 100 % len(BAD)]})
        if number % 250 == 0:
            values.append({"key": b"", "value": None})
    values += [{"key": f"o{n}".encode(), "value": None} for n in range(0, 2_000, 40)]
    service = serve(place.overrides(workers=2, fetch_offers=100))
    await until(service.is_ready, "two workers ready")
    quarter = -(-len(values) // 4)
    for part in range(4):
        seen = service.counter("classifier_offers_total")
        await produce(place, values[part * quarter : (part + 1) * quarter])
        if part < 3:

            def moved(seen: float = seen) -> bool:
                return service.counter("classifier_offers_total") > seen

            await until(moved, "work moves")
            for victim in service.workers()[:1]:
                victim.kill()
            await until(lambda: len(service.workers()) == 2, "the worker is replaced")
    await done(place)
    stored = await classifications(place)
    letters = await dead_letters(place)
    assert set(stored) == {f"o{n}" for n in range(2_000)}
    removed = {key for key, document in stored.items() if document["status"] == "removed"}
    assert removed == {f"o{n}" for n in range(0, 2_000, 40)}
    # A kill between a dead letter's acknowledgement and the commit may write it again.
    assert len({(x["topic"], x["partition"], x["offset"]) for x in letters}) == 20
    assert {letter["value"] for letter in letters} == {BAD[n % len(BAD)] for n in range(20)}
    # What a killed worker had committed and not yet reported is missing; nothing is counted twice.
    assert service.counter("classifier_offers_total") <= len(values)
    assert service.stop() == 0


async def test_older_revision_never_replaces_newer(place: Place) -> None:
    """Promise 2, across partitions, batches and arrivals in any order."""
    events: list[dict[str, Any]] = [
        {"value": offer(f"o{n}", revision=revision, title=f"{title} {n}"), "partition": p}
        for n in range(20)
        for p, (revision, title) in enumerate(
            [(3, "tent"), (1, "shoe"), (2, "drill"), (None, "lamp")]
        )
    ]
    random.Random(7).shuffle(events)
    for event in events:
        if b'"revision":null' in event["value"]:
            event["timestamp_ms"] = 4_000_000_000_000
    async with working(place.settings(fetch_offers=7)):
        await produce(place, events)
        await done(place)
    stored = await classifications(place)
    assert {document["revision"] for document in stored.values()} == {3}
    assert len(stored) == 20


async def test_redelivery_changes_nothing(place: Place) -> None:
    await produce(place, [offer(f"o{n}", revision=1) for n in range(300)])
    async with working(place.settings()):
        await done(place)
    before = await classifications(place)
    again = place.settings(kafka_group=f"{place.topic}.second")
    async with working(again) as worker:
        await until(lambda: worker.metrics.writes.value("unchanged") == 300, "all seen again")
        assert worker.metrics.writes.value("updated") == 0
    assert await classifications(place) == before


async def test_one_bad_record_costs_its_neighbours_nothing(place: Place) -> None:
    """Promise 4: each bad record is one dead letter with its place and reason, the rest is done."""
    values: list[bytes] = []
    for number, bad in enumerate(BAD):
        values += [offer(f"before-{number}"), bad, offer(f"after-{number}")]
    values.append(b"\xef\xbb\xbf" + offer("with-a-byte-order-mark"))
    async with working(place.settings()):
        await produce(place, [{"value": value, "partition": 1} for value in values])
        await done(place)
    stored = await classifications(place)
    assert len(stored) == 2 * len(BAD) + 1
    letters = {int(letter["offset"]): letter for letter in await dead_letters(place)}
    assert sorted(letters) == [3 * number + 1 for number in range(len(BAD))]
    assert all(letters[3 * n + 1]["value"] == (bad or b"") for n, bad in enumerate(BAD))
    assert Counter(letter["reason"] for letter in letters.values()) == {
        "malformed JSON": 3,
        "not UTF-8": 2,
        "compressed value": 1,
        "schema registry frame": 1,
        "not an offer": 4,
        "no text": 2,
        "nested too deep": 1,
    }


async def test_tombstone_removes_and_empty_record_is_skipped(place: Place) -> None:
    key = {"key": b"gone", "partition": 0}
    async with working(place.settings()) as worker:
        await produce(place, [{"value": offer("gone", revision=4), **key}])
        await produce(place, [{"value": None, **key}, {"key": b"", "value": None, "partition": 0}])
        await done(place)
        late = {"value": offer("gone", revision=3), "partition": 2}
        await produce(place, [late])
        await done(place)
        (marker,) = (await classifications(place)).values()
        assert (marker["status"], marker["revision"]) == ("removed", 4)
        await produce(place, [{"value": offer("gone", revision=5), "partition": 2}])
        await done(place)
        assert worker.metrics.offers.value("skipped") == 1
    (back,) = (await classifications(place)).values()
    assert back["revision"] == 5
    assert back["status"] in {"classified", "uncertain"}


async def test_category_does_not_depend_on_neighbours_order_or_worker(place: Place) -> None:
    """Promise 5: alone, in batches of any size and order, by the stream or the batch command."""
    numbers = list(range(200))
    offers = {f"o{n}": {"title": f"{'long ' * (n % 9)}item {n}", "brand": None} for n in numbers}
    model = Model.load(place.model, threads=1)
    alone = {
        offer_id: model.predict([model.recipe.text(Offer(offer_id, title=fields["title"]))])[0]
        for offer_id, fields in offers.items()
    }
    model.close()
    shuffled = list(offers)
    random.Random(3).shuffle(shuffled)
    await produce(place, [offer(offer_id, **offers[offer_id]) for offer_id in shuffled])
    async with (
        working(place.settings(batch_tokens=8, cache_offers=0, fetch_offers=17)),
        working(place.settings(batch_tokens=4_096, fetch_offers=150)),
    ):
        await done(place)
    for offer_id, stored in (await classifications(place)).items():
        expected = alone[offer_id]
        assert expected is not None
        assert stored["category_id"] == expected.category_id
        assert stored["score"] == pytest.approx(expected.score, abs=1e-4)


async def test_what_was_judged_is_what_is_served(
    place: Place, serve: Serve, tmp_path: Path
) -> None:
    """Promise 6: the same offers by the batch command, by HTTP and by the stream."""
    values = [msgspec.json.encode(made) for made, _ in tiny_offers(seed=6, each=5)]
    refused = {
        b'{"offer_id":"blank","title":" "}': "no text",
        b'{"offer_id":7,"title":"Sofa"}': "not an offer",
    }
    values += refused
    source, target = tmp_path / "offers.jsonl", tmp_path / "classified.jsonl"
    source.write_bytes(b"\n".join(values))
    command = [sys.executable, "-m", "classifier", "classify", str(source), "-o", str(target)]
    classified = asyncio.create_task(
        asyncio.to_thread(
            subprocess.run,
            [*command, "--model", str(place.model)],
            check=True,
            capture_output=True,
        )
    )
    service = serve(place.overrides(fetch_offers=70))
    await produce(place, values)
    await until(service.is_ready, "ready")
    answer = service.post("/classify", {"offers": list(map(msgspec.json.decode, values))})
    await asyncio.gather(classified, done(place))
    by_file = list(map(msgspec.json.decode, target.read_bytes().splitlines()))
    by_http = answer.json()["results"]
    by_stream = await classifications(place)
    letters = {letter["value"]: letter["reason"] for letter in await dead_letters(place)}
    assert letters == refused
    assert len(by_stream) == len(values) - len(refused) == 200
    assert len({document["category_id"] for document in by_stream.values()}) == 8
    for value, row, result in zip(values, by_file, by_http, strict=True):
        if value in refused:
            assert row["error"]["reason"] == result["error"]["reason"] == refused[value]
            continue
        stored = by_stream[result["offer_id"]]
        for other in (row, result):
            for name in ("offer_id", "category_id", "model"):
                assert other[name] == stored["_id" if name == "offer_id" else name]
            # The three have different neighbours.
            assert other["score"] == pytest.approx(stored["score"], abs=1e-4)


async def test_committed_offset_is_one_past_the_last_record_and_nothing_is_replayed(
    place: Place,
) -> None:
    await produce(place, [{"value": offer(f"o{n}"), "partition": 0} for n in range(10)])
    async with working(place.settings()):
        await done(place)
    assert await committed(place) == {0: 10}
    async with working(place.settings()) as worker:
        await until(lambda: worker.status().joined, "joined")
        await produce(place, [{"value": offer("o10"), "partition": 0}])
        await done(place)
        assert sum(map(worker.metrics.offers.value, ("classified", "uncertain"))) == 1
