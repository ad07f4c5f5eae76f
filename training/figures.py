"""Figures: how good a model's answers are, each as a function of sums over offers.

What can be computed from sums can be computed for any weights and for any resample of the offers,
so one function gives the figure, the figure weighted to production and its interval.

An offer that got no answer is a wrong one: it takes away from accuracy and from its category's
recall, and is no category itself. Definitions are scikit-learn's, where it has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]
from numpy.typing import NDArray

from training.predictions import NONE, Predictions

BINS = 15
"""Of equal width, as Guo et al. 2017, "On Calibration of Modern Neural Networks", take them."""

FIGURES = (
    "accuracy",
    "weighted_f1",
    "macro_f1",
    "macro_f1_true_labels",
    "top_3",
    "coverage",
    "precision",
    "ece",
)
"""What is computed of every set of offers, in this order.

accuracy              share of the offers whose answer is their label
weighted_f1           sklearn.metrics.f1_score(average="weighted"): by the labels' offers
macro_f1              f1_score(average="macro"): over all that is a label or an answer
macro_f1_true_labels  the same over what is a label of one of these offers at least
top_3                 share whose label is the answer or one of the first two alternatives; NaN
                      where the answers came with fewer than the model had
coverage              share whose answer is certain; the rest is uncertain or without an answer
precision             share of the certain answers that are right
ece                   expected calibration error in 15 bins of equal width, over what was answered:
                      the weighted mean of |share that is right - mean score| (Guo et al. 2017)
"""

WITHOUT_INTERVAL = frozenset({"ece"})
"""What has none. The calibration error of few offers is above that of many, and that of a resample
above both, by an amount that depends on the error itself, which a shift cannot take away (Kumar et
al. 2019, "Verified Uncertainty Calibration")."""

_SHARES = 6  # the first columns of the sums: all, right, in the top 3, certain, certain and right,
# answered

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """What each offer adds to the sums that the figures are made of.

    `rows` (offers, columns): six shares, BINS x (weight, right, score), then labels x (right,
    true, answered) for each of the `labels` that occur.
    """

    rows: sp.csr_array
    labels: int

    def total(self) -> Floats:
        """(columns,): over all the offers."""
        total: Floats = np.asarray(self.rows.sum(axis=0), dtype=np.float64)
        return total


def sums(given: Predictions, offers: NDArray[np.int64], weights: Floats) -> Sums:
    """The sums' parts of some offers, with a weight for each of them."""
    truths, ranked = given.truths[offers], given.ranked[offers]
    answers, scores = ranked[:, 0], given.scores[offers]
    certain, answered = given.certain[offers], answers != NONE
    right = answers == truths
    in_top = (ranked == truths[:, None]).any(axis=1)
    bins = bin_of(scores)
    occurring, compact = np.unique(np.concatenate([truths, answers[answered]]), return_inverse=True)
    truths = compact[: len(offers)]
    answers = np.full(len(offers), NONE)
    answers[answered] = compact[len(offers) :]
    labels, first = len(occurring), _SHARES + 3 * BINS
    everybody = np.ones(len(offers), dtype=np.bool_)
    # NaN of every offer makes NaN of any sum of them.
    tops = (in_top, weights) if given.top else (everybody, np.full(len(offers), np.nan))
    shares = (
        (everybody, weights),
        (right, weights),
        tops,
        (certain, weights),
        (certain & right, weights),
        (answered, weights),
    )
    # One entry an offer each: the column, the offers that have it, and what they add.
    parts: list[tuple[NDArray[np.int64], NDArray[np.bool_], Floats]] = [
        (np.full(len(offers), column), mask, adds) for column, (mask, adds) in enumerate(shares)
    ]
    parts += [
        (_SHARES + bins, answered, weights),
        (_SHARES + BINS + bins, answered & right, weights),
        (_SHARES + 2 * BINS + bins, answered, weights * np.where(answered, scores, 0.0)),
        (first + truths, right, weights),
        (first + labels + truths, everybody, weights),
        (first + 2 * labels + answers, answered, weights),
    ]
    row = np.concatenate([np.flatnonzero(mask) for _, mask, _ in parts])
    column = np.concatenate([columns[mask] for columns, mask, _ in parts])
    value = np.concatenate([values[mask] for _, mask, values in parts])
    shape = (len(offers), first + 3 * labels)
    return Sums(sp.csr_array((value, (row, column)), shape=shape), labels)


def figures(summed: Floats, labels: int) -> Floats:
    """FIGURES (..., figures) of sums (..., columns); NaN where there is nothing to divide by."""
    everything, right, in_top, certain, certain_right, answered = np.moveaxis(
        summed[..., :_SHARES], -1, 0
    )
    bins = summed[..., _SHARES : _SHARES + 3 * BINS].reshape(*summed.shape[:-1], 3, BINS)
    per_label = summed[..., _SHARES + 3 * BINS :].reshape(*summed.shape[:-1], 3, labels)
    hit, true, named = np.moveaxis(per_label, -2, 0)
    f1 = share(2 * hit, true + named, 0.0)
    gaps = np.abs(bins[..., 1, :] - bins[..., 2, :]).sum(axis=-1)
    return np.stack(
        [
            share(right, everything),
            share((f1 * true).sum(axis=-1), true.sum(axis=-1)),
            share(f1.sum(axis=-1), ((true > 0) | (named > 0)).sum(axis=-1)),
            share((f1 * (true > 0)).sum(axis=-1), (true > 0).sum(axis=-1)),
            share(in_top, everything),
            share(certain, everything),
            share(certain_right, certain),
            share(gaps, answered),
        ],
        axis=-1,
    )


def share(part: Floats, whole: Floats, otherwise: float = np.nan) -> Floats:
    """part / whole, and `otherwise` where the whole is 0."""
    result = np.full(np.broadcast(part, whole).shape, otherwise)
    np.divide(part, whole, out=result, where=np.asarray(whole) > 0)
    return result


def bin_of(scores: Floats) -> NDArray[np.int64]:
    """Which of the BINS a score is in: ((i) / BINS, (i + 1) / BINS], and 0 is in the first."""
    bins = np.ceil(np.nan_to_num(scores) * BINS).astype(np.int64) - 1
    clipped: NDArray[np.int64] = np.clip(bins, 0, BINS - 1)
    return clipped


def effective_size(weights: Floats) -> float:
    """How many offers of equal weight tell as much: (sum w)^2 / sum w^2.

    Kish 1965, "Survey Sampling", for figures that are means over the offers.
    """
    return float(weights.sum() ** 2 / (weights**2).sum())
