"""Which texts share an engine call: by length, under a token budget.

Every padded token costs as much as a real one, so neighbours in length go together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Call(NamedTuple):
    """One engine call: the rows it takes (indices into the texts) and the length to pad to."""

    rows: list[int]
    length: int


def plan(lengths: Sequence[int], budget: int, multiple: int, longest: int) -> Iterator[Call]:
    """Engine calls that cover each text once, shortest first.

    `lengths` are tokens a text, from 1 to `longest`. A call's rows times its padded length stay
    within `budget` tokens, unless a single row is longer than that. The padded length is the
    longest row's, rounded up to a multiple of `multiple` but never past `longest`.
    """
    rows: list[int] = []
    padded = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        wider = min(longest, -(-lengths[row] // multiple) * multiple)
        if rows and wider * (len(rows) + 1) > budget:
            yield Call(rows, padded)
            rows = []
        rows.append(row)
        padded = wider
    if rows:
        yield Call(rows, padded)
