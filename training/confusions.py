"""Confusions: which category is taken for which, with the offers that it happened to."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.bootstrap import Floats
from training.predictions import NONE, Predictions

EXAMPLES = 3
TITLE_CHARACTERS = 160


class Example(msgspec.Struct, frozen=True):
    """One offer with a wrong answer."""

    offer_id: str
    language: str
    title: str  # its beginning
    score: float
    certain: bool


class Confusion(msgspec.Struct, frozen=True):
    """Offers of `truth` that were answered `answer`."""

    truth: str
    answer: str
    offers: int
    weight: float  # of those offers, as a share of all
    share: float  # of the offers of `truth`
    back: int  # offers of `answer` that were answered `truth`
    examples: tuple[Example, ...]  # with the highest scores


def confusions(given: Predictions, weights: Floats, most: int) -> list[Confusion]:
    """The worst: those with the most weight, and of equal weight with the most offers."""
    count = len(given.category_ids)
    wrong = np.flatnonzero((given.answers != NONE) & ~given.right)
    pairs, pair, offers = np.unique(
        given.truths[wrong] * count + given.answers[wrong], return_inverse=True, return_counts=True
    )
    weight = np.bincount(pair, weights[wrong], minlength=len(pairs)) / weights.sum()
    of_truth = np.bincount(given.truths, minlength=count)
    counted = dict(zip(pairs.tolist(), offers.tolist(), strict=True))
    # Pairs are in the order of the category ids, which decides between equals. Rounded, because
    # sums in another order differ in their last digits.
    order = np.lexsort((pairs, -offers, -np.round(weight, 12)))[:most]
    made = []
    for i in order.tolist():
        truth, answer = divmod(int(pairs[i]), count)
        made.append(
            Confusion(
                truth=given.category_ids[truth],
                answer=given.category_ids[answer],
                offers=int(offers[i]),
                weight=float(weight[i]),
                share=float(offers[i] / of_truth[truth]),
                back=counted.get(answer * count + truth, 0),
                examples=_examples(given, wrong[pair == i]),
            )
        )
    return made


def _examples(given: Predictions, offers: NDArray[np.int64]) -> tuple[Example, ...]:
    order = offers[np.argsort(-given.scores[offers], kind="stable")][:EXAMPLES]
    return tuple(
        Example(
            offer_id=given.offer_ids[row],
            language=given.languages[row],
            title=shortened(given.titles[row]),
            score=float(given.scores[row]),
            certain=bool(given.certain[row]),
        )
        for row in order.tolist()
    )


def shortened(title: str) -> str:
    """One line of a title, its end cut off where it is long."""
    line = " ".join(title.split())
    return line if len(line) <= TITLE_CHARACTERS else line[: TITLE_CHARACTERS - 1].rstrip() + "…"
