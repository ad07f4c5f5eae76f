"""Bulks reach MongoDB whole or are tried again; only a document that it can never take is refused.

Faults are made by a server's own fail points, so these tests start one that has them.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import numpy as np
import pytest
from pydantic import SecretStr
from pymongo import MongoClient, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from classifier import metrics, patience
from classifier.classification import Answered, Answerer, document, remove, upsert
from classifier.demo import servers
from classifier.metrics import Metrics
from classifier.offer import Offer
from classifier.outage import Outages
from classifier.patience import AbandonedError
from classifier.record import Removal
from classifier.scores import Prediction
from classifier.settings import Settings
from classifier.store import Store, Written
from tests.classifier.records import TIMESTAMP, Record

AT = datetime(2026, 1, 1, tzinfo=UTC)
# A server that says it is no primary is looked at again at once, not at the next heartbeat.
POLLING = "serverMonitoringMode=poll&heartbeatFrequencyMS=500"

Fail = Callable[..., None]


def always() -> bool:
    return True


def update(number: int, came: int = 0, category: str = "kettles", prefix: str = "o") -> UpdateOne:
    event = Answered(
        Record(timestamp=TIMESTAMP + came, offset=came),
        Offer(f"{prefix}-{number}", revision=came),
        Prediction(category, 0.5, (), "classified"),
        "00",
    )
    return upsert(document(event, Answerer("m", 1, "t"), AT))


def bare(offer_id: str, **fields: object) -> UpdateOne:
    """An upsert of any fields whatever, as the store would be given it."""
    replacement = {"$replaceWith": {"$literal": {"_id": offer_id, **fields}}}
    return UpdateOne({"_id": offer_id}, [replacement], upsert=True)


class Kept:
    """A store, with what it said of the world and what is in the database."""

    def __init__(self, settings: Settings) -> None:
        self.outages = Outages()
        self.metrics: Metrics = metrics.in_process()
        self.heard: list[list[str]] = []
        self.away = asyncio.Event()
        self.outages.on_change = self._hear
        self.store = Store(settings, self.outages, self.metrics)

    def _hear(self) -> None:
        self.heard.append(self.outages.services)
        self.away.set()

    async def write(
        self, updates: Sequence[UpdateOne], wanted: Callable[[], bool] = always
    ) -> Written:
        return await self.store.write(updates, wanted)


def settings(uri: str, database: str, **more: Any) -> Settings:
    fields: dict[str, Any] = {"mongodb_timeout_ms": 2_000, **more}
    return Settings(mongodb_uri=SecretStr(uri), mongodb_database=database, **fields)


@asynccontextmanager
async def opened(uri: str, database: str, **more: Any) -> AsyncIterator[Kept]:
    kept = Kept(settings(uri, database, **more))
    try:
        yield kept
    finally:
        await kept.store.close()


@pytest.fixture
async def kept(mongodb: str, database: str) -> AsyncIterator[Kept]:
    async with opened(mongodb, database) as kept:
        yield kept


@pytest.fixture
def collection(mongodb: str, database: str) -> Iterator[Collection[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongodb) as client:
        yield client[database]["classifications"]


def counts(written: Written) -> tuple[int, int, int]:
    return written.inserted, written.updated, written.unchanged


# Counts


async def test_every_update_is_counted_as_what_it_did(kept: Kept) -> None:
    assert counts(await kept.write([update(n) for n in range(5)])) == (5, 0, 0)
    mixed = [update(0), update(1, 1), update(2, 1), update(7)]
    written = await kept.write(mixed)
    assert counts(written) == (1, 2, 1)
    assert written.refused == []
    assert counts(await kept.write([update(1, 0, "tents")])) == (0, 0, 1)
    assert kept.heard == []


async def test_nothing_to_write_is_written_at_once(kept: Kept) -> None:
    assert await kept.write([]) == Written()


async def test_removals_and_offers_share_a_bulk(
    kept: Kept, collection: Collection[dict[str, Any]]
) -> None:
    await kept.write([update(1), update(2)])
    removal = Removal(Record(timestamp=TIMESTAMP + 1), "o-1", None)
    assert counts(await kept.write([remove(removal, AT), update(3)])) == (1, 1, 0)
    assert {row["_id"]: row["status"] for row in collection.find()} == {
        "o-1": "removed",
        "o-2": "classified",
        "o-3": "classified",
    }


# The index


def lifetime(collection: Collection[dict[str, Any]]) -> object:
    return collection.index_information()["marker_ttl"]["expireAfterSeconds"]


async def test_index_that_clears_markers_is_made_once_and_changed_when_told(
    mongodb: str, database: str, collection: Collection[dict[str, Any]]
) -> None:
    for seconds in (3_600, 3_600, 7_200, 3_600):
        async with opened(mongodb, database, marker_ttl_seconds=seconds) as kept:
            await kept.store.prepare()
            await kept.store.prepare()
        assert lifetime(collection) == seconds
    assert set(collection.index_information()) == {"_id_", "marker_ttl"}
    assert collection.index_information()["marker_ttl"]["key"] == [("removed_at", 1)]


async def test_workers_may_make_the_index_at_once(
    mongodb: str, database: str, collection: Collection[dict[str, Any]]
) -> None:
    async with opened(mongodb, database) as one, opened(mongodb, database) as other:
        await asyncio.gather(one.store.prepare(), other.store.prepare())
    assert lifetime(collection) == 30 * 86_400


# First inserts that meet


async def test_first_inserts_of_two_workers_end_in_one_document_each(
    mongodb: str, database: str, collection: Collection[dict[str, Any]]
) -> None:
    async with opened(mongodb, database) as one, opened(mongodb, database) as other:
        for turn in range(5):
            older = [update(n, 1, "tents", f"r{turn}") for n in range(100)]
            newer = [update(n, 2, "kettles", f"r{turn}") for n in range(100)]
            written = await asyncio.gather(one.write(older), other.write(newer[::-1]))
            assert sum(done.inserted for done in written) == 100
            assert [sum(counts(done)) for done in written] == [100, 100]
            assert [done.refused for done in written] == [[], []]
        assert one.heard == other.heard == []
    assert collection.count_documents({}) == 500
    assert collection.count_documents({"category_id": "kettles"}) == 500


def test_duplicate_key_is_tried_again_and_only_that_update() -> None:
    kept = Kept(settings("mongodb://127.0.0.1:1", "x"))
    updates = [update(n) for n in range(4)]
    written = Written()
    left, refused = kept.store._after_errors(
        list(enumerate(updates)),
        written,
        {
            "writeErrors": [{"index": 2, "code": 11000, "errmsg": "E11000 duplicate key"}],
            "writeConcernErrors": [],
            "nUpserted": 1,
            "nMatched": 2,
            "nModified": 1,
        },
    )
    assert left == [(2, updates[2])]
    assert counts(written) == (1, 1, 1)
    assert refused == []
    assert kept.heard == []


async def test_duplicate_key_that_does_not_go_away_is_named(
    kept: Kept, collection: Collection[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unique index that somebody else made: no race, and nothing that retrying could mend."""
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 0.02)
    collection.create_index("text_hash", unique=True)
    await kept.write([update(1)])
    writing = asyncio.create_task(kept.write([update(2)]))
    await asyncio.wait_for(kept.away.wait(), 20)
    assert "duplicate" in kept.outages.reasons[0]
    collection.drop_index("text_hash_1")
    assert counts(await writing) == (1, 0, 0)
    assert kept.heard == [["mongodb"], []]


# What MongoDB can never take


async def test_document_that_bson_cannot_hold_is_refused_alone(
    kept: Kept, collection: Collection[dict[str, Any]]
) -> None:
    bad = [
        bare("bad-int", seller=98765432109876543210),
        bare("bad-float", score=np.float32(0.5)),
        bare("bad-key", **{"a\x00b": 1}),
        bare("bad-text", title="\ud83d"),
        bare("bad-object", thing=object()),
    ]
    updates = [update(0), *bad, update(1), update(2)]
    written = await kept.write(updates)
    assert sorted(index for index, _ in written.refused) == [1, 2, 3, 4, 5]
    assert all(why for _, why in written.refused)
    assert counts(written) == (3, 0, 0)
    assert sorted(row["_id"] for row in collection.find()) == ["o-0", "o-1", "o-2"]
    assert kept.heard == []


@pytest.mark.parametrize("size", [16 * 2**20 + 34, 18 * 2**20, 47 * 2**20])
async def test_document_that_is_too_large_is_refused_alone(
    kept: Kept, collection: Collection[dict[str, Any]], size: int
) -> None:
    updates = [update(0), bare("large", text="x" * size), update(1)]
    written = await asyncio.wait_for(kept.write(updates), 20)
    assert [index for index, _ in written.refused] == [1]
    # The driver may have sent what it packed before: that is found unchanged.
    assert sum(counts(written)) == 2
    assert collection.count_documents({}) == 2


@pytest.fixture
def validated(collection: Collection[dict[str, Any]]) -> None:
    collection.database.create_collection(
        collection.name, validator={"category_id": {"$ne": "forbidden"}}
    )


@pytest.mark.usefixtures("validated")
async def test_document_that_the_collection_forbids_is_refused_alone(kept: Kept) -> None:
    written = await kept.write([update(0), update(1, category="forbidden"), update(2)])
    ((index, why),) = written.refused
    assert index == 1
    assert "(code 121)" in why
    assert counts(written) == (2, 0, 0)
    assert kept.heard == []


@pytest.mark.usefixtures("validated")
@pytest.mark.parametrize("count", [1, 2])
async def test_documents_that_the_collection_forbids_are_refused_without_a_good_neighbour(
    kept: Kept, collection: Collection[dict[str, Any]], count: int
) -> None:
    bad = [update(n, category="forbidden") for n in range(count)]
    written = await asyncio.wait_for(kept.write(bad), 20)
    assert [index for index, _ in written.refused] == list(range(count))
    assert kept.heard == []
    assert collection.count_documents({}) == 0


# The world at fault


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "validator",
    [{"_id": {"$exists": False}}, {"category_id": {"$exists": False}}],
    ids=["takes nothing", "takes markers alone"],
)
async def test_validator_that_refuses_every_offer_is_an_outage_and_no_reason_to_set_aside(
    kept: Kept,
    collection: Collection[dict[str, Any]],
    validator: dict[str, Any],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 0.05)
    collection.database.create_collection(collection.name, validator=validator)
    writing = asyncio.create_task(kept.write([update(n) for n in range(count)]))
    await asyncio.wait_for(kept.away.wait(), 20)
    assert "every update is refused" in kept.outages.reasons[0]
    assert "(code 121)" in kept.outages.reasons[0]
    assert not writing.done()
    assert collection.count_documents({}) == 0
    collection.database.command("collMod", collection.name, validator={})
    written = await asyncio.wait_for(writing, 20)
    assert (counts(written), written.refused) == ((count, 0, 0), [])
    assert kept.heard == [["mongodb"], []]


@pytest.fixture(scope="module")
def faulty() -> Iterator[str]:
    """The URI of a database server of its own that takes fail points."""
    with mock.patch.dict(os.environ):
        os.environ.pop("MONGODB_URI", None)
        with servers.embedded_database(["--enable-test-commands"]) as uri:
            yield uri


@pytest.fixture
def fail(faulty: str) -> Iterator[Fail]:
    """Make the next bulks fail: so many times, in this way."""
    with MongoClient[dict[str, Any]](faulty) as client:

        def fail(times: int, **how: object) -> None:
            client.admin.command(
                {
                    "configureFailPoint": "failCommand",
                    "mode": {"times": times},
                    "data": {"failCommands": ["update"], **how},
                }
            )

        yield fail
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


Troubled = Callable[[], AbstractAsyncContextManager[Kept]]


@pytest.fixture
def troubled(faulty: str, monkeypatch: pytest.MonkeyPatch) -> Troubled:
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 0.05)
    name = f"test_{uuid.uuid4().hex}"
    return lambda: opened(f"{faulty}/?{POLLING}", name)


FAULTS = {
    "not by a majority": {"writeConcernError": {"code": 91, "errmsg": "shutting down"}},
    "majority too slow": {"writeConcernError": {"code": 64, "errmsg": "waiting timed out"}},
    "connection closed": {"closeConnection": True},
    "no longer primary": {"errorCode": 10107},
    "stepping down": {"errorCode": 189},
    "shutting down": {"errorCode": 91},
    "no host": {"errorCode": 7},
    "not authorised for now": {"errorCode": 13},
    "disk full": {"errorCode": 14031},
}


@pytest.mark.parametrize("how", FAULTS.values(), ids=FAULTS.keys())
async def test_bulk_is_tried_again_until_a_majority_has_it(
    troubled: Troubled, fail: Fail, how: dict[str, object]
) -> None:
    async with troubled() as kept:
        await kept.write([update(1), update(2)])
        fail(2, **how)
        written = await asyncio.wait_for(
            kept.write([update(1), update(2, 1, "tents"), update(3)]), 20
        )
        # What the failed tries did already is found unchanged: counted once, as something.
        assert sum(counts(written)) == 3
        assert written.refused == []
        assert kept.heard == [["mongodb"], []]
        assert kept.metrics.retries.value("mongodb") == 2
        collection = kept.store._collection
        rows = [row async for row in collection.find({"_id": {"$in": ["o-1", "o-2", "o-3"]}})]
        assert {row["_id"]: row["category_id"] for row in rows} == {
            "o-1": "kettles",
            "o-2": "tents",
            "o-3": "kettles",
        }


async def test_nothing_is_believed_before_a_majority_has_it(troubled: Troubled, fail: Fail) -> None:
    async with troubled() as kept:
        fail(1_000, writeConcernError={"code": 91, "errmsg": "shutting down"})
        writing = asyncio.create_task(kept.write([update(1)]))
        await asyncio.wait_for(kept.away.wait(), 20)
        assert kept.outages.reasons == ["mongodb is away: shutting down"]
        # The server answers a greeting well enough; the write knows better.
        assert await kept.store.check()
        assert "mongodb" in kept.outages
        assert not writing.done()
        fail(0)
        assert sum(counts(await writing)) == 1
        assert kept.outages.services == []
        assert await kept.store.check()


async def test_write_is_abandoned_when_nobody_wants_it_any_more(
    troubled: Troubled, fail: Fail
) -> None:
    async with troubled() as kept:
        fail(1_000, errorCode=91)
        wanted = True
        writing = asyncio.create_task(kept.write([update(1)], lambda: wanted))
        await asyncio.wait_for(kept.away.wait(), 20)
        wanted = False
        with pytest.raises(AbandonedError):
            await asyncio.wait_for(writing, 5)
        # Giving up says nothing about MongoDB: the outage lasts until a check finds it over.
        assert kept.outages.services == ["mongodb"]
        fail(0)
        assert await kept.store.check()
        assert kept.outages.services == []


async def test_nothing_is_sent_when_nobody_wants_it(kept: Kept) -> None:
    with pytest.raises(AbandonedError):
        await kept.write([update(1)], lambda: False)
    assert [row async for row in kept.store._collection.find()] == []


def test_part_of_a_bulk_that_succeeded_is_not_written_again() -> None:
    kept = Kept(settings("mongodb://127.0.0.1:1", "x"))
    updates = [update(n) for n in range(6)]
    written = Written()
    errors = [
        {"index": 0, "code": 121, "errmsg": "failed validation"},
        {"index": 3, "code": 112, "errmsg": "write conflict"},
        {"index": 4, "code": 11000, "errmsg": "E11000"},
    ]
    # The bulk held the updates 1 to 5: an earlier try had dealt with 0.
    left, refused = kept.store._after_errors(
        list(enumerate(updates))[1:],
        written,
        {
            "writeErrors": errors,
            "writeConcernErrors": [],
            "nUpserted": 2,
            "nMatched": 0,
            "nModified": 0,
        },
    )
    assert left == [(4, updates[4]), (5, updates[5])]
    assert refused == [(1, "failed validation (code 121)")]
    assert counts(written) == (2, 0, 0)
    assert kept.outages.reasons == ["mongodb is away: write conflict (code 112)"]


def test_nothing_of_a_bulk_without_a_majority_is_counted() -> None:
    kept = Kept(settings("mongodb://127.0.0.1:1", "x"))
    written = Written()
    with pytest.raises(OperationFailure, match="shutting down"):
        kept.store._after_errors(
            [(0, update(0))],
            written,
            {
                "writeErrors": [],
                "writeConcernErrors": [{"code": 91, "errmsg": "shutting down"}],
                "nUpserted": 1,
                "nMatched": 0,
                "nModified": 0,
            },
        )
    assert written == Written()


async def test_database_that_is_away_is_waited_for_under_its_name() -> None:
    uri = f"mongodb://ann:hunter2@127.0.0.1:{servers.free_port()}"
    async with opened(uri, "x", mongodb_timeout_ms=300) as kept:
        assert not await kept.store.check()
        assert kept.outages.services == ["mongodb"]
        tries = iter(range(3))
        writing = asyncio.create_task(
            kept.write([update(1)], lambda: next(tries, None) is not None)
        )
        with pytest.raises(AbandonedError):
            await asyncio.wait_for(writing, 20)
        assert kept.outages.services == ["mongodb"]
        assert "hunter2" not in kept.outages.reasons[0]


# Health


async def test_preparing_leaves_no_trace_of_its_probe(kept: Kept) -> None:
    await kept.store.prepare()
    assert await kept.store._collection.count_documents({}) == 0


async def test_check_says_whether_writes_are_taken(kept: Kept) -> None:
    kept.outages.began("mongodb", "an earlier failure")
    assert await kept.store.check()
    assert kept.outages.services == []


async def test_secondary_takes_no_writes(kept: Kept) -> None:
    async def hello(_: str) -> dict[str, Any]:
        return {"isWritablePrimary": False, "secondary": True}

    with mock.patch.object(kept.store, "_client") as client:
        client.admin.command = hello
        assert not await kept.store.check()
    assert kept.outages.reasons == ["mongodb is away: no primary"]


def test_acknowledgement_is_asked_of_a_majority() -> None:
    kept = Kept(settings("mongodb://127.0.0.1:1", "x"))
    assert kept.store._collection.write_concern.document == {"w": "majority"}
    assert not kept.store._client.options.retry_writes
