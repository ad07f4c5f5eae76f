"""Coverage against precision, by hand and against trying every threshold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.coverage import PRECISIONS, coverage

offers = st.lists(
    st.tuples(
        st.one_of(st.just(float("nan")), st.sampled_from([0.1, 0.4, 0.5, 0.9, 1.0])),
        st.booleans(),
        st.integers(min_value=0, max_value=3),
    ),
    min_size=1,
    max_size=30,
).filter(lambda rows: sum(weight for _, _, weight in rows) > 0)


@settings(max_examples=200, deadline=None)
@given(offers)
def test_every_point_is_what_acting_on_its_score_gives(
    rows: list[tuple[float, bool, int]],
) -> None:
    scores, right, weights = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    found = coverage(scores, right.astype(bool), weights)
    tried = {}
    for score in sorted({each for each in scores.tolist() if each == each}):
        acted = scores >= score
        if weights[acted].sum() > 0:
            tried[score] = (
                weights[acted].sum() / weights.sum(),
                (weights * right)[acted].sum() / weights[acted].sum(),
            )
    for point in found.points:
        assert (point.coverage, point.precision) == pytest.approx(tried[point.score])
    assert [point.coverage for point in found.points] == sorted(
        point.coverage for point in found.points
    )
    for each in found.at:
        enough = [covered for covered, right_share in tried.values() if right_share >= each.asked]
        assert (each.point is None) == (not enough)
        if each.point is not None:
            assert each.point.coverage == pytest.approx(max(enough))


def test_by_hand() -> None:
    scores = np.array([0.9, 0.8, 0.8, 0.3, np.nan])
    right = np.array([True, True, False, False, False])
    found = coverage(scores, right, np.ones(5))
    assert [(p.score, p.coverage, p.precision) for p in found.points] == [
        (0.9, 0.2, 1.0),
        (0.8, 0.6, pytest.approx(2 / 3)),
        (0.3, 0.8, 0.5),
    ]
    assert [each.asked for each in found.at] == list(PRECISIONS)
    assert {each.point.coverage if each.point else None for each in found.at} == {0.2}


def test_curve_has_a_hundred_points_at_most_and_ends_with_all_answers() -> None:
    scores = np.linspace(0, 1, 5_000)
    found = coverage(scores, scores > 0.5, np.ones(5_000))
    assert 95 <= len(found.points) <= 100
    assert found.points[-1].coverage == 1.0
    assert found.points[-1].precision == pytest.approx(0.5)


def test_no_answers_have_no_curve() -> None:
    found = coverage(np.array([np.nan]), np.array([False]), np.ones(1))
    assert found.points == ()
    assert all(each.point is None for each in found.at)
