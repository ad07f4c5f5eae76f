"""Two models on the same offers: whether one is better, and where."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import scipy.special  # type: ignore[import-untyped]
from numpy.typing import NDArray

from training.bootstrap import Bootstrap, Floats, interval
from training.coverage import Coverage, coverage
from training.figures import FIGURES, WITHOUT_INTERVAL
from training.measures import Drawn, Estimate, draw, estimate
from training.predictions import Predictions
from training.slices import Slice

MOST_CATEGORIES = 20
"""That fell, and that rose."""


class Difference(msgspec.Struct, frozen=True):
    """A figure of this model and of the other one; above 0 where this one's is higher."""

    own: float | None
    other: float | None
    difference: Estimate  # by the paired bootstrap: both on the same draws of the same clusters


class Part(msgspec.Struct, frozen=True):
    """Some of the offers, under both models."""

    name: str
    offers: int
    only_own: int  # offers that this model has right and the other one wrong
    only_other: int
    p_value: float  # see mcnemar
    adjusted: float  # that, for as many tests as there are parts: see holm
    accuracy: Difference
    weighted_accuracy: Difference | None  # in production


class CategoryChange(msgspec.Struct, frozen=True):
    """A category whose offers the two models do not answer equally well."""

    category_id: str
    offers: int
    own: int  # right answers
    other: int
    only_own: int
    only_other: int
    p_value: float
    adjusted: float


class Comparison(msgspec.Struct, frozen=True):
    """This model against another."""

    model: str
    both_right: int
    only_own: int
    only_other: int
    both_wrong: int
    p_value: float  # see mcnemar
    unweighted: dict[str, Difference]  # by FIGURES
    production: dict[str, Difference] | None
    parts: dict[str, list[Part]]  # by language and so on
    fell: list[CategoryChange]  # those that lost the most right answers first
    rose: list[CategoryChange]
    coverage: Coverage  # the other model's; in production where there are weights


def compare(
    own: Predictions, other: Predictions, parts: dict[str, list[Slice]], how: Bootstrap
) -> Comparison:
    """Predictions of the same offers, read together."""
    everything = np.arange(len(own))
    equal = np.ones(len(own))
    right, theirs = own.right, other.right
    fell, rose = _changes(own, other)
    return Comparison(
        model=other.model,
        both_right=int((right & theirs).sum()),
        only_own=int((right & ~theirs).sum()),
        only_other=int((~right & theirs).sum()),
        both_wrong=int((~right & ~theirs).sum()),
        p_value=_p_value(right, theirs),
        unweighted=_differences(own, other, everything, equal, how),
        production=None
        if own.weights is None
        else _differences(own, other, everything, own.weights, how),
        parts={name: _parts(own, other, slices, how) for name, slices in parts.items()},
        fell=fell,
        rose=rose,
        coverage=coverage(other.scores, theirs, equal if own.weights is None else own.weights),
    )


def mcnemar(only_one: NDArray[np.int64], only_other: NDArray[np.int64]) -> Floats:
    """How likely at least such a difference is if both models are equally good, two-sided, exact.

    McNemar 1947, "Note on the sampling error of the difference between correlated proportions":
    under equality an offer that just one of them has right is either's with a chance of one half.
    It takes the offers for independent; where clusters are large, trust the bootstrap's interval.
    """
    fewer, both = np.minimum(only_one, only_other), only_one + only_other
    p_values: Floats = np.minimum(1.0, 2 * scipy.special.bdtr(fewer, both, 0.5))
    return p_values


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values for the question whether any of these tests is wrong to say "different".

    Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def _p_value(right: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    only_own, only_other = np.flatnonzero(right & ~theirs), np.flatnonzero(~right & theirs)
    return float(mcnemar(np.array(len(only_own)), np.array(len(only_other))))


def _differences(
    own: Predictions,
    other: Predictions,
    offers: NDArray[np.int64],
    weights: Floats,
    how: Bootstrap,
) -> dict[str, Difference]:
    mine, theirs = (draw(each, offers, weights, how) for each in (own, other))
    return {name: _difference(mine, theirs, i, how) for i, name in enumerate(FIGURES)}


def _difference(mine: Drawn, theirs: Drawn, figure: int, how: Bootstrap) -> Difference:
    one, two = float(mine.estimates[figure]), float(theirs.estimates[figure])
    apart = mine.resampled[:, figure] - theirs.resampled[:, figure]
    low, high = interval(one - two, apart, how.confidence, lowest=-1.0)
    if FIGURES[figure] in WITHOUT_INTERVAL:
        low, high = math.nan, math.nan
    return Difference(
        own=estimate(one).value,
        other=estimate(two).value,
        difference=estimate(one - two, low, high),
    )


def _parts(own: Predictions, other: Predictions, slices: list[Slice], how: Bootstrap) -> list[Part]:
    p_values = [_p_value(own.right[rows], other.right[rows]) for _, rows in slices]
    made = []
    for (name, rows), p_value, adjusted in zip(slices, p_values, holm(p_values), strict=True):
        weights = None if own.weights is None else own.weights[rows]
        right, theirs = own.right[rows], other.right[rows]
        made.append(
            Part(
                name=name,
                offers=len(rows),
                only_own=int((right & ~theirs).sum()),
                only_other=int((~right & theirs).sum()),
                p_value=p_value,
                adjusted=adjusted,
                accuracy=_differences(own, other, rows, np.ones(len(rows)), how)["accuracy"],
                weighted_accuracy=None
                if weights is None
                else _differences(own, other, rows, weights, how)["accuracy"],
            )
        )
    return made


def _changes(
    own: Predictions, other: Predictions
) -> tuple[list[CategoryChange], list[CategoryChange]]:
    count = len(own.category_ids)
    right, theirs = own.right, other.right
    offers, mine, others, gained, lost = (
        np.bincount(own.truths[mask], minlength=count)
        for mask in (right | True, right, theirs, right & ~theirs, ~right & theirs)
    )
    apart = np.flatnonzero(gained + lost)
    p_values = mcnemar(gained[apart], lost[apart]).tolist()
    changes = [
        CategoryChange(
            category_id=own.category_ids[i],
            offers=int(offers[i]),
            own=int(mine[i]),
            other=int(others[i]),
            only_own=int(gained[i]),
            only_other=int(lost[i]),
            p_value=p_value,
            adjusted=adjusted,
        )
        for i, p_value, adjusted in zip(apart.tolist(), p_values, holm(p_values), strict=True)
    ]
    changes.sort(key=lambda each: (each.own - each.other, each.p_value, each.category_id))
    fell = [each for each in changes if each.own < each.other]
    rose = [each for each in changes if each.own > each.other]
    rose.sort(key=lambda each: (each.other - each.own, each.p_value, each.category_id))
    return fell[:MOST_CATEGORIES], rose[:MOST_CATEGORIES]
