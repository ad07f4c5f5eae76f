"""Errors: how many a model makes where another one makes so many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Relative(NamedTuple):
    """A model's errors in another one's."""

    mean: float | None  # over the sources; None where the other makes no error anywhere
    by_source: dict[str, float | None]  # None where the other makes none
    worse: list[str]  # sources with more errors than the other, the worst first


def relative(own: Mapping[str, float], other: Mapping[str, float]) -> Relative:
    """Of accuracies by source (or by language), of the same ones: the ratio of the errors in each,
    and its unweighted mean.

    Some sources are large and easy, so the ratio over all offers would say little about the others.
    """
    if own.keys() != other.keys():
        raise ValueError("two models that were asked different sources cannot be compared")
    ratios = {
        source: None if other[source] == 1 else (1 - own[source]) / (1 - other[source])
        for source in own
    }
    known = [ratio for ratio in ratios.values() if ratio is not None]
    gap = {source: other[source] - own[source] for source in own}
    return Relative(
        mean=sum(known) / len(known) if known else None,
        by_source=ratios,
        worse=sorted((each for each in gap if gap[each] > 0), key=lambda each: (-gap[each], each)),
    )
