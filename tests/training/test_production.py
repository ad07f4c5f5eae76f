"""What production sees is counted by the labels of today, from a file or from MongoDB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pymongo
import pytest

from training.changes import ChangeSet, Merge, Retire, apply
from training.production import Production, count, read
from training.production import write as write_counts
from training.stage import StageError
from training.taxonomy import Category, Taxonomy, first

LANGUAGES = ("de", "en", "fr", "es", "it")


def before() -> Taxonomy:
    return first(
        Category(id_, dict.fromkeys(LANGUAGES, id_), None)
        for id_ in ("cables", "cases", "covers", "faxes")
    )


def after() -> Taxonomy:
    """Covers are cases now, and nobody sells faxes."""
    base = before()
    changes = (Merge(id="covers", into="cases"), Retire(id="faxes"))
    return apply(base, ChangeSet(base.version, changes)).taxonomy


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_counts_of_an_older_edition_follow_its_changes(tmp_path: Path) -> None:
    counts = {"cables": 5, "cases": 2, "covers": 3, "faxes": 1}
    path = write(tmp_path / "counts.json", {"taxonomy": before().version, "counts": counts})
    assert read(path, after()) == Production({"cables": 5, "cases": 5}, {"faxes": 1})


def test_counts_without_an_edition_are_of_the_one_in_use(tmp_path: Path) -> None:
    path = write(tmp_path / "counts.json", {"counts": {"cases": 2, "covers": 3}})
    assert read(path, after()) == Production({"cases": 2}, {"covers": 3})


def test_counts_come_back_as_they_were_written_and_follow_later_changes(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    counted = Production({"cables": 1, "covers": 3, "faxes": 2}, {"sample-1/cases": 7, "faxes": 1})
    write_counts(path, counted, before())
    assert read(path, before()) == counted
    assert read(path, after()) == Production(
        {"cables": 1, "cases": 3}, {"faxes": 3, "sample-1/cases": 7}
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "holds no counts"),
        ('{"counts": {"cases": "many"}}', "holds no counts"),
        ('{"counts": {"cases": -1}}', "'cases' has -1 offers"),
        ('{"taxonomy": "9-00000000", "counts": {"cases": 1}}', "edition 9-00000000 is none"),
        ('{"counts": {}, "count": {}}', "unknown field"),
    ],
)
def test_file_that_is_none_is_refused_with_a_line(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "counts.json"
    path.write_text(content)
    with pytest.raises(StageError, match=message) as caught:
        read(path, after())
    assert "counts.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused_with_a_line(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="cannot be read: No such file"):
        read(tmp_path / "counts.json", after())


def test_classifications_are_counted_by_edition_and_removed_offers_are_not(
    mongodb: str, database: str
) -> None:
    old, new = before().version, after().version
    rows = [
        *[(old, "covers", "classified")] * 3,
        *[(new, "cases", "classified")] * 2,
        (new, "cases", "uncertain"),
        (new, "cases", "removed"),
        (old, "faxes", "classified"),
        ("sample-1", "cases", "classified"),
    ]
    documents: list[dict[str, object]] = [
        {"_id": str(number), "taxonomy": version, "category_id": category, "status": status}
        for number, (version, category, status) in enumerate(rows)
    ]
    # A marker, as a tombstone leaves it, has no category at all.
    documents.append({"_id": "marker", "status": "removed"})
    with pymongo.MongoClient[dict[str, object]](mongodb) as client:
        client[database]["classifications"].insert_many(documents)
    found = count(mongodb, database, "classifications", after(), 5_000)
    assert found == Production({"cases": 6}, {"faxes": 1, "sample-1/cases": 1})


def test_collection_that_is_not_there_counts_nothing(mongodb: str, database: str) -> None:
    assert count(mongodb, database, "classifications", after(), 5_000) == Production({}, {})


def test_database_that_is_away_is_one_line() -> None:
    with pytest.raises(StageError, match=r"MongoDB, offers.classifications: ") as caught:
        count("mongodb://127.0.0.1:1/", "offers", "classifications", after(), 300)
    assert "\n" not in str(caught.value)


def test_password_of_a_wrong_uri_is_not_shown() -> None:
    for uri in ("mongodb://me:sec:ret@here:there/", "http://me:sec:ret@here"):
        with pytest.raises(StageError, match="the URI is wrong") as caught:
            count(uri, "offers", "classifications", after(), 300)
        assert "ret" not in str(caught.value)
