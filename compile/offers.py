"""Texts of offers that a compiler measures on: a bounded draw by hash, whatever the rows' order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from classifier.offer import Offer
from classifier.text import TextRecipe
from compile.labelled import DataError, read_labelled, read_offers

CALIBRATION_TEXTS = 512
"""Ranges are the extremes of what was seen. Some hundred texts, ten thousand tokens, show them, and
more would only stretch them by their rarest token."""

APART_TEXTS = 1_024
"""Texts that are kept from calibration, for asking how often the winner is the same: a share of
0.99 is known to within 0.003 by so many."""

LEAST_TEXTS = 64
"""From fewer, neither ranges nor agreement can be told."""

MOST_LABELLED = 5_000
"""Accuracy is compared on at most so many texts; more would cost minutes."""


class OffersError(Exception):
    """The offers cannot be measured on. The message is one line."""


class Texts(NamedTuple):
    """What int8 is calibrated on, and what was kept from that; they share no text."""

    calibration: list[str]
    apart: list[str]


class Labelled(NamedTuple):
    """Texts with the category that each belongs to."""

    texts: list[str]
    labels: NDArray[np.int64]  # (texts,), the index of a logit; -1 where the model has none for it


def draw(file: Path, recipe: TextRecipe) -> Texts:
    """Texts of a file's offers, labelled or not: Parquet, or JSONL, plain or gzipped.

    Raises OffersError.
    """
    offers = ((offer, "") for offer in read_offers(file))
    texts = [text for text, _ in _drawn(offers, recipe, CALIBRATION_TEXTS + APART_TEXTS)]
    if len(texts) < LEAST_TEXTS:
        raise OffersError(
            f"{file}: {len(texts)} different texts are too few to calibrate on; at least"
            f" {LEAST_TEXTS} are wanted"
        )
    calibrating = min(CALIBRATION_TEXTS, len(texts) // 2)
    return Texts(texts[:calibrating], texts[calibrating:])


def draw_labelled(file: Path, recipe: TextRecipe, label_ids: Sequence[str]) -> Labelled:
    """Texts of a file's offers with their labels. Raises OffersError."""
    index = {label_id: i for i, label_id in enumerate(label_ids)}
    drawn = _drawn(read_labelled(file), recipe, MOST_LABELLED)
    if not any(label in index for _, label in drawn):
        raise OffersError(f"{file}: none of its labels is one of the model's")
    return Labelled(
        [text for text, _ in drawn],
        np.array([index.get(label, -1) for _, label in drawn], dtype=np.int64),
    )


def _drawn(
    offers: Iterator[tuple[Offer, str]], recipe: TextRecipe, most: int
) -> list[tuple[str, str]]:
    """The `most` different texts whose hashes come first, in the hashes' order, with their labels.

    Of a text that has several labels, the first by name counts.
    """
    found: dict[bytes, tuple[str, str]] = {}
    try:
        for offer, label in offers:
            if text := recipe.text(offer):
                digest = hashlib.sha256(text.encode()).digest()
                found[digest] = min(found.get(digest, (text, label)), (text, label))
                if len(found) > 4 * most:  # so that memory does not grow with the file
                    found = {key: found[key] for key in sorted(found)[: 2 * most]}
    except DataError as error:
        raise OffersError(str(error)) from error
    return [found[key] for key in sorted(found)[:most]]
