"""The newest event of an offer wins, in whatever order and however often they come."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.results import BulkWriteResult

from classifier.classification import (
    Answered,
    Answerer,
    Document,
    Event,
    document,
    remove,
    upsert,
    waves,
)
from classifier.offer import Offer
from classifier.record import Removal
from classifier.scores import Prediction
from tests.classifier.records import TIMESTAMP, Record

AT = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = Answerer("model-1", 1, "tax-1")
SECOND = Answerer("model-2", 2, "tax-1")

# The database outlives the examples, each of which takes ids of its own.
REAL = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Collected = Collection[dict[str, Any]]


def offer(
    came: int = 0,
    revision: int | None = None,
    category: str = "kettles",
    offer_id: str = "k-1",
    offset: int | None = None,
    partition: int = 0,
) -> Answered:
    """An answered offer that came at TIMESTAMP + `came`, by default with that as its offset."""
    record = Record(
        timestamp=TIMESTAMP + came,
        offset=came if offset is None else offset,
        partition=partition,
    )
    prediction = Prediction(category, 0.75, (("sofas", 0.125),), "classified")
    return Answered(record, Offer(offer_id, revision=revision), prediction, "00ff")


def tombstone(
    came: int = 0, revision: int | None = None, offer_id: str = "k-1", offset: int | None = None
) -> Removal:
    record = Record(timestamp=TIMESTAMP + came, offset=came if offset is None else offset)
    return Removal(record, offer_id, revision)


@pytest.fixture
def collection(mongodb: str, database: str) -> Iterator[Collected]:
    with MongoClient[dict[str, Any]](mongodb) as client:
        yield client[database]["classifications"]


def write(
    collection: Collected, *events: Event, by: Answerer = FIRST, at: datetime = AT
) -> BulkWriteResult:
    """Writes one wave."""
    updates = [
        upsert(document(event, by, at)) if isinstance(event, Answered) else remove(event, at)
        for event in events
    ]
    return collection.bulk_write(updates, ordered=False)


def stored(collection: Collected, offer_id: str = "k-1") -> Document:
    found = collection.find_one({"_id": {"$eq": offer_id}})
    assert found is not None
    return found


# The document


def test_document_has_every_field_of_the_contract(collection: Collected) -> None:
    write(collection, offer(came=5, revision=9))
    assert stored(collection) == {
        "_id": "k-1",
        "category_id": "kettles",
        "score": 0.75,
        "alternatives": [{"category_id": "sofas", "score": 0.125}],
        "status": "classified",
        "model": "model-1",
        "promotion": 1,
        "taxonomy": "tax-1",
        "revision": 9,
        "timestamp": TIMESTAMP + 5,
        "text_hash": "00ff",
        "source": {"topic": "offers", "partition": 0, "offset": 5},
        "classified_at": AT.replace(tzinfo=None),
    }


def test_marker_keeps_the_order_of_the_tombstone_and_nothing_of_the_offer(
    collection: Collected,
) -> None:
    write(collection, offer(came=1, revision=3))
    write(collection, tombstone(came=2))
    assert stored(collection) == {
        "_id": "k-1",
        "status": "removed",
        "revision": 3,
        "timestamp": TIMESTAMP + 2,
        "source": {"topic": "offers", "partition": 0, "offset": 2},
        "removed_at": AT.replace(tzinfo=None),
    }


NASTY = [
    "$where",
    "$$ROOT",
    "a.b",
    "a.$b",
    "../x",
    "nul\x00in",
    " 12",
    "12",
    "{'$gt': ''}",
    "é" * 512,
]


@pytest.mark.parametrize("offer_id", NASTY)
def test_no_id_is_read_as_an_expression(collection: Collected, offer_id: str) -> None:
    assert write(collection, offer(1, 1, offer_id=offer_id)).upserted_count == 1
    assert write(collection, offer(2, 2, "tents", offer_id)).modified_count == 1
    assert stored(collection, offer_id)["category_id"] == "tents"
    assert write(collection, tombstone(3, 3, offer_id)).modified_count == 1
    assert stored(collection, offer_id)["_id"] == offer_id
    assert write(collection, offer(4, 4, offer_id=offer_id)).modified_count == 1
    assert collection.count_documents({}) == 1


@pytest.mark.parametrize("name", ["$category", "$$ROOT", "$", "a.b", "nul\x00in", ""])
def test_no_category_nor_model_is_read_as_an_expression(collection: Collected, name: str) -> None:
    by = Answerer(name, 1, name)
    record = Record(topic="$topic" if name else "")
    prediction = Prediction(name, 0.5, ((name, 0.25),), "uncertain")
    event = Answered(record, Offer("k-1"), prediction, name)
    assert write(collection, event, by=by).upserted_count == 1
    assert write(collection, event, by=by).modified_count == 0
    found = stored(collection)
    assert (found["category_id"], found["model"], found["taxonomy"]) == (name, name, name)
    assert found["alternatives"] == [{"category_id": name, "score": 0.25}]
    assert found["source"]["topic"] == record.topic
    write(collection, Removal(Record(topic="$topic", timestamp=TIMESTAMP + 1), "k-1", None))
    assert stored(collection)["source"]["topic"] == "$topic"


# Which of two is newer


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (offer(9, 1), offer(1, 2)),
        (offer(9, None), offer(1, 0)),
        (offer(1, 4), offer(2, 4)),
        (offer(1, None), offer(2, None)),
        (offer(5, 4, offset=1), offer(5, 4, offset=2)),
        (offer(5, 4, offset=1, partition=0), offer(5, 4, offset=1, partition=1)),
        (offer(3_600_000, 6), offer(0, 2**63 - 1)),
        (offer(0, 2**31 - 1), offer(0, 2**31)),
    ],
)
def test_older_event_never_replaces_a_newer_one(
    collection: Collected, older: Answered, newer: Answered
) -> None:
    newest = document(newer, FIRST, AT.replace(tzinfo=None))
    write(collection, older)
    assert write(collection, newer).modified_count == 1
    assert stored(collection) == newest
    again = write(collection, older)
    assert (again.matched_count, again.modified_count, again.upserted_count) == (1, 0, 0)
    assert stored(collection) == newest
    assert [list(wave) for wave in waves([older, newer])] == [[newer]]
    assert [list(wave) for wave in waves([newer, older])] == [[newer]]


def test_redelivery_by_the_same_model_changes_nothing(collection: Collected) -> None:
    write(collection, offer(1, 1))
    again = write(collection, offer(1, 1), at=AT.replace(hour=9))
    assert (again.matched_count, again.modified_count) == (1, 0)
    assert stored(collection)["classified_at"] == AT.replace(tzinfo=None)


def test_better_model_may_answer_the_same_event_again(collection: Collected) -> None:
    write(collection, offer(1, 1))
    write(collection, offer(1, 1, "tents"), by=SECOND)
    assert stored(collection)["category_id"] == "tents"
    write(collection, offer(1, 1))
    assert stored(collection)["category_id"] == "tents"
    write(collection, offer(2, 1, "sofas"))
    assert stored(collection)["category_id"] == "sofas"


def test_another_model_of_the_same_promotion_replaces_the_answer(collection: Collected) -> None:
    write(collection, offer(1, 1))
    write(collection, offer(1, 1, "tents"), by=Answerer("model-1b", 1, "tax-1"))
    assert stored(collection)["model"] == "model-1b"


# Markers


def test_tombstone_of_an_offer_never_seen_leaves_a_marker(collection: Collected) -> None:
    assert write(collection, tombstone(5)).upserted_count == 1
    assert stored(collection)["status"] == "removed"
    write(collection, offer(4, 7))
    assert stored(collection)["status"] == "removed"
    write(collection, offer(6, 0))
    assert stored(collection)["status"] == "classified"


@pytest.mark.parametrize(
    ("came", "revision", "removed"),
    [
        (6, None, True), (6, 3, True), (6, 4, True), (6, 2, False), (5, None, False),
        (5, 3, False), (4, None, False), (4, 3, False), (4, 4, True),
    ],
)  # fmt: skip
def test_tombstone_removes_unless_the_offer_is_newer(
    collection: Collected, came: int, revision: int | None, removed: bool
) -> None:
    write(collection, offer(5, 3))
    write(collection, tombstone(came, revision))
    assert (stored(collection)["status"] == "removed") is removed


@pytest.mark.parametrize(
    ("came", "revision", "replaced"),
    [(6, 3, True), (6, 4, True), (6, 2, False), (6, None, False), (5, 3, False), (4, 4, False)],
)
def test_offer_replaces_a_marker_only_with_a_revision_not_lower_and_a_later_time(
    collection: Collected, came: int, revision: int | None, replaced: bool
) -> None:
    write(collection, tombstone(5, 3))
    write(collection, offer(came, revision))
    assert (stored(collection)["status"] == "classified") is replaced


@pytest.mark.parametrize("revision", [None, 3])
def test_repeated_tombstone_changes_nothing(collection: Collected, revision: int | None) -> None:
    write(collection, tombstone(5, revision))
    again = write(collection, tombstone(5, revision), at=AT.replace(hour=9))
    assert again.modified_count == 0


def test_tombstone_of_a_lower_revision_leaves_the_marker_of_a_higher_one(
    collection: Collected,
) -> None:
    write(collection, tombstone(5, 3))
    write(collection, tombstone(6, 2))
    assert (stored(collection)["revision"], stored(collection)["timestamp"]) == (3, TIMESTAMP + 5)


@pytest.mark.parametrize("seen", [None, 1])
def test_late_tombstone_raises_the_revision_of_a_marker_and_never_moves_it_back_in_time(
    collection: Collected, seen: int | None
) -> None:
    if seen is not None:
        write(collection, offer(1, seen))
    write(collection, tombstone(5))
    write(collection, tombstone(3, 2))
    found = stored(collection)
    assert (found["revision"], found["timestamp"]) == (2, TIMESTAMP + 5)
    assert found["source"]["offset"] == 5
    write(collection, offer(4, 2))
    assert stored(collection)["status"] == "removed"


# Any order


_ids = itertools.count()


def final(
    collection: Collected,
    make: Callable[[str], list[tuple[Event, Answerer]]],
    arrivals: list[list[int]],
    together: list[bool],
) -> list[Document]:
    """What is stored after each arrival order, written one by one or in batches, without `_id`."""
    results = []
    for order, in_batches in zip(arrivals, together, strict=True):
        offer_id = f"o-{next(_ids)}"
        events = make(offer_id)
        arrived = [events[index] for index in order]
        groups = itertools.groupby(arrived, key=lambda pair: pair[1])
        for by, group in groups:
            batch = [event for event, _ in group]
            for wave in waves(batch) if in_batches else ([event] for event in batch):
                assert [event.offer_id for event in wave] == [offer_id]
                write(collection, *wave, by=by)
        found = stored(collection, offer_id)
        del found["_id"]
        results.append(found)
    return results


def arrivals(count: int) -> st.SearchStrategy[list[list[int]]]:
    """Orders in which so many events may come, each at least once."""
    numbers = list(range(count))
    order = st.builds(
        lambda first, more, mix: mix.sample(first + more, len(first) + len(more)),
        st.just(numbers),
        st.lists(st.sampled_from(numbers), max_size=3),
        st.randoms(use_true_random=False),
    )
    return st.lists(order, min_size=2, max_size=3)


@REAL
@given(st.data())
def test_offers_in_any_order_end_in_the_newest(collection: Collected, data: st.DataObject) -> None:
    places = data.draw(
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=2, max_size=5, unique=True
        )
    )
    records = [
        (
            data.draw(st.none() | st.integers(0, 2)),
            data.draw(st.integers(0, 2)),
            data.draw(st.sampled_from([FIRST, SECOND])),
            offset,
            partition,
        )
        for partition, offset in places
    ]

    def make(offer_id: str) -> list[tuple[Event, Answerer]]:
        return [
            (offer(came, revision, f"c{number}", offer_id, offset, partition), by)
            for number, (revision, came, by, offset, partition) in enumerate(records)
        ]

    newest = max(
        range(len(records)),
        key=lambda number: (
            -1 if records[number][0] is None else records[number][0],
            records[number][1],
            records[number][2].promotion,
            *records[number][3:],
        ),
    )
    orders = data.draw(arrivals(len(records)))
    together = [data.draw(st.booleans()) for _ in orders]
    for found in final(collection, make, orders, together):
        assert found["category_id"] == f"c{newest}"
        assert found["model"] == records[newest][2].model


@REAL
@given(st.data())
def test_offers_and_tombstones_in_any_order_end_in_the_newest(
    collection: Collected, data: st.DataObject
) -> None:
    """While clocks and revisions agree; a tombstone has its revision, or takes the stored one's."""
    revised = data.draw(st.booleans())
    kinds = data.draw(
        st.lists(st.sampled_from(["offer", "marked", "bare"]), min_size=2, max_size=5)
    )
    steps = [data.draw(st.integers(0, 1)) for _ in kinds]
    revisions = list(itertools.accumulate(steps))

    def make(offer_id: str) -> list[tuple[Event, Answerer]]:
        events: list[tuple[Event, Answerer]] = []
        for came, (kind, revision) in enumerate(zip(kinds, revisions, strict=True)):
            event: Event
            if kind == "offer":
                event = offer(came, revision if revised else None, f"c{came}", offer_id)
            else:
                given = revision if revised and kind == "marked" else None
                event = tombstone(came, given, offer_id)
            events.append((event, FIRST))
        return events

    orders = data.draw(arrivals(len(kinds)))
    together = [data.draw(st.booleans()) for _ in orders]
    for found in final(collection, make, orders, together):
        assert found["timestamp"] == TIMESTAMP + len(kinds) - 1
        if kinds[-1] == "offer":
            assert found["category_id"] == f"c{len(kinds) - 1}"
        else:
            assert found["status"] == "removed"


@REAL
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["offer", "tombstone"]),
            st.none() | st.integers(0, 2),
            st.integers(-1, 1),
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 5), max_size=3),
    st.booleans(),
)
def test_log_read_again_from_anywhere_ends_the_same(
    collection: Collected,
    log: list[tuple[str, int | None, int]],
    restarts: list[int],
    in_batches: bool,
) -> None:
    """As a crash does: the same log is read on from an earlier offset. Whatever the clocks say."""

    def make(offer_id: str) -> list[tuple[Event, Answerer]]:
        return [
            (
                offer(number + skew, revision, f"c{number}", offer_id, offset=number)
                if kind == "offer"
                else tombstone(number + skew, revision, offer_id, offset=number),
                FIRST,
            )
            for number, (kind, revision, skew) in enumerate(log)
        ]

    once = list(range(len(log)))
    reread = once + [n for start in restarts for n in range(min(start, len(log) - 1), len(log))]
    straight, replayed = final(collection, make, [once, reread], [False, in_batches])
    assert replayed == straight


# Waves


def test_bulk_holds_each_offer_once_and_only_its_newest() -> None:
    batch = [offer(1, 1), offer(2, 1, offer_id="k-2"), offer(3, 2), offer(4, 1)]
    assert list(waves(batch)) == [[batch[2], batch[1]]]
    assert list(waves([])) == []


def test_removal_between_two_offers_takes_a_wave_of_its_own() -> None:
    batch: list[Event] = [offer(1), tombstone(2), offer(3), offer(4), tombstone(5, offer_id="k-2")]
    assert list(waves(batch)) == [[batch[0], batch[4]], [batch[1]], [batch[3]]]


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from("abc"), st.none() | st.integers(0, 3)), max_size=12
    )
)
def test_waves_leave_out_only_what_a_newer_offer_outdoes(
    log: list[tuple[bool, str, int | None]],
) -> None:
    events: list[Event] = [
        tombstone(came, revision, name) if gone else offer(came, revision, offer_id=name)
        for came, (gone, name, revision) in enumerate(log)
    ]
    planned = [list(wave) for wave in waves(events)]
    for wave in planned:
        assert len({event.offer_id for event in wave}) == len(wave) > 0
    kept = [event for wave in planned for event in wave]
    for name in "abc":
        before = [event for event in events if event.offer_id == name]
        after = [event for event in kept if event.offer_id == name]
        expected: list[Event] = []
        for _, run in itertools.groupby(before, key=lambda event: isinstance(event, Answered)):
            same: list[Event] = list(run)
            offers = [event for event in same if isinstance(event, Answered)]
            expected += [max(offers, key=lambda event: event.order)] if offers else same
        assert after == expected
