"""Measures: the figures of a set of offers, each with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.bootstrap import Bootstrap, Floats, interval, resample, wilson
from training.figures import FIGURES, WITHOUT_INTERVAL, effective_size, figures, sums
from training.predictions import Predictions

_SHARES_OF_ALL = frozenset({"accuracy", "top_3", "coverage"})
_SHARES_OF_CERTAIN = frozenset({"precision"})


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


@dataclass(frozen=True)
class Drawn:
    """The figures, and what they are in resamples of the offers."""

    estimates: Floats  # (figures,)
    resampled: Floats  # (resamples, figures)


def draw(given: Predictions, offers: NDArray[np.int64], weights: Floats, how: Bootstrap) -> Drawn:
    """The figures of some of the offers, at least one, each with the weight given for it.

    Equal draws for any two models that were read together.
    """
    summed = sums(given, offers, weights)
    return Drawn(
        estimates=figures(summed.total(), summed.labels),
        resampled=resample(
            summed.rows, given.clusters[offers], lambda draws: figures(draws, summed.labels), how
        ),
    )


def measure(
    given: Predictions, offers: NDArray[np.int64], weights: Floats, how: Bootstrap
) -> Measured:
    """As `draw`, with an interval in place of the resamples."""
    return measured(given, offers, weights, draw(given, offers, weights, how), how)


def measured(
    given: Predictions, offers: NDArray[np.int64], weights: Floats, drawn: Drawn, how: Bootstrap
) -> Measured:
    """The figures that were drawn for these offers and weights."""
    return Measured(
        offers=len(offers),
        clusters=len(np.unique(given.clusters[offers])),
        effective_offers=effective_size(weights) if weights.any() else 0.0,
        figures=_estimates(given, offers, weights, drawn, how),
    )


def mean(drawn: list[Drawn], how: Bootstrap) -> dict[str, Estimate]:
    """The unweighted mean of each figure over sets of offers that have no cluster in common."""
    estimates = np.mean([each.estimates for each in drawn], axis=0)
    resampled = np.mean([each.resampled for each in drawn], axis=0)
    return {
        name: estimate(
            float(estimates[i]), *interval(float(estimates[i]), resampled[:, i], how.confidence)
        )
        for i, name in enumerate(FIGURES)
    }


def _estimates(
    given: Predictions, offers: NDArray[np.int64], weights: Floats, drawn: Drawn, how: Bootstrap
) -> dict[str, Estimate]:
    clusters, certain = given.clusters[offers], given.certain[offers]
    made = {}
    for i, name in enumerate(FIGURES):
        value = float(drawn.estimates[i])
        if name in WITHOUT_INTERVAL:
            made[name] = estimate(value)
            continue
        low, high = interval(value, drawn.resampled[:, i], how.confidence)
        if value in {0.0, 1.0}:
            # All draws agree, however few the offers are.
            trials = 0.0
            if name in _SHARES_OF_ALL:
                trials = _trials(clusters, weights)
            elif name in _SHARES_OF_CERTAIN:
                trials = _trials(clusters[certain], weights[certain])
            low, high = wilson(value, trials, how.confidence)
        made[name] = estimate(value, low, high)
    return made


def _trials(clusters: NDArray[np.int64], weights: Floats) -> float:
    """How many clusters of equal weight tell as much: at most all, and at most as many offers."""
    _, cluster = np.unique(clusters, return_inverse=True)
    summed = np.bincount(cluster, weights)
    return effective_size(summed) if summed.any() else 0.0


def estimate(value: float, low: float = math.nan, high: float = math.nan) -> Estimate:
    """An estimate, with NaN as None."""
    return Estimate(*(None if math.isnan(each) else each for each in (value, low, high)))
