"""The server that judges what a worker has written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient, InsertOne, ReplaceOne, UpdateOne
from pymongo.errors import BulkWriteError, PyMongoError

from benchmarks.ackserver import AckServer
from classifier import metrics
from classifier.classification import Answered, Answerer, document, remove, upsert
from classifier.demo.servers import free_port
from classifier.offer import Offer
from classifier.outage import Outages
from classifier.record import Removal
from classifier.scores import Prediction
from classifier.settings import Settings
from classifier.store import Store, Written
from tests.classifier.records import Record

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Served:
    """A server that runs, with the worker's store and a plain client before it."""

    def __init__(self, server: AckServer, uri: str) -> None:
        self.server = server
        self.store = Store(Settings(mongodb_uri=uri), Outages(), metrics.in_process())
        self.client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(uri, retryWrites=False)
        self.collection = self.client["offers"]["classifications"]

    async def written(self) -> tuple[int, int]:
        """Ids and updates, as a benchmark asks for them."""
        told = await self.client.admin.command("written")
        return told["ids"], told["updates"]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    port, server = free_port(), AckServer()
    serving = asyncio.create_task(server.serve(port))
    served = Served(server, f"mongodb://127.0.0.1:{port}")
    try:
        yield served
    finally:
        await served.store.close()
        await served.client.close()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def classified(offer_id: str, offset: int = 0) -> UpdateOne:
    """The update that the worker writes for an offer."""
    record = Record(offset=offset, timestamp=1_000 + offset)
    prediction = Prediction("kettles", 0.9, (("sofas", 0.1),), "classified")
    answered = Answered(record, Offer(offer_id), prediction, "00")
    return upsert(document(answered, Answerer("m", 1, "t"), NOW))


async def test_ids_are_distinct_and_updates_are_all(served: Served) -> None:
    first = await served.store.write([classified(f"a{n}") for n in range(1_000)], lambda: True)
    assert first == Written(inserted=1_000)
    again = [classified(f"a{n}", 1) for n in range(995, 1_005)]
    assert await served.store.write(again, lambda: True) == Written(inserted=5, updated=5)
    assert await served.written() == (1_005, 1_010)
    assert set(served.server.ids) == {f"a{n}" for n in range(1_005)}


async def test_a_tombstone_is_an_update_of_its_document(served: Served) -> None:
    removal = remove(Removal(Record(offset=1), "$a", 7), NOW)
    written = await served.store.write([classified("$a"), removal], lambda: True)
    assert (written.inserted, written.updated) == (1, 1)
    assert await served.written() == (1, 2)


async def test_what_the_worker_does_at_its_start_counts_as_nothing(served: Served) -> None:
    await served.store.prepare()
    assert await served.store.check()
    assert await served.written() == (0, 0)


async def test_a_document_that_was_deleted_is_no_longer_counted(served: Served) -> None:
    await served.collection.bulk_write([classified("a"), classified("a"), classified("b")])
    result = await served.collection.delete_many({"_id": {"$in": ["a", "c"]}})
    assert result.deleted_count == 1
    assert await served.written() == (1, 1)


GUARD = {"$gt": ["$revision", 1]}
NEW = {"$literal": {"_id": "a", "category_id": "kettles"}}


def replacing(*condition: Any) -> list[dict[str, Any]]:
    return [{"$replaceWith": {"$cond": list(condition)}}]


@pytest.mark.parametrize(
    "update",
    [
        UpdateOne({"_id": "a"}, {"$set": {"category_id": "kettles"}}, upsert=True),
        ReplaceOne({"_id": {"$eq": "a"}}, {"category_id": "kettles"}, upsert=True),
        UpdateOne({"_id": {"$eq": "a"}}, [{"$replaceWith": NEW}], upsert=True),
        UpdateOne({"_id": {"$eq": "a"}}, replacing(GUARD, "$$ROOT", NEW)),
        UpdateOne({"_id": {"$eq": "a"}, "b": 1}, replacing(GUARD, "$$ROOT", NEW), upsert=True),
        UpdateOne({"_id": {"$eq": "b"}}, replacing(GUARD, "$$ROOT", NEW), upsert=True),
        UpdateOne({"_id": {"$eq": "a"}}, replacing(GUARD, NEW, "$$ROOT"), upsert=True),
        UpdateOne({"_id": {"$eq": "a"}}, replacing({}, "$$ROOT", NEW), upsert=True),
        UpdateOne({"_id": {"$eq": "a"}}, replacing(GUARD, "$$ROOT", {}), upsert=True),
        UpdateOne({"_id": {"$eq": "a"}}, replacing(GUARD, "$$ROOT"), upsert=True),
    ],
    ids=lambda update: str(update)[:90],
)
async def test_what_is_no_guarded_update_is_refused_alone(
    served: Served, update: UpdateOne | ReplaceOne[dict[str, Any]]
) -> None:
    with pytest.raises(BulkWriteError) as caught:
        await served.collection.bulk_write(
            [classified("x"), update, classified("y")], ordered=False
        )
    (error,) = caught.value.details["writeErrors"]
    assert (error["index"], error["code"]) == (1, 9)
    assert [each["_id"] for each in caught.value.details["upserted"]] == ["x", "y"]
    assert await served.written() == (2, 2)
    assert (await served.client.admin.command("written"))["refused"] == error["errmsg"]


async def test_an_insert_counts_as_nothing(served: Served) -> None:
    with contextlib.suppress(PyMongoError):
        await served.collection.bulk_write([InsertOne({"_id": "a"})])
    assert await served.written() == (0, 0)
