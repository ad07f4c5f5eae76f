"""Engine calls: every text once, within the budget, padded as little as the rule allows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.batching import Call, plan


def test_neighbours_in_length_share_a_call() -> None:
    calls = list(plan([9, 3, 30, 8, 3], budget=24, multiple=8, longest=64))
    assert calls == [Call([1, 4, 3], 8), Call([0], 16), Call([2], 32)]


def test_no_texts_are_no_calls() -> None:
    assert list(plan([], 64, 8, 64)) == []


@pytest.mark.parametrize(
    ("length", "padded"), [(1, 8), (7, 8), (8, 8), (9, 16), (24, 24), (25, 30), (30, 30)]
)
def test_padded_length_is_a_multiple_but_never_past_the_longest(length: int, padded: int) -> None:
    assert list(plan([length], 64, 8, 30)) == [Call([0], padded)]


def test_budget_is_used_to_its_last_token() -> None:
    assert [len(call.rows) for call in plan([8] * 9, 32, 8, 64)] == [4, 4, 1]
    assert [len(call.rows) for call in plan([8] * 9, 39, 8, 64)] == [4, 4, 1]
    assert [len(call.rows) for call in plan([8] * 9, 40, 8, 64)] == [5, 4]


def test_row_longer_than_the_budget_goes_alone() -> None:
    assert list(plan([40, 2, 40], 16, 8, 64)) == [Call([1], 8), Call([0], 40), Call([2], 40)]


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    longest = draw(st.integers(1, 70))
    lengths = draw(st.lists(st.integers(1, longest), max_size=40))
    return lengths, draw(st.integers(1, 300)), draw(st.integers(1, 20)), longest


@given(problems())
def test_every_text_is_in_exactly_one_call(problem: tuple[list[int], int, int, int]) -> None:
    lengths = problem[0]
    rows = [row for call in plan(*problem) for row in call.rows]
    assert sorted(rows) == list(range(len(lengths)))


@given(problems())
def test_every_call_keeps_the_budget_and_the_padding_rule(
    problem: tuple[list[int], int, int, int],
) -> None:
    lengths, budget, multiple, longest = problem
    calls = list(plan(*problem))
    for call in calls:
        widest = max(lengths[row] for row in call.rows)
        assert widest <= call.length <= longest
        assert call.length == longest or call.length % multiple == 0
        assert call.length - widest < multiple
        assert len(call.rows) * call.length <= budget or len(call.rows) == 1
    # A call ends only where one more row would have broken the budget.
    for call, following in pairwise(calls):
        first = lengths[following.rows[0]]
        wider = min(longest, -(-first // multiple) * multiple)
        assert (len(call.rows) + 1) * wider > budget
        assert max(lengths[row] for row in call.rows) <= first


@given(problems(), st.randoms(use_true_random=False))
def test_calls_do_not_depend_on_the_order_of_the_texts(
    problem: tuple[list[int], int, int, int], random: object
) -> None:
    lengths, *rest = problem
    shuffled = list(lengths)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def shapes(lengths: list[int]) -> list[tuple[list[int], int]]:
        return [([lengths[row] for row in call.rows], call.length)
                for call in plan(lengths, *rest)]  # fmt: skip

    assert shapes(shuffled) == shapes(lengths)


def test_texts_of_one_length_keep_their_order() -> None:
    (call,) = plan([5] * 20, 1_000, 8, 64)
    assert call.rows == list(range(20))
