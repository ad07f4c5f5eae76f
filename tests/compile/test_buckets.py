"""Which shapes are compiled: where the texts are, and never more padding than needed."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compile.buckets import MULTIPLE, Shape, edges, lengths, padded_tokens, shapes

LONGEST = 21
histograms = st.dictionaries(st.integers(1, LONGEST), st.integers(1, 1_000), min_size=1)


@given(histograms, st.integers(1, 4), st.sampled_from([1, 4, 8]))
def test_no_other_choice_of_as_many_lengths_pads_less(
    histogram: dict[int, int], count: int, multiple: int
) -> None:
    chosen = edges(histogram, LONGEST, count, multiple)
    candidates = range(multiple, LONGEST, multiple)
    least = min(
        padded_tokens(histogram, [*others, LONGEST])
        for size in range(count)
        for others in combinations(candidates, size)
    )
    assert padded_tokens(histogram, chosen) == least
    assert len(chosen) <= count


@given(histograms, st.integers(1, 6))
def test_lengths_rise_to_the_longest_text_that_may_come(
    histogram: dict[int, int], count: int
) -> None:
    chosen = edges(histogram, LONGEST, count, 4)
    assert chosen == sorted(set(chosen))
    assert chosen[-1] == LONGEST
    assert all(edge % 4 == 0 for edge in chosen[:-1])


def test_lengths_follow_the_traffic() -> None:
    short = {6: 900, 7: 900, 15: 50, 60: 1}
    assert edges(short, 64, 3, 8) == [8, 16, 64]
    assert edges({50: 900, 56: 900, 7: 2}, 64, 3, 8) == [8, 56, 64]


def test_a_length_that_saves_nothing_is_not_compiled() -> None:
    assert edges({8: 10, 16: 10}, 16, 5, 8) == [8, 16]
    assert edges({16: 10}, 16, 5, 8) == [16]


def test_runs_of_every_shape_are_of_about_as_many_tokens() -> None:
    made = shapes({6: 100, 14: 100, 30: 20, 64: 1}, 64, count=4, tokens=256)
    assert made == [Shape(32, 8), Shape(16, 16), Shape(8, 32), Shape(4, 64)]
    assert shapes({300: 1}, 512, count=1, tokens=256) == [Shape(1, 512)]
    assert all(batch == 1 for batch, _ in shapes({6: 1, 30: 1}, 32, tokens=1))
    assert MULTIPLE == 8


def test_a_text_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="a text of 33 tokens; there are 1 to 32"):
        edges({33: 1}, 32, 2, 8)
    with pytest.raises(ValueError, match="a text of 0 tokens"):
        edges({0: 1}, 32, 2, 8)
    with pytest.raises(ValueError, match="at least 1"):
        edges({4: 1}, 32, 0, 8)


def test_a_histogram_counts_rows_by_their_length() -> None:
    assert lengths([[1, 2], [3, 4], [5]]) == {2: 2, 1: 1}
