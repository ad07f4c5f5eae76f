"""The store: guarded bulk upserts into MongoDB, tried again while the world is at fault."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import bson
from bson.errors import BSONError
from pymongo import AsyncMongoClient, UpdateOne, WriteConcern
from pymongo.errors import (
    BulkWriteError,
    DocumentTooLarge,
    OperationFailure,
    PyMongoError,
)
from tenacity import TryAgain

from classifier.classification import probe_classification, probe_marker
from classifier.metrics import Metrics
from classifier.outage import Outages
from classifier.patience import AbandonedError, patiently
from classifier.settings import Settings

SERVICE = "mongodb"
WRITING = "writing"

DUPLICATE_KEY = 11000
"""Two first inserts of one `_id` met; the second try finds the document."""

DOCUMENT_CODES = frozenset(
    {
        2,  # BadValue
        9,  # FailedToParse
        14,  # TypeMismatch
        52,  # DollarPrefixedFieldName
        57,  # DottedFieldName
        121,  # DocumentValidationFailure
        10334,  # BSONObjectTooLarge
        17280,  # KeyTooLong
        17419,  # resulting document after update is larger than allowed
        17420,  # document to upsert is larger than allowed
    }
)
"""Errors that the same document would meet again on the best of days.

Any other code is taken for an outage and waited for under its name: rather a partition that stands
still in sight of everybody than an offer set aside because a server had a bad hour.
"""

TOO_LARGE_CODES = frozenset({10334, 17419, 17420})
DOCUMENT_BYTES = 16 * 1024 * 1024
"""MongoDB's limit for one document, and here for one update."""

INDEX_OPTIONS_CONFLICT = frozenset({85, 86})
RACES = 5
"""A first insert loses one race or two; a duplicate key after so many tries is an index's doing."""


@dataclass(slots=True)
class Written:
    """What became of one bulk. `unchanged`: the stored event was newer, or the very same."""

    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list)  # index of the update, why


class Store:
    """The collection of classifications, written with majority acknowledgement."""

    def __init__(self, settings: Settings, outages: Outages, metrics: Metrics) -> None:
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(
            settings.mongodb_uri.get_secret_value(),
            appname="offer-classifier",
            serverSelectionTimeoutMS=settings.mongodb_timeout_ms,
            connectTimeoutMS=settings.mongodb_timeout_ms,
            socketTimeoutMS=settings.mongodb_timeout_ms,
            # The driver's own single retry would hide how often MongoDB fails.
            retryWrites=False,
        )
        database = self._client[settings.mongodb_database]
        self._collection = database.get_collection(
            settings.mongodb_collection, write_concern=WriteConcern("majority")
        )
        self._marker_ttl = settings.marker_ttl_seconds
        self._outages = outages
        self._metrics = metrics

    async def prepare(self) -> None:
        """Makes the index that clears markers, or gives it the lifetime that is set now.

        Then writes and deletes a marker, by the guarded update that offers are written with: a
        server that cannot run it would refuse every offer one by one. Raises PyMongoError.
        """
        try:
            await self._collection.create_index(
                "removed_at", name="marker_ttl", expireAfterSeconds=self._marker_ttl
            )
        except OperationFailure as error:
            if error.code not in INDEX_OPTIONS_CONFLICT:
                raise
            await self._collection.database.command(
                "collMod",
                self._collection.name,
                index={"name": "marker_ttl", "expireAfterSeconds": self._marker_ttl},
            )
        await self._try(probe_marker)

    async def check(self) -> bool:
        """Whether a primary takes writes now; an outage begins or ends with the answer."""
        try:
            hello = await self._client.admin.command("hello")
        except PyMongoError as error:
            self._outages.began(SERVICE, str(error))
            return False
        if not hello.get("isWritablePrimary"):
            self._outages.began(SERVICE, "no primary")
            return False
        self._outages.ended(SERVICE)
        return True

    async def write(self, updates: Sequence[UpdateOne], wanted: Callable[[], bool]) -> Written:
        """Writes one unordered bulk that holds each `_id` once, until a majority has it.

        Tried again for as long as MongoDB is at fault; a document that MongoDB can never take is
        `refused`. Every update is idempotent, so repeating a half-acknowledged bulk is harmless.
        Raises AbandonedError once `wanted` says no.
        """
        written = Written()
        left = list(enumerate(updates))
        tries = 0
        try:
            async for attempt in patiently((PyMongoError,), wanted, self._count_retry):
                with attempt:
                    if not wanted():
                        self._outages.handed_over(SERVICE, WRITING)
                        raise AbandonedError(SERVICE)
                    tries += 1
                    try:
                        left = left and await self._write_once(left, written)
                    except PyMongoError as error:
                        self._outages.began(SERVICE, str(error), WRITING)
                        raise
                    if left and tries == RACES:
                        reason = "duplicate key again and again: a unique index but _id's?"
                        self._outages.began(SERVICE, reason, WRITING)
                    if left:
                        raise TryAgain
        finally:
            self._outages.ended(SERVICE, WRITING)
        return written

    def _count_retry(self) -> None:
        self._metrics.retries.inc(SERVICE)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def _write_once(
        self, left: list[tuple[int, UpdateOne]], written: Written
    ) -> list[tuple[int, UpdateOne]]:
        """One try; gives what must be tried again. Raises PyMongoError when all of it must."""
        try:
            result = await self._collection.bulk_write(
                [update for _, update in left], ordered=False
            )
        except BulkWriteError as error:
            again, refused = self._after_errors(left, written, error.details)
            if len(refused) == len(left):
                await self._blame_documents(refused[0][1])
            written.refused += refused
            return again
        except (DocumentTooLarge, BSONError, OverflowError, UnicodeError) as error:
            # Raised while the bulk is packed, and without saying which document it was.
            return _without_impossible(left, written, error)
        except OperationFailure as error:
            if error.code in TOO_LARGE_CODES:
                return _without_impossible(left, written, error)
            raise
        written.inserted += result.upserted_count
        written.updated += result.modified_count
        written.unchanged += result.matched_count - result.modified_count
        return []

    async def _blame_documents(self, reason: str) -> None:
        """Raises OperationFailure if what is without fault is refused as this whole bulk was.

        Then it is the world: a validator that takes nothing, or another server.
        """
        try:
            await self._try(probe_marker, probe_classification)
        except BulkWriteError as error:
            raise OperationFailure(f"every update is refused: {reason}") from error

    async def _try(self, *probes: Callable[[str, datetime], UpdateOne]) -> None:
        """Writes probes as offers are written, and leaves none behind. Raises PyMongoError."""
        ids = [f"offer-classifier.probe.{uuid.uuid4().hex}" for _ in probes]
        at = datetime.now(UTC)
        updates = [probe(probe_id, at) for probe, probe_id in zip(probes, ids, strict=True)]
        try:
            await self._collection.bulk_write(updates, ordered=False)
        finally:
            await self._collection.delete_many({"_id": {"$in": ids}})

    def _after_errors(
        self, left: list[tuple[int, UpdateOne]], written: Written, details: Mapping[str, Any]
    ) -> tuple[list[tuple[int, UpdateOne]], list[tuple[int, str]]]:
        """Counts what was written; gives what must be tried again, and what is refused and why."""
        if details.get("writeConcernErrors"):
            # Written on the primary but not by a majority: nothing may be believed yet.
            raise OperationFailure(str(details["writeConcernErrors"][0].get("errmsg")))
        written.inserted += details["nUpserted"]
        written.updated += details["nModified"]
        written.unchanged += details["nMatched"] - details["nModified"]
        again: list[tuple[int, UpdateOne]] = []
        refused: list[tuple[int, str]] = []
        world = ""
        for error in details["writeErrors"]:
            index, update = left[error["index"]]
            code, reason = error.get("code"), f"{error.get('errmsg')} (code {error.get('code')})"
            if code in DOCUMENT_CODES:
                refused.append((index, reason))
                continue
            again.append((index, update))
            if code != DUPLICATE_KEY:
                world = reason
        if world:
            self._outages.began(SERVICE, world, WRITING)
        return again, refused


def _without_impossible(
    left: list[tuple[int, UpdateOne]], written: Written, cause: Exception
) -> list[tuple[int, UpdateOne]]:
    good: list[tuple[int, UpdateOne]] = []
    for index, update in left:
        try:
            size = len(bson.encode({"q": update._filter, "u": update._doc}))
        except (BSONError, OverflowError, UnicodeError) as error:
            written.refused.append((index, str(error)))
            continue
        if size > DOCUMENT_BYTES:
            written.refused.append((index, f"{size} bytes; a document has at most 16 MiB"))
        else:
            good.append((index, update))
    if len(good) == len(left):
        raise PyMongoError(f"the bulk cannot be sent: {cause}") from cause
    return good
