"""Scores that mean what they say: a temperature, and thresholds below which one had better not act.

Fitted on validation examples, which the model was not trained on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]

COLDEST, HOTTEST = 0.25, 8.0
"""What no model needs to leave: a few validation examples without an error would ask for zero."""
LEAST_PREDICTIONS = 20
"""A category predicted more rarely in validation gets the threshold of all: its own would be noise.
"""
LEAST_THRESHOLD = 0.5
"""An answer that is more likely wrong than right is uncertain, however good the others are."""
PRIOR_PREDICTIONS = 20
"""How many predictions of the average category a category's own are weighed against."""


class Calibration(NamedTuple):
    """How scores are made of logits, and from which score on an answer is certain."""

    temperature: float
    threshold: float
    thresholds: dict[int, float]  # of labels that differ
    right: NDArray[np.bool_]  # (rows,) of validation: whether the answer is the label
    certain: NDArray[np.bool_]  # (rows,) whether its score reaches its threshold


def fit(logits: Logits, labels: Labels, precision: float, coldest: float = COLDEST) -> Calibration:
    """Temperature and thresholds of validation logits (rows, labels) and labels (rows,).

    Of the answers above their thresholds a share of `precision` is right.
    """
    temperature = fit_temperature(logits, labels, coldest)
    scores = probabilities(logits, temperature)
    predicted, top = scores.argmax(axis=1), scores.max(axis=1)
    right = predicted == labels
    threshold, thresholds = fit_thresholds(top, predicted, right, precision)
    least = np.array([thresholds.get(label, threshold) for label in predicted.tolist()])
    return Calibration(temperature, threshold, thresholds, right, top >= least)


def log_likelihood(logits: Logits, labels: Labels, temperature: float) -> float:
    """Mean log probability of the true labels under softmax(logits / temperature)."""
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    normaliser = np.log(np.exp(scaled).sum(axis=1))
    return float((scaled[np.arange(len(labels)), labels] - normaliser).mean())


def fit_temperature(logits: Logits, labels: Labels, coldest: float = COLDEST) -> float:
    """The temperature in coldest..8 with the highest likelihood, to three digits.

    Guo et al. 2017, "On Calibration of Modern Neural Networks". The likelihood is concave in
    1 / temperature, so a golden-section search finds the maximum.
    """
    if not len(labels):
        return 1.0
    ratio = (np.sqrt(5) - 1) / 2
    low, high = np.log(1 / HOTTEST), np.log(1 / coldest)  # of the inverse temperature
    while high - low > 1e-4:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if log_likelihood(logits, labels, float(np.exp(-left))) < log_likelihood(
            logits, labels, float(np.exp(-right))
        ):
            low = left
        else:
            high = right
    return float(f"{np.exp(-(low + high) / 2):.3g}")


def probabilities(logits: Logits, temperature: float) -> NDArray[np.float64]:
    """softmax(logits / temperature), (rows, labels)."""
    scaled = logits.astype(np.float64) / temperature
    exponents = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = exponents / exponents.sum(axis=1, keepdims=True)
    return shares


def least_score(
    scores: NDArray[np.float64],
    right: NDArray[np.bool_],
    weights: NDArray[np.float64],
    precision: float,
) -> float | None:
    """The lowest score from which on a share of at least `precision` of the weight is right.

    None when no score reaches that.
    """
    order = np.argsort(-scores, kind="stable")
    reached = np.cumsum((weights * right)[order]) / np.cumsum(weights[order])
    # Equal scores stand or fall together: only the last of each can be the border.
    last = np.append(np.diff(scores[order]) != 0, np.ones(min(1, len(order)), dtype=bool))
    enough = np.flatnonzero((reached >= precision) & last)
    return float(scores[order[enough[-1]]]) if len(enough) else None


def fit_thresholds(
    scores: NDArray[np.float64],
    predicted: Labels,
    right: NDArray[np.bool_],
    precision: float,
) -> tuple[float, dict[int, float]]:
    """Thresholds above which `precision` of the answers are right, by category too.

    Of calibrated top `scores` (rows,), the labels `predicted` (rows,), and whether they were
    `right`: one threshold for all, and one for each label that was predicted often enough and
    differs. A label's own answers are weighed against a few of everybody's, so that it takes
    evidence to leave the common threshold; none is below LEAST_THRESHOLD.
    """
    everyone = np.ones(len(scores))
    common = _threshold(least_score(scores, right, everyone, precision), LEAST_THRESHOLD)
    own: dict[int, float] = {}
    for label in np.unique(predicted).tolist():
        mine = predicted == label
        if mine.sum() < LEAST_PREDICTIONS:
            continue
        weights = mine + PRIOR_PREDICTIONS / len(scores)
        threshold = _threshold(least_score(scores, right, weights, precision), common)
        if threshold != common:
            own[label] = threshold
    return common, own


def _threshold(score: float | None, otherwise: float) -> float:
    return otherwise if score is None else max(LEAST_THRESHOLD, float(np.floor(score * 1e4) / 1e4))
