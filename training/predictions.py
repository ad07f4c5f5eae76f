"""Predictions: what a model answered to labelled offers, as `classifier classify` writes it.

A Parquet or JSON lines file with the offer's columns, `label`, where known `weight`, `cluster` and
`source`, and the answer: category_id, score, alternatives, status, model, error.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier import jsonl
from classifier.bulk import is_parquet
from classifier.offer import Offer
from classifier.text import DEFAULT_RECIPE
from training.stage import StageError

TOP = 3
"""The answer and so many alternatives less one are what a person would be shown to choose from."""
MOST_WEIGHT = 1e9
"""No offer stands for more than that many times its share; sums of squares stay finite."""
NONE = -1
"""In place of a category: there is no answer, or no such alternative."""


class Alternative(msgspec.Struct, frozen=True, gc=False):
    """A category that was nearly answered."""

    category_id: str
    score: float


class _Error(msgspec.Struct, frozen=True, gc=False):
    reason: str
    detail: str | None = None


class _Row(Offer, frozen=True, gc=False):
    label: str | None = None
    source: str | None = None
    cluster: str | None = None
    weight: Annotated[float, msgspec.Meta(ge=0, le=MOST_WEIGHT)] | None = None
    category_id: str | None = None
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    alternatives: tuple[Alternative, ...] | None = None
    status: Literal["classified", "uncertain"] | None = None
    model: str | None = None
    error: _Error | None = None


@dataclass(frozen=True)
class Predictions:
    """One model's answers, in the order of the offer ids; every array has a row an offer.

    Categories are indices into `category_ids`, which is sorted and shared by the models that were
    read together.
    """

    model: str  # the artefact's id
    category_ids: list[str]
    offer_ids: list[str]
    truths: NDArray[np.int64]  # (offers,)
    ranked: NDArray[np.int64]  # (offers, TOP), the answer first; NONE where there is none
    top: bool  # whether every answer came with the alternatives that TOP takes
    scores: NDArray[np.float64]  # (offers,), 0 to 1 of the answer; NaN where there is none
    certain: NDArray[np.bool_]  # (offers,), whether the status is "classified"
    errors: list[str]  # the reason why there is no answer; "" where there is one
    weights: NDArray[np.float64] | None  # (offers,), mean 1, to production's distribution
    clusters: NDArray[np.int64]  # (offers,), 0 ..; an offer of no cluster is one by itself
    languages: list[str]  # "" where it is not known, as with the next two
    sources: list[str]
    shops: list[str]
    titles: list[str]
    characters: NDArray[np.int64]  # (offers,), of the text that the default recipe makes

    def __len__(self) -> int:
        return len(self.offer_ids)

    @property
    def answers(self) -> NDArray[np.int64]:
        """(offers,), NONE where there is none."""
        answers: NDArray[np.int64] = self.ranked[:, 0]
        return answers

    @property
    def right(self) -> NDArray[np.bool_]:
        """(offers,)."""
        right: NDArray[np.bool_] = self.answers == self.truths
        return right

    def test_set(self) -> str:
        """SHA-256 of which offers were asked, what is true of them, and what they weigh."""
        digest = hashlib.sha256()
        for offer_id, truth in zip(self.offer_ids, self.truths.tolist(), strict=True):
            digest.update(msgspec.json.encode((offer_id, self.category_ids[truth])))
        if self.weights is not None:
            digest.update(msgspec.json.encode(self.weights.tolist()))
        return digest.hexdigest()


def read(
    files: Mapping[str, Path], successors: Mapping[str, str] | None = None
) -> dict[str, Predictions]:
    """Read classified files of the same offers, by a name for each.

    The truth, and all else that belongs to the offers, is the first file's. An answer that has
    become another category since, in `successors`, counts as that one.

    Raises StageError: a file cannot be read, a row has no label or no offer id, an offer stands
    twice or has both no answer and no error, a file holds the answers of several models, or the
    files are not of the same offers with the same labels.
    """
    became = successors or {}
    read_rows = {name: _rows(path) for name, path in files.items()}
    first = next(iter(files))
    for name, path in files.items():
        _same_offers(files[first], read_rows[first], path, read_rows[name])
    categories: set[str] = set()
    for rows in read_rows.values():
        for row in rows:
            categories.add(row.label or "")
            categories.update(_ranked(row, became))
    category_ids = sorted(categories)
    return {
        name: _predictions(files[name], rows, read_rows[first], category_ids, became)
        for name, rows in read_rows.items()
    }


def label_counts(path: Path) -> dict[str, int]:
    """How many offers each label has in a file of labelled offers. Raises StageError."""
    counts: dict[str, int] = {}
    if is_parquet(path):
        labels = [row.get("label") for row in _parquet(path, ("label",))]
    else:
        labels = [row.label for row in _lines(path)]
    for label in labels:
        if label is not None:
            if not isinstance(label, str):
                raise StageError(f"{path}: the labels are no strings, such as {label!r}")
            counts[label] = counts.get(label, 0) + 1
    if not counts:
        raise StageError(f"{path}: no offer has a label")
    return counts


def _rows(path: Path) -> list[_Row]:
    """Checked, and sorted by offer id: the file's order has no part in any figure."""
    rows = _converted(path) if is_parquet(path) else _lines(path)
    if not rows:
        raise StageError(f"{path}: has no offers")
    for number, row in enumerate(rows, start=1):
        if row.label is None or not row.label.strip():
            raise StageError(f"{path}, row {number}: offer {row.offer_id!r} has no label")
        if (row.category_id is None) == (row.error is None):
            raise StageError(
                f"{path}, row {number}: offer {row.offer_id!r} must have a category_id or an error;"
                " is it a file that `classifier classify` wrote?"
            )
        if row.category_id is not None and row.score is None:
            raise StageError(f"{path}, row {number}: offer {row.offer_id!r} has no score")
    rows.sort(key=lambda row: row.offer_id)
    for one, other in itertools.pairwise(rows):
        if one.offer_id == other.offer_id:
            raise StageError(f"{path}: offer {one.offer_id!r} stands there twice")
    if len({row.weight is None for row in rows}) > 1:
        raise StageError(f"{path}: some offers have a weight and some have none")
    if rows[0].weight is not None and not sum(row.weight or 0.0 for row in rows) > 0:
        raise StageError(f"{path}: all weights are 0")
    models = sorted({row.model for row in rows if row.model is not None})
    if len(models) > 1:
        raise StageError(
            f"{path}: holds the answers of {len(models)} models ({', '.join(models[:3])}); "
            "an evaluation is of one"
        )
    return rows


def _lines(path: Path) -> list[_Row]:
    decoder = msgspec.json.Decoder(_Row)
    rows: list[_Row] = []
    try:
        for number, line in enumerate(jsonl.read(path), start=1):
            try:
                rows.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise StageError(f"{path}, row {number}: {error}") from error
    except jsonl.FileError as error:
        raise StageError(str(error)) from error
    return rows


def _converted(path: Path) -> list[_Row]:
    rows: list[_Row] = []
    for number, row in enumerate(_parquet(path, _Row.__struct_fields__), start=1):
        try:
            rows.append(msgspec.convert(row, _Row))
        except msgspec.ValidationError as error:
            raise StageError(f"{path}, row {number}: {error}") from error
    return rows


def _parquet(path: Path, wanted: Sequence[str]) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in wanted]
            rows: list[dict[str, Any]] = file.read(columns=columns).to_pylist()
    except (pa.ArrowException, OSError) as error:
        line = str(error).split("\n", 1)[0]
        raise StageError(f"{path} is no Parquet file that can be read: {line}") from error
    return rows


def _same_offers(path: Path, rows: list[_Row], other_path: Path, others: list[_Row]) -> None:
    if [row.offer_id for row in rows] != [row.offer_id for row in others]:
        apart = {row.offer_id for row in rows} ^ {row.offer_id for row in others}
        raise StageError(
            f"{path} and {other_path} are not of the same offers: {len(apart)} are in only one, "
            f"such as {min(apart)!r}"
        )
    for row, other in zip(rows, others, strict=True):
        if row.label != other.label:
            raise StageError(
                f"{path} and {other_path}: offer {row.offer_id!r} is labelled {row.label!r} "
                f"in one and {other.label!r} in the other"
            )


def _ranked(row: _Row, became: Mapping[str, str]) -> list[str]:
    if row.category_id is None:
        return []
    ranked = [row.category_id, *(each.category_id for each in row.alternatives or ())][:TOP]
    return [became.get(category_id, category_id) for category_id in ranked]


def _has_top(rows: list[_Row]) -> bool:
    """Whether every answer names TOP categories, or all of the model's labels if it has fewer."""
    counts, labels = [], set()
    for row in rows:
        if row.category_id is not None:
            named = [row.category_id, *(each.category_id for each in row.alternatives or ())]
            counts.append(len(named))
            labels.update(named)
    # What the model named at all is all that its answers tell of its labels.
    return min(counts, default=TOP) >= min(TOP, len(labels))


def _predictions(
    path: Path,
    rows: list[_Row],
    offers: list[_Row],
    category_ids: list[str],
    became: Mapping[str, str],
) -> Predictions:
    index = {category_id: i for i, category_id in enumerate(category_ids)}
    ranked = np.full((len(rows), TOP), NONE, dtype=np.int64)
    for i, row in enumerate(rows):
        for place, category_id in enumerate(_ranked(row, became)):
            ranked[i, place] = index[category_id]
    weights = None
    if offers[0].weight is not None:
        weights = np.array([row.weight for row in offers], dtype=np.float64)
        weights /= weights.mean()
    # An offer without a cluster gets one that no named cluster can be.
    names = [("", row.offer_id) if row.cluster is None else (row.cluster,) for row in offers]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    return Predictions(
        model=next((row.model for row in rows if row.model is not None), path.name),
        category_ids=category_ids,
        offer_ids=[row.offer_id for row in offers],
        truths=np.array([index[row.label or ""] for row in offers], dtype=np.int64),
        ranked=ranked,
        top=_has_top(rows),
        scores=np.array([np.nan if row.category_id is None else row.score for row in rows]),
        certain=np.array([row.status == "classified" for row in rows], dtype=np.bool_),
        errors=["" if row.error is None else row.error.reason or "unknown" for row in rows],
        weights=weights,
        clusters=np.array([number[name] for name in names], dtype=np.int64),
        languages=[row.language or "" for row in offers],
        sources=[row.source or "" for row in offers],
        shops=[row.shop_id or "" for row in offers],
        titles=[row.title or row.description or "" for row in offers],
        characters=np.array([len(DEFAULT_RECIPE.text(row)) for row in offers], dtype=np.int64),
    )
