"""Training examples: offers as texts, with the category that each belongs to."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.offer import Offer
from classifier.text import TextRecipe
from compile.labelled import DataError, read_offers

LEAST_TO_HOLD_OUT = 5
"""A label with fewer texts keeps them all for training: one less would hurt it more than its one
answer in validation could tell."""


@dataclass(frozen=True)
class Examples:
    """Texts and their labels, all of one length, in an order that the rows' order has no part in.

    `label_ids` is sorted: it is the order of the model's logits, and never that of a set, a file
    or a directory.
    """

    texts: list[str]
    labels: NDArray[np.int64]  # (texts,), an index into label_ids
    languages: list[str]  # "" where the offer names none
    label_ids: list[str]
    without_text: int = 0  # offers that were left out, as the service sets them aside

    def take(self, rows: NDArray[np.int64]) -> Examples:
        """These rows, with all the labels."""
        return Examples(
            [self.texts[i] for i in rows],
            self.labels[rows],
            [self.languages[i] for i in rows],
            self.label_ids,
        )

    def sha256(self) -> str:
        """A hash of the content, by which a model names what it was trained on."""
        digest = hashlib.sha256()
        for text, label in zip(self.texts, self.labels.tolist(), strict=True):
            digest.update(msgspec.json.encode((text, self.label_ids[label])))
        return digest.hexdigest()


def examples(offers: Iterable[tuple[Offer, str]], recipe: TextRecipe) -> Examples:
    """Offers with their category ids as examples, with the very texts that the service would make.

    Raises DataError when that leaves fewer than two labels.
    """
    rows: list[tuple[str, str, str]] = []
    without_text = 0
    for offer, label in offers:
        if text := recipe.text(offer):
            rows.append((text, label, offer.language or ""))
        else:
            without_text += 1
    rows.sort()
    label_ids = sorted({label for _, label, _ in rows})
    if len(label_ids) < 2:
        raise DataError(f"{len(rows)} offers with a text and {len(label_ids)} labels: too few")
    index = {label: i for i, label in enumerate(label_ids)}
    return Examples(
        texts=[text for text, _, _ in rows],
        labels=np.array([index[label] for _, label, _ in rows], dtype=np.int64),
        languages=[language for _, _, language in rows],
        label_ids=label_ids,
        without_text=without_text,
    )


def joined(first: Examples, second: Examples) -> Examples:
    """All of both, which must have the same labels."""
    return Examples(
        first.texts + second.texts,
        np.concatenate([first.labels, second.labels]),
        first.languages + second.languages,
        first.label_ids,
        first.without_text + second.without_text,
    )


def texts_of(path: Path, recipe: TextRecipe) -> list[str]:
    """The texts of a file's offers, labelled or not, each once, sorted. Raises DataError."""
    return sorted({text for offer in read_offers(path) if (text := recipe.text(offer))})


def limit(given: Examples, most: int, rng: np.random.Generator) -> Examples:
    """At most so many of the examples, drawn at random, but none of a label's last few."""
    if len(given.texts) <= most:
        return given
    rank = np.empty(len(given.texts), dtype=np.int64)
    seen: Counter[int] = Counter()
    order = rng.permutation(len(given.texts))
    for i in order.tolist():
        label = int(given.labels[i])
        rank[i] = seen[label]
        seen[label] += 1
    # First of each label as many as it takes to keep it alive, then whatever chance brings.
    chosen = sorted(order.tolist(), key=lambda i: rank[i] >= LEAST_TO_HOLD_OUT)[:most]
    return given.take(np.array(sorted(chosen), dtype=np.int64))


def hold_out(
    given: Examples, share: float, most: int, rng: np.random.Generator
) -> tuple[Examples, Examples]:
    """Split off a validation set: (the rest, about `share` of the texts but at most `most`).

    Equal texts stay on one side, so that validation asks nothing that training has seen.
    """
    first: dict[str, int] = {}
    group = np.array([first.setdefault(text, len(first)) for text in given.texts], dtype=np.int64)
    # A text's rarest label decides whether it can be spared.
    texts_of_label: list[set[int]] = [set() for _ in given.label_ids]
    for text, label in zip(group.tolist(), given.labels.tolist(), strict=True):
        texts_of_label[label].add(text)
    spare = np.ones(len(first), dtype=bool)
    for texts in texts_of_label:
        if len(texts) < LEAST_TO_HOLD_OUT:
            spare[list(texts)] = False
    wanted = min(most, round(share * len(first)))
    candidates = rng.permutation(np.flatnonzero(spare))[:wanted]
    # No label gives more than half of its texts away, however the draw falls.
    held: list[int] = []
    given_away: Counter[int] = Counter()
    label_of = dict(zip(group.tolist(), given.labels.tolist(), strict=True))
    for text in candidates.tolist():
        label = label_of[text]
        if given_away[label] < len(texts_of_label[label]) // 2:
            given_away[label] += 1
            held.append(text)
    outside = np.isin(group, held)
    return given.take(np.flatnonzero(~outside)), given.take(np.flatnonzero(outside))
