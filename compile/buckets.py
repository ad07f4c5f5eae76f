"""Which shapes to compile: buckets over (batch, length), chosen from the lengths of real traffic.

A compiled graph costs what its shape costs, whatever of it is padding, so the lengths go where the
offers are; and there are few of them, because each is compiled for minutes and lies in the device's
memory with all its weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

COUNT = 5
"""Lengths to compile. On the sample catalogue's offers the fifth still saves some percent of the
tokens, and more save next to nothing; see docs/compile.md."""

CALL_TOKENS = 256
"""Tokens a run, batch times length. An offer has 16 to 64, which makes batches of 4 to 16, where
the vendor's own tables for encoders have the most throughput on Inf2; to be measured on the device.
"""

MULTIPLE = 8
"""Lengths are multiples of it, so that none is an odd number of tokens; the longest alone need not
be."""


class Shape(NamedTuple):
    """What one graph is compiled for."""

    batch: int
    length: int


def shapes(
    histogram: Mapping[int, int],
    longest: int,
    count: int = COUNT,
    tokens: int = CALL_TOKENS,
    multiple: int = MULTIPLE,
) -> list[Shape]:
    """At most `count` shapes, shortest first, of about `tokens` tokens each.

    `histogram` says how many texts have each number of tokens, none more than `longest`, which the
    last shape has, because a text of that length may come at any time.
    """
    return [Shape(max(1, tokens // n), n) for n in edges(histogram, longest, count, multiple)]


def edges(histogram: Mapping[int, int], longest: int, count: int, multiple: int) -> list[int]:
    """The at most `count` lengths to pad to that cost the fewest padded tokens; the last `longest`.

    By dynamic programming over the candidate lengths: the best with n edges up to a length is the
    best with n - 1 up to some shorter one, and everything between them padded to that length.
    """
    if count < 1 or longest < 1 or multiple < 1:
        raise ValueError("count, longest and multiple must be at least 1")
    if beyond := [length for length in histogram if not 1 <= length <= longest]:
        raise ValueError(f"a text of {beyond[0]} tokens; there are 1 to {longest}")
    candidates = [*range(multiple, longest, multiple), longest]
    # texts[i]: how many are no longer than candidates[i]
    texts = [sum(n for length, n in histogram.items() if length <= edge) for edge in candidates]
    # cost[i]: padded tokens of all texts up to candidates[i], which is the last edge so far
    cost = [n * edge for n, edge in zip(texts, candidates, strict=True)]
    chosen = [[edge] for edge in candidates]
    best = cost[-1], chosen[-1]
    for _ in range(count - 1):
        next_cost, next_chosen = list(cost), list(chosen)
        for last in range(1, len(candidates)):
            edge = candidates[last]
            for before in range(last):
                total = cost[before] + (texts[last] - texts[before]) * edge
                if total < next_cost[last]:
                    next_cost[last] = total
                    next_chosen[last] = [*chosen[before], edge]
        cost, chosen = next_cost, next_chosen
        best = min(best, (cost[-1], chosen[-1]), key=lambda found: found[0])
    return best[1]


def padded_tokens(histogram: Mapping[int, int], edges: Sequence[int]) -> int:
    """What the texts of `histogram` come to when each is padded to the next of the ascending edges.

    Full batches are assumed: how a call that fills no bucket is dealt out is the engine's affair.
    """
    return sum(
        n * next(edge for edge in edges if edge >= length) for length, n in histogram.items()
    )


def lengths(rows: Iterable[Sequence[int]]) -> Counter[int]:
    """How many of the rows of token ids have each length."""
    return Counter(map(len, rows))
