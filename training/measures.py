"""Measures: the figures of a set of offers, each with its interval."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.bootstrap import Bootstrap, Floats, interval, resample, wilson
from training.figures import FIGURES, effective_size, figures, sums
from training.predictions import Predictions


class Estimate(msgspec.Struct, frozen=True):
    """A figure and its interval; None where it is not defined."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Measured(msgspec.Struct, frozen=True):
    """All figures of a set of offers."""

    offers: int
    clusters: int
    effective_offers: float  # as many of equal weight tell as much
    figures: dict[str, Estimate]  # see training.figures.FIGURES


def measure(
    given: Predictions, offers: NDArray[np.int64], weights: Floats, how: Bootstrap
) -> Measured:
    """The figures of some of the offers, at least one, each with the weight given for it."""
    summed = sums(given, offers, weights)
    estimates = figures(summed.total(), summed.labels)
    clusters = given.clusters[offers]
    drawn = resample(summed.rows, clusters, lambda draws: figures(draws, summed.labels), how)
    count = len(np.unique(clusters))
    return Measured(
        offers=len(offers),
        clusters=count,
        effective_offers=effective_size(weights) if weights.any() else 0.0,
        figures={
            name: _estimate(name, float(value), drawn[:, i], count, how.confidence)
            for i, (name, value) in enumerate(zip(FIGURES, estimates.tolist(), strict=True))
        },
    )


def _estimate(name: str, value: float, drawn: Floats, clusters: int, confidence: float) -> Estimate:
    low, high = interval(value, drawn, confidence)
    if name in _PLAIN_SHARES and value in {0.0, 1.0}:
        # All draws agree, however few the offers are.
        low, high = wilson(value, clusters, confidence)
    return estimate(value, low, high)


_PLAIN_SHARES = frozenset({"accuracy", "top_3", "coverage"})


def estimate(value: float, low: float, high: float) -> Estimate:
    """An estimate, with NaN as None."""
    return Estimate(*(None if np.isnan(each) else each for each in (value, low, high)))
