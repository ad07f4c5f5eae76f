"""Hierarchy: F1 over the levels above a label, where a source's labels have parents.

As the Mining the Web of Product Data challenge scores its classification (Zhang et al. 2020): the
weighted F1 of each level, averaged over the levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from training.predictions import NONE, Predictions
from training.slices import sources
from training.stage import StageError


class Parent(msgspec.Struct, frozen=True):
    """A category above a label."""

    label: str


class Label(msgspec.Struct, frozen=True):
    """A label, and what is above it, nearest first."""

    parents: tuple[Parent, ...] = ()


def load(path: Path) -> dict[str, Label]:
    """Labels by their ids: JSON of label -> {name, source, parents: [{label, name}]}.

    Raises StageError.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Label])
    except OSError as error:
        raise StageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StageError(f"{path}: no labels with their parents: {error}") from error


def by_source(given: Predictions, labels: Mapping[str, Label]) -> dict[str, float]:
    """Of each source whose labels have parents: the mean of the weighted F1 over the levels.

    Raises StageError where a label or an answer is not known.
    """
    unknown = [each for each in given.category_ids if each not in labels]
    if unknown:
        raise StageError(f"{len(unknown)} labels have no entry, {unknown[0]!r} for one")
    found = {}
    for part in sources(given):
        truths = [given.category_ids[row] for row in given.truths[part.offers].tolist()]
        answers = [
            None if row == NONE else given.category_ids[row]
            for row in given.answers[part.offers].tolist()
        ]
        if any(labels[truth].parents for truth in truths):
            found[part.name] = mean_f1(truths, answers, labels)
    return found


def mean_f1(
    truths: Sequence[str], answers: Sequence[str | None], labels: Mapping[str, Label]
) -> float:
    """Over the labels' own level and as many above as the deepest truth has parents.

    A label with fewer parents stands for itself at the levels that it lacks: its topmost category.
    """
    from sklearn.metrics import f1_score  # takes seconds to import, and most tables need none

    levels = 1 + max(len(labels[truth].parents) for truth in truths)
    scores = []
    for level in range(levels):
        true = [_at(truth, level, labels) for truth in truths]
        named = ["" if each is None else _at(each, level, labels) for each in answers]
        scores.append(float(f1_score(true, named, average="weighted", zero_division=0.0)))
    return sum(scores) / levels


def _at(label: str, level: int, labels: Mapping[str, Label]) -> str:
    chain = [label, *(parent.label for parent in labels[label].parents)]
    return chain[min(level, len(chain) - 1)]
