"""Production: how many offers of each category the service sees.

From a file, or counted in MongoDB over the classifications that the service wrote. Those are a
model's answers, so a category that the model mistakes for another has the other's share: an
estimate, as good as the model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pymongo
from pymongo import ReadPreference
from pymongo.errors import ConfigurationError, InvalidURI, PyMongoError

from classifier.classification import REMOVED
from training.stage import StageError, write_json
from training.taxonomy import Taxonomy, TaxonomyError, remap_from


@dataclass(frozen=True)
class Production:
    """Offers a category, by the labels of one edition of the taxonomy."""

    counts: dict[str, int]  # label -> offers, sorted; only labels of the edition
    lost: dict[str, int]  # category ids that have no label there, with their offers


class _File(msgspec.Struct, forbid_unknown_fields=True):
    counts: dict[str, int]
    taxonomy: str | None = None  # the edition that the counts are of; None: the one in use
    lost: dict[str, int] = {}  # offers of none of its labels, as `write` keeps them


def read(path: Path, taxonomy: Taxonomy) -> Production:
    """The counts of a file: {"taxonomy": version, "counts": {category id: offers}, "lost": {}}.

    Only the counts must be there. Raises StageError.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise StageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise StageError(f"{path}: holds no counts: {error}") from error
    for label, offers in (*file.counts.items(), *file.lost.items()):
        if offers < 0:
            raise StageError(f"{path}: category {label!r} has {offers} offers")
    try:
        found = remapped({(file.taxonomy or taxonomy.version): file.counts}, taxonomy)
    except TaxonomyError as error:
        raise StageError(f"{path}: {error}") from None
    lost = Counter(found.lost)
    lost.update(file.lost)
    return Production(found.counts, dict(sorted(lost.items())))


def write(path: Path, production: Production, taxonomy: Taxonomy) -> None:
    """Writes the counts, by the labels of `taxonomy`, as `read` takes them. Raises FileError."""
    content = _File(production.counts, taxonomy.version, production.lost)
    write_json(path, content)


def count(
    uri: str, database: str, collection: str, taxonomy: Taxonomy, timeout_ms: int
) -> Production:
    """The classifications of a MongoDB collection, counted by the server; removed offers are none.

    Those of editions that did not lead to this taxonomy are lost, each under its edition's name.
    The count reads the whole collection, from a secondary where there is one. Raises StageError.
    """
    pipeline: list[dict[str, Any]] = [
        {"$match": {"status": {"$ne": REMOVED}}},
        {
            "$group": {
                "_id": {"taxonomy": "$taxonomy", "category_id": "$category_id"},
                "offers": {"$sum": 1},
            }
        },
    ]
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    try:
        with pymongo.MongoClient[dict[str, Any]](
            uri, serverSelectionTimeoutMS=timeout_ms, connectTimeoutMS=timeout_ms
        ) as client:
            stored = client[database].get_collection(
                collection, read_preference=ReadPreference.SECONDARY_PREFERRED
            )
            for row in stored.aggregate(pipeline, allowDiskUse=True):
                version, category = row["_id"].get("taxonomy"), row["_id"].get("category_id")
                counts[str(version)][str(category)] = int(row["offers"])
    except (InvalidURI, ConfigurationError) as error:
        # Their messages quote the URI, password and all.
        raise StageError(f"MongoDB: the URI is wrong ({type(error).__name__})") from None
    except PyMongoError as error:
        raise StageError(f"MongoDB, {database}.{collection}: {_one_line(error)}") from error
    led = set(taxonomy.versions())
    known = {version: by for version, by in counts.items() if version in led}
    lost = {
        f"{version}/{category}": offers
        for version, by in counts.items()
        if version not in led
        for category, offers in by.items()
    }
    found = remapped(known, taxonomy)
    return Production(found.counts, dict(sorted({**found.lost, **lost}.items())))


def remapped(counts: dict[str, dict[str, int]], taxonomy: Taxonomy) -> Production:
    """Counts by edition and category, as counts by the labels of one edition.

    A split category's offers are lost where only subcategories say where they went: a
    classification has none. Raises TaxonomyError when an edition is none of the taxonomy's.
    """
    now: dict[str, int] = {}
    lost: dict[str, int] = {}
    for version, by_category in counts.items():
        remap = remap_from(taxonomy, version)
        for category, count in by_category.items():
            label = remap(category)
            into, key = (lost, category) if label is None else (now, label)
            into[key] = into.get(key, 0) + count
    return Production(dict(sorted(now.items())), dict(sorted(lost.items())))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
