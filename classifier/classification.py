"""What is stored of an offer, and the guard by which the newest event wins.

Events of one offer are ordered by (revision, Kafka timestamp, promotion of the model, offset,
partition); no revision counts below every revision. MongoDB compares arrays element by element and
null below numbers, so the whole order is one comparison of two arrays, inside one pipeline update
on `_id` alone. A filter on the revision would make a stale event's upsert fail with a duplicate
key.

Offset and partition decide only between events of one millisecond: with a key those are of one
partition, without one any order will do if it is always the same. The very same event answered by
the same model leaves the document as it is; answered by another model it replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import UpdateOne

from classifier.offer import Offer
from classifier.record import Record, Removal
from classifier.scores import Prediction

Document = dict[str, Any]

REMOVED = "removed"
"""`status` of the marker that a tombstone leaves."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """Which model answered: the artefact's id, its promotion number, its taxonomy's version."""

    model: str
    promotion: int
    taxonomy: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An offer with its answer, on its way to MongoDB."""

    record: Record
    offer: Offer
    prediction: Prediction
    text_hash: str

    @property
    def offer_id(self) -> str:
        return self.offer.offer_id

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Which of two events of one batch is newer; their model is the same."""
        revision, record = self.offer.revision, self.record
        return (
            -1 if revision is None else revision,
            record.timestamp,
            record.offset,
            record.partition,
        )


Event = Answered | Removal


def document(answered: Answered, answerer: Answerer, at: datetime) -> Document:
    """The classification as MongoDB holds it."""
    record, prediction = answered.record, answered.prediction
    return {
        "_id": answered.offer.offer_id,
        "category_id": prediction.category_id,
        "score": prediction.score,
        "alternatives": prediction.alternative_documents(),
        "status": prediction.status,
        "model": answerer.model,
        "promotion": answerer.promotion,
        "taxonomy": answerer.taxonomy,
        "revision": answered.offer.revision,
        "timestamp": record.timestamp,
        "text_hash": answered.text_hash,
        "source": _source(record),
        "classified_at": at,
    }


def upsert(classification: Document) -> UpdateOne:
    """Stores a classification unless the stored event is newer, or the same by the same model.

    Over a marker it is stored only if its revision is not lower and it came later.
    """
    revision = classification["revision"]
    timestamp = classification["timestamp"]
    source = classification["source"]
    place = [source["offset"], source["partition"]]
    is_same_model = {"$eq": ["$model", {"$literal": classification["model"]}]}
    stored = ["$revision", "$timestamp", "$promotion", *_PLACE, is_same_model]
    event = {"$literal": [revision, timestamp, classification["promotion"], *place, False]}
    over_marker = {
        "$or": [
            {"$gt": ["$revision", {"$literal": revision}]},
            {"$gte": [_CAME, {"$literal": [timestamp, *place]}]},
        ]
    }
    keep = {"$cond": [_IS_MARKER, over_marker, {"$gt": [stored, event]}]}
    return _guarded(classification["_id"], keep, {"$literal": classification})


def remove(removal: Removal, at: datetime) -> UpdateOne:
    """Leaves a marker in place of a classification, unless the stored event is newer.

    A tombstone without a revision takes the stored one's, which may be lower than one still to
    come. So a marker never goes back in time: a tombstone that came earlier only raises its
    revision.
    """
    record = removal.record
    came = [record.timestamp, record.offset, record.partition]
    came_earlier = {"$gte": [_CAME, {"$literal": came}]}
    if removal.revision is None:
        revision: Any = {"$ifNull": ["$revision", None]}
        keep = came_earlier
    else:
        revision = {"$literal": removal.revision}
        keep = {"$gte": [["$revision", *_CAME], {"$literal": [removal.revision, *came]}]}
    raised = {"$and": [_IS_MARKER, came_earlier]}
    marker = {
        "_id": {"$literal": removal.offer_id},
        "status": REMOVED,
        "revision": revision,
        "timestamp": {"$cond": [raised, "$timestamp", record.timestamp]},
        "source": {"$cond": [raised, "$source", {"$literal": _source(record)}]},
        "removed_at": at,
    }
    return _guarded(removal.offer_id, keep, marker)


def probe_marker(probe_id: str, at: datetime) -> UpdateOne:
    """The marker of an offer that never was, to see whether a server can run guarded updates."""
    return remove(Removal(_Probe(), probe_id, None), at)


def probe_classification(probe_id: str, at: datetime) -> UpdateOne:
    """A classification without fault, of an offer that never was."""
    event = Answered(
        _Probe(), Offer(probe_id), Prediction("probe", 0.5, (), "classified"), "0" * 32
    )
    # Should nobody come to delete it, the index that clears markers does.
    return upsert(document(event, Answerer("probe", 0, "probe"), at) | {"removed_at": at})


def waves(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The events to write, in bulks that hold each offer once, to be written one after another.

    Of successive offers of one id only the newest is left. Only an id that is removed and offered
    anew within the batch needs a second wave; the guard then decides, as it would between batches.
    """
    by_id: dict[str, list[Event]] = {}
    for event in events:
        seen = by_id.get(event.offer_id)
        if seen is None:
            by_id[event.offer_id] = [event]
        elif not (isinstance(event, Answered) and isinstance(seen[-1], Answered)):
            seen.append(event)
        elif event.order >= seen[-1].order:
            seen[-1] = event
    while by_id:
        yield [seen[0] for seen in by_id.values()]
        by_id = {offer_id: seen[1:] for offer_id, seen in by_id.items() if len(seen) > 1}


@dataclass(frozen=True, slots=True)
class _Probe:
    topic: str = ""
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


_PLACE = ["$source.offset", "$source.partition"]
_CAME = ["$timestamp", *_PLACE]
_IS_MARKER = {"$eq": ["$status", REMOVED]}


def _source(record: Record) -> Document:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def _guarded(offer_id: str, keep: Document, replacement: Document) -> UpdateOne:
    # $literal keeps an id or a value that starts with "$" from being read as an expression.
    replace = {"$replaceWith": {"$cond": [keep, "$$ROOT", replacement]}}
    return UpdateOne({"_id": {"$eq": offer_id}}, [replace], upsert=True)
