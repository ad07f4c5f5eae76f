"""Reliability: whether of the answers with a score of 0.8 eight in ten are right."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.bootstrap import Floats
from training.figures import BINS, bin_of


class Bin(msgspec.Struct, frozen=True):
    """Answers of similar score. Score and right are weighted means; None where there are none."""

    low: float  # scores of the bin, above low up to high
    high: float
    offers: int
    weight: float  # share of all answers
    score: float | None
    right: float | None


class Reliability(msgspec.Struct, frozen=True):
    """The reliability of scores. The errors are None where there is no answer.

    ece             in bins of equal width (Guo et al. 2017, "On Calibration of Modern Neural
                    Networks"): the weighted mean of |right - score|
    ece_equal_mass  in bins of equal weight (Nguyen and O'Connor 2015, "Posterior calibration and
                    exploratory analysis"), which a heap of scores near 1 does not decide alone
    brier           mean of (score - right)^2 (Brier 1950, "Verification of forecasts"), as
                    sklearn.metrics.brier_score_loss gives it
    """

    answers: int
    ece: float | None
    ece_equal_mass: float | None
    brier: float | None
    bins: tuple[Bin, ...]


def reliability(scores: Floats, right: NDArray[np.bool_], weights: Floats) -> Reliability:
    """Of scores 0 to 1, whether the answers were right, and weights, (offers,) each.

    Offers with the score NaN have no answer and are left out.
    """
    answered = ~np.isnan(scores)
    scores, right, weights = scores[answered], right[answered], weights[answered]
    total = float(weights.sum())
    if not total:
        return Reliability(len(scores), None, None, None, ())
    bins = tuple(_bins(scores, right, weights, bin_of(scores)))
    return Reliability(
        answers=len(scores),
        ece=_error(bins),
        ece_equal_mass=_error(_bins(scores, right, weights, _equal_mass(scores, weights))),
        brier=float((weights * (scores - right) ** 2).sum() / total),
        bins=bins,
    )


def _equal_mass(scores: Floats, weights: Floats) -> NDArray[np.int64]:
    """Which of the BINS each score is in when all weigh the same; equal scores share one."""
    _, group = np.unique(scores, return_inverse=True)
    mass = np.bincount(group, weights)
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    of_group = np.clip((middle * BINS).astype(np.int64), 0, BINS - 1)
    bins: NDArray[np.int64] = of_group[group]
    return bins


def _bins(
    scores: Floats, right: NDArray[np.bool_], weights: Floats, bins: NDArray[np.int64]
) -> list[Bin]:
    made = []
    for number in range(BINS):
        mine = bins == number
        mass = float(weights[mine].sum())
        made.append(
            Bin(
                low=number / BINS,
                high=(number + 1) / BINS,
                offers=int(mine.sum()),
                weight=mass / float(weights.sum()),
                score=float((weights * scores)[mine].sum() / mass) if mass else None,
                right=float((weights * right)[mine].sum() / mass) if mass else None,
            )
        )
    return made


def _error(bins: tuple[Bin, ...] | list[Bin]) -> float:
    return sum(
        each.weight * abs(each.right - each.score)
        for each in bins
        if each.right is not None and each.score is not None
    )
