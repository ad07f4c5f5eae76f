"""Coverage against precision: how many answers one may act on, and how many of those are right."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.bootstrap import Floats

POINTS = 100
"""Of the curve: enough for a plot."""
PRECISIONS = (0.8, 0.85, 0.9, 0.95, 0.97, 0.99)
"""What a site may ask of the answers that it acts on without a person's look."""


class Point(msgspec.Struct, frozen=True):
    """Acting on the answers with at least this score."""

    score: float
    coverage: float  # share of all offers
    precision: float  # share of those answers that are right


class AtPrecision(msgspec.Struct, frozen=True):
    """The most that can be covered with so many right; no point where no score gets there."""

    asked: float
    point: Point | None


class Coverage(msgspec.Struct, frozen=True):
    """The selective classifier's curve: El-Yaniv and Wiener 2010, "On the Foundations of
    Noise-free Selective Classification", with precision for 1 - risk.

    One threshold for all categories makes it. What the artefact's own thresholds, a category each,
    make of it are the figures coverage and precision.
    """

    points: tuple[Point, ...]  # from the highest score on
    at: tuple[AtPrecision, ...]


def coverage(scores: Floats, right: NDArray[np.bool_], weights: Floats) -> Coverage:
    """Of scores, whether the answers were right, and weights, (offers,) each.

    Offers with the score NaN have no answer: nothing covers them, and they count.
    """
    answered = np.flatnonzero(~np.isnan(scores))
    order = answered[np.argsort(-scores[answered], kind="stable")]
    covered = np.cumsum(weights[order])
    hit = np.cumsum((weights * right)[order])
    # Equal scores are acted on together, and what weighs nothing is no point.
    last = np.append(np.diff(scores[order]) != 0, np.ones(min(1, len(order)), dtype=np.bool_))
    ends = np.flatnonzero(last & (covered > 0))
    total = float(weights.sum())
    precision = hit[ends] / covered[ends]

    def point(i: int) -> Point:
        end = ends[i]
        return Point(
            score=float(scores[order[end]]),
            coverage=float(covered[end] / total),
            precision=float(precision[i]),
        )

    wanted = np.linspace(0, total, POINTS + 1)[1:]
    chosen = np.unique(np.minimum(np.searchsorted(covered[ends], wanted), len(ends) - 1))
    reached = [(asked, np.flatnonzero(precision >= asked)) for asked in PRECISIONS]
    return Coverage(
        points=tuple(point(i) for i in chosen.tolist()) if len(ends) else (),
        at=tuple(
            AtPrecision(asked, point(int(enough[-1])) if len(enough) else None)
            for asked, enough in reached
        ),
    )
