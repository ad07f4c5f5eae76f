"""Categories: how each of them fares."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from training.bootstrap import Floats, wilson
from training.measures import Estimate, estimate
from training.predictions import NONE, Predictions


class CategoryFigures(msgspec.Struct, frozen=True):
    """One category that is a label or an answer; None where there is nothing to divide by."""

    category_id: str
    offers: int  # with it as their label
    answers: int  # offers that were answered it
    right: int
    precision: float | None
    recall: Estimate  # the interval is Wilson's, with the clusters as trials
    f1: float | None
    top_3: float | None  # share of its offers; None too where alternatives were not kept
    coverage: float | None  # share of its offers with a certain answer, of whatever category
    certain_precision: float | None  # share of the certain answers with it that are right
    score: float | None  # mean of the answers with it
    weight: float  # of its offers in production, as a share of all
    training_offers: int | None  # None where it is not known


def categories(
    given: Predictions,
    weights: Floats,
    training_offers: Mapping[str, int] | None,
    confidence: float,
) -> list[CategoryFigures]:
    """Every category of the test offers and their answers, in the order of the ids."""
    count = len(given.category_ids)
    answered, right = given.answers != NONE, given.right
    truths, answers = given.truths, given.answers
    in_top = (given.ranked == truths[:, None]).any(axis=1)

    def of_label(mask: np.typing.NDArray[np.bool_]) -> list[int]:
        counts: list[int] = np.bincount(truths[mask], minlength=count).tolist()
        return counts

    def of_answer(mask: np.typing.NDArray[np.bool_]) -> list[int]:
        counts: list[int] = np.bincount(answers[mask], minlength=count).tolist()
        return counts

    everything = np.ones(len(given), dtype=np.bool_)
    offers, hits, top, certain = map(of_label, (everything, right, in_top, given.certain))
    named, named_certain, sure = map(
        of_answer, (answered, answered & given.certain, right & given.certain)
    )
    scored = np.bincount(answers[answered], given.scores[answered], minlength=count).tolist()
    weight = (np.bincount(truths, weights, minlength=count) / weights.sum()).tolist()
    pairs = np.unique(np.stack([truths, given.clusters]), axis=1)
    clusters = np.bincount(pairs[0], minlength=count).tolist()
    made = []
    for i, category_id in enumerate(given.category_ids):
        if not (offers[i] or named[i]):
            continue  # only an alternative, or only another model's answer
        recall = hits[i] / offers[i] if offers[i] else np.nan
        made.append(
            CategoryFigures(
                category_id=category_id,
                offers=offers[i],
                answers=named[i],
                right=hits[i],
                precision=_share(hits[i], named[i]),
                recall=estimate(recall, *wilson(recall, clusters[i], confidence)),
                f1=_share(2 * hits[i], offers[i] + named[i]),
                top_3=_share(top[i], offers[i]) if given.top else None,
                coverage=_share(certain[i], offers[i]),
                certain_precision=_share(sure[i], named_certain[i]),
                score=_share(scored[i], named[i]),
                weight=weight[i],
                training_offers=None
                if training_offers is None
                else training_offers.get(category_id, 0),
            )
        )
    return made


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
