"""Training and validation sets as a stage reads them: texts by its recipe, labels of one order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from classifier import artifact
from classifier.artifact import Label
from classifier.text import TextRecipe
from compile.labelled import read_labelled
from training.examples import Examples, examples
from training.stage import StageError
from training.taxonomy import labels as labels_of
from training.taxonomy import load

Say = Callable[[str], None]


class Sets(NamedTuple):
    """What is trained on and what is asked, with the labels of both in one order."""

    training: Examples
    validation: Examples  # with the labels of training
    labels: tuple[Label, ...]
    taxonomy: str


def read(
    recipe: TextRecipe,
    train: Path,
    validation: Path,
    taxonomy: Path | None,
    say: Say,
    *,
    learns_both: bool = False,
) -> Sets:
    """The two sets. A category that only validation has is left out, unless the model that is
    published `learns_both`.

    Raises StageError, DataError.
    """
    training = _read(recipe, train, say)
    if learns_both:
        held = _read(recipe, validation, say)
        order = sorted({*training.label_ids, *held.label_ids})
        training, held = _relabelled(training, order), _relabelled(held, order)
    else:
        order = training.label_ids
        held = read_held(recipe, validation, order, say)
    names, version = _described(taxonomy, order)
    return Sets(training, held, names, version)


def read_held(recipe: TextRecipe, validation: Path, label_ids: list[str], say: Say) -> Examples:
    """A validation set as a model with these labels, sorted, is asked it: without the categories
    that training had no offer of.

    Raises DataError.
    """
    held = _read(recipe, validation, say)
    if unknown := set(held.label_ids).difference(label_ids):
        say(f"{validation}: {len(unknown):,} categories that training lacks are left out")
        rows = np.flatnonzero([held.label_ids[i] not in unknown for i in held.labels])
        held = held.take(rows)
    return _relabelled(held, label_ids)


def _read(recipe: TextRecipe, path: Path, say: Say) -> Examples:
    given = examples(read_labelled(path), recipe)
    if given.without_text:
        say(f"{path}: {given.without_text:,} offers without a usable text are left out")
    return given


def _relabelled(given: Examples, label_ids: list[str]) -> Examples:
    index = {label_id: i for i, label_id in enumerate(label_ids)}
    moved = np.array([index.get(label_id, -1) for label_id in given.label_ids], dtype=np.int64)
    return Examples(
        given.texts, moved[given.labels], given.languages, label_ids, given.without_text
    )


def _described(taxonomy: Path | None, label_ids: list[str]) -> tuple[tuple[Label, ...], str]:
    """The labels with what the taxonomy says of them, and its version."""
    if taxonomy is None:
        # The set of labels stands for a taxonomy that nobody named.
        labels = tuple(map(Label, label_ids))
        return labels, f"labels-{artifact.labels_hash(labels)[:12]}"
    edition = load(taxonomy)
    known = {label.id: label for label in labels_of(edition)}
    if unknown := [label_id for label_id in label_ids if label_id not in known]:
        raise StageError(
            f"{len(unknown)} labels of the training offers are no labels of {taxonomy}"
            f" (version {edition.version}), {unknown[0]!r} for one: sample them anew"
        )
    return tuple(known[label_id] for label_id in label_ids), edition.version
