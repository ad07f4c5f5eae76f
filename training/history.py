"""The history: what became of each category, model after model.

A JSON lines file, one line an evaluation, in the order in which they were made. The same model on
the same test set has one line, however often it is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from classifier import jsonl
from classifier.whole_file import appearing
from training.judgement import Judgement
from training.stage import StageError


class CategoryPast(msgspec.Struct, frozen=True, array_like=True):
    """One category under one model: its test offers, how many were right, and its F1."""

    offers: int
    right: int
    f1: float | None
    production_f1: float | None = None  # weighted to production, where there were weights


class Entry(msgspec.Struct, frozen=True):
    """One model on one test set."""

    model: str
    test_set: str  # SHA-256; figures of different ones are not to be compared offer by offer
    at: str  # ISO 8601, UTC: when it was first judged
    taxonomy: str | None
    offers: int
    figures: dict[str, dict[str, float | None]]  # weighting -> figure -> value
    categories: dict[str, CategoryPast]

    @property
    def weighted(self) -> bool:
        """Whether its categories have figures that are weighted to production."""
        return any(each.production_f1 is not None for each in self.categories.values())


def read(path: Path) -> list[Entry]:
    """The entries of a file; none where there is no file. Raises StageError."""
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(Entry)
    try:
        return [decoder.decode(line) for line in jsonl.read(path)]
    except jsonl.FileError as error:
        raise StageError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StageError(f"{path}: is no history that can be read: {error}") from error


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Write all of them, in place of what was there. Raises FileError."""
    encoder = msgspec.json.Encoder(order="sorted")
    with appearing(path) as file:
        file.writelines(encoder.encode(entry) + b"\n" for entry in entries)


def entry(judged: Judgement, at: datetime) -> Entry:
    """What the history keeps of a judgement."""
    return Entry(
        model=judged.model,
        test_set=judged.test_set.sha256,
        at=at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        taxonomy=judged.taxonomy,
        offers=judged.test_set.offers,
        figures={
            weighting: {name: figure.value for name, figure in measured.figures.items()}
            for weighting, measured in judged.overall.items()
        },
        categories={
            each.category_id: CategoryPast(
                each.offers,
                each.right,
                each.f1,
                None if each.production is None else each.production.f1,
            )
            for each in judged.categories
        },
    )


def has(entries: Sequence[Entry], model: str, test_set: str) -> bool:
    return any((each.model, each.test_set) == (model, test_set) for each in entries)


def add(entries: Sequence[Entry], new: Entry) -> list[Entry]:
    """With the new one at the end, or in the place and with the date that it had already."""
    added = list(entries)
    for i, old in enumerate(entries):
        if (old.model, old.test_set) == (new.model, new.test_set):
            added[i] = msgspec.structs.replace(new, at=old.at)
            return added
    return [*added, new]
