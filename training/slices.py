"""Slices: the offers by language, source, shop, department, length and category frequency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.predictions import Predictions

UNKNOWN = "not known"
MOST_SHOPS = 50
"""Shops with a slice of their own, those with the most offers; the others share one."""


class Slice(NamedTuple):
    """Some of the offers, at least one, by their rows."""

    name: str
    offers: NDArray[np.int64]


def languages(given: Predictions) -> list[Slice]:
    return _by_name(given.languages)


def sources(given: Predictions) -> list[Slice]:
    return _by_name(given.sources)


def shops(given: Predictions, least_offers: int) -> list[Slice]:
    """The shops with the most offers, and as one slice all with few."""
    slices = sorted(_by_name(given.shops), key=lambda each: (-len(each.offers), each.name))
    own = [each for each in slices[:MOST_SHOPS] if len(each.offers) >= least_offers]
    rest = slices[len(own) :]
    if len(rest) < 2:
        return slices
    together = np.sort(np.concatenate([each.offers for each in rest]))
    return [*own, Slice(f"{len(rest):,} other shops", together)]


def by_truth(given: Predictions, group_of: Mapping[str, str]) -> list[Slice]:
    """By what group the label belongs to, such as its department."""
    of_category = [group_of.get(category_id, "") for category_id in given.category_ids]
    return _by_name([of_category[truth] for truth in given.truths.tolist()])


def lengths(given: Predictions, borders: Sequence[int]) -> list[Slice]:
    """By the characters of the text."""
    return list(_between(given.characters, borders))


def frequencies(
    given: Predictions, training_offers: Mapping[str, int], borders: Sequence[int]
) -> list[Slice]:
    """By how many training offers the label has."""
    of_category = np.array([training_offers.get(each, 0) for each in given.category_ids])
    return list(_between(of_category[given.truths], borders))


def _by_name(names: Sequence[str]) -> list[Slice]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    return [Slice(name or UNKNOWN, np.array(rows[name])) for name in sorted(rows)]


def _between(values: NDArray[np.int64], borders: Sequence[int]) -> Iterator[Slice]:
    """From each border up to the one before the next."""
    borders = sorted(set(borders))
    part = np.searchsorted(borders, values, side="right")
    for number in range(len(borders) + 1):
        offers = np.flatnonzero(part == number)
        if not len(offers):
            continue
        if number == len(borders):
            name = f"{borders[-1]:,} and more" if borders else "all"
        elif number == 0:
            name = f"under {borders[0]:,}"
        else:
            name = f"{borders[number - 1]:,} to {borders[number] - 1:,}"
        yield Slice(name, offers)
