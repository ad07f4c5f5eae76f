"""Measures: the figures of a set of offers, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]
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
    clusters, certain = given.clusters[offers], given.certain[offers]
    trials = dict.fromkeys(_SHARES_OF_ALL, _trials(clusters, weights))
    trials |= dict.fromkeys(_SHARES_OF_CERTAIN, _trials(clusters[certain], weights[certain]))
    return Measured(
        offers=len(offers),
        clusters=len(np.unique(clusters)),
        effective_offers=effective_size(weights) if weights.any() else 0.0,
        figures=_estimates(drawn, trials, how),
    )


def mean(
    given: Predictions, parts: Sequence[NDArray[np.int64]], how: Bootstrap
) -> dict[str, Estimate]:
    """The unweighted mean of each figure over sets of offers, at least one, that share no offer.

    Sets may share clusters: what is drawn are clusters of all the offers, for all sets at once.
    """
    offers = np.concatenate(parts)
    summed = [sums(given, part, np.ones(len(part))) for part in parts]
    borders = np.cumsum([each.rows.shape[1] for each in summed])[:-1]

    def means(draws: Floats) -> Floats:
        of_each = zip(np.split(draws, borders, axis=-1), summed, strict=True)
        averaged: Floats = np.mean([figures(some, each.labels) for some, each in of_each], axis=0)
        return averaged

    drawn = Drawn(
        estimates=means(np.concatenate([each.total() for each in summed])),
        resampled=resample(
            sp.csr_array(sp.block_diag([each.rows for each in summed])),
            given.clusters[offers],
            means,
            how,
        ),
    )
    # A mean of shares is the share of the offers that weigh as much together in every set.
    weights = np.concatenate([np.full(len(part), 1 / len(part)) for part in parts])
    certain = [part[given.certain[part]] for part in parts]
    of_certain = np.concatenate([np.full(len(part), 1 / max(1, len(part))) for part in certain])
    trials = dict.fromkeys(_SHARES_OF_ALL, _trials(given.clusters[offers], weights))
    trials |= dict.fromkeys(
        _SHARES_OF_CERTAIN, _trials(given.clusters[np.concatenate(certain)], of_certain)
    )
    return _estimates(drawn, trials, how)


def _estimates(drawn: Drawn, trials: Mapping[str, float], how: Bootstrap) -> dict[str, Estimate]:
    """With the trials of those that are shares of trials."""
    made = {}
    for i, name in enumerate(FIGURES):
        value = float(drawn.estimates[i])
        low, high = math.nan, math.nan
        if value in {0.0, 1.0}:
            # All draws agree, however few the offers are.
            low, high = wilson(value, trials.get(name, 0.0), how.confidence)
        elif name not in WITHOUT_INTERVAL:
            low, high = interval(value, drawn.resampled[:, i], how.confidence)
        made[name] = estimate(value, low, high)
    return made


def _trials(clusters: NDArray[np.int64], weights: Floats) -> float:
    """How many clusters of equal weight tell as much: at most all, and at most as many offers."""
    _, cluster = np.unique(clusters, return_inverse=True)
    summed: Floats = np.asarray(np.bincount(cluster, weights), dtype=np.float64)
    return effective_size(summed) if summed.any() else 0.0


def estimate(value: float, low: float = math.nan, high: float = math.nan) -> Estimate:
    """An estimate, with NaN as None."""
    return Estimate(*(None if math.isnan(each) else each for each in (value, low, high)))
