"""Categories: how each of them fares."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.bootstrap import Floats, wilson
from training.measures import Estimate, estimate
from training.predictions import NONE, Predictions


class CategoryShares(msgspec.Struct, frozen=True):
    """One category's shares; None where there is nothing to divide by."""

    precision: float | None
    recall: float | None
    f1: float | None
    top_3: float | None  # share of its offers; None too where alternatives were not kept
    coverage: float | None  # share of its offers with a certain answer, of whatever category
    certain_precision: float | None  # share of the certain answers with it that are right
    score: float | None  # mean of the answers with it


class CategoryFigures(msgspec.Struct, frozen=True):
    """One category that is a label or an answer, by the offers as they are."""

    category_id: str
    offers: int  # with it as their label
    answers: int  # offers that were answered it
    right: int
    precision: float | None  # this and what follows: see CategoryShares
    recall: Estimate  # the interval is Wilson's, with the clusters as trials
    f1: float | None
    top_3: float | None
    coverage: float | None
    certain_precision: float | None
    score: float | None
    weight: float  # of its offers in production, as a share of all
    production: CategoryShares | None  # weighted to production; None where there are no weights
    training_offers: int | None  # None where it is not known


def categories(
    given: Predictions,
    weights: Floats | None,
    training_offers: Mapping[str, int] | None,
    confidence: float,
) -> list[CategoryFigures]:
    """Every category of the test offers and their answers, in the order of the ids.

    `weights` (offers,) are those to production's distribution, where there are any. A test set has
    more of rare categories than production, and so more of the wrong answers that name another:
    unweighted, that one's precision is too low.
    """
    count = len(given.category_ids)
    ones = np.ones(len(given))
    answered = given.answers != NONE
    offers = np.bincount(given.truths, minlength=count).tolist()
    answers = np.bincount(given.answers[answered], minlength=count).tolist()
    hits = np.bincount(given.truths[given.right], minlength=count).tolist()
    plain = _shares(given, ones)
    produced = None if weights is None else _shares(given, weights)
    every = ones if weights is None else weights
    weight = (np.bincount(given.truths, every, minlength=count) / every.sum()).tolist()
    pairs = np.unique(np.stack([given.truths, given.clusters]), axis=1)
    clusters = np.bincount(pairs[0], minlength=count).tolist()
    made = []
    for i, category_id in enumerate(given.category_ids):
        if not (offers[i] or answers[i]):
            continue  # only an alternative, or only another model's answer
        recall = np.nan if (share := plain[i].recall) is None else share
        made.append(
            CategoryFigures(
                category_id=category_id,
                offers=offers[i],
                answers=answers[i],
                right=hits[i],
                precision=plain[i].precision,
                recall=estimate(recall, *wilson(recall, clusters[i], confidence)),
                f1=plain[i].f1,
                top_3=plain[i].top_3,
                coverage=plain[i].coverage,
                certain_precision=plain[i].certain_precision,
                score=plain[i].score,
                weight=weight[i],
                production=None if produced is None else produced[i],
                training_offers=None
                if training_offers is None
                else training_offers.get(category_id, 0),
            )
        )
    return made


def _shares(given: Predictions, weights: Floats) -> list[CategoryShares]:
    """Of every category, with the offers weighted so."""
    count = len(given.category_ids)
    answered, right = given.answers != NONE, given.right
    in_top = (given.ranked == given.truths[:, None]).any(axis=1)

    def summed(of: NDArray[np.int64], mask: NDArray[np.bool_], each: Floats) -> list[float]:
        sums: list[float] = np.bincount(of[mask], each[mask], minlength=count).tolist()
        return sums

    def of_label(mask: NDArray[np.bool_]) -> list[float]:
        return summed(given.truths, mask, weights)

    def of_answer(mask: NDArray[np.bool_]) -> list[float]:
        return summed(given.answers, mask, weights)

    true, hits = of_label(np.ones(len(given), dtype=np.bool_)), of_label(right)
    top, certain = of_label(in_top), of_label(given.certain)
    named, named_certain = of_answer(answered), of_answer(answered & given.certain)
    sure = of_answer(right & given.certain)
    scored = summed(given.answers, answered, weights * given.scores)
    return [
        CategoryShares(
            precision=_share(hits[i], named[i]),
            recall=_share(hits[i], true[i]),
            f1=_share(2 * hits[i], true[i] + named[i]),
            top_3=_share(top[i], true[i]) if given.top else None,
            coverage=_share(certain[i], true[i]),
            certain_precision=_share(sure[i], named_certain[i]),
            score=_share(scored[i], named[i]),
        )
        for i in range(count)
    ]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
