"""Temperature and thresholds against values found by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.calibration import (
    LEAST_PREDICTIONS,
    LEAST_THRESHOLD,
    Labels,
    Logits,
    fit,
    fit_temperature,
    fit_thresholds,
    least_score,
    log_likelihood,
    probabilities,
)


def two_labels(lead: float, right: int, wrong: int) -> tuple[Logits, Labels]:
    """Rows in which label 0 leads by `lead`, and is right in so many of them."""
    logits = np.tile(np.array([lead, 0.0], np.float32), (right + wrong, 1))
    return logits, np.array([0] * right + [1] * wrong, np.int64)


@pytest.mark.parametrize(("lead", "right", "wrong"), [(4.0, 3, 1), (1.0, 9, 1), (2.0, 60, 40)])
def test_temperature_gives_the_share_that_is_right(lead: float, right: int, wrong: int) -> None:
    # With two labels and one lead, the likelihood is highest where sigmoid(lead / t) is the share
    # that is right: t = lead / log(right / wrong).
    logits, labels = two_labels(lead, right, wrong)
    assert fit_temperature(logits, labels) == pytest.approx(
        lead / math.log(right / wrong), rel=2e-3
    )


def test_temperature_stays_within_reason() -> None:
    assert fit_temperature(*two_labels(1.0, 10, 0)) == pytest.approx(0.25, rel=1e-2)
    assert fit_temperature(*two_labels(1.0, 0, 10)) == pytest.approx(8, rel=1e-2)
    assert fit_temperature(np.zeros((0, 2), np.float32), np.zeros(0, np.int64)) == 1.0


def test_temperature_of_decision_values_may_be_colder() -> None:
    logits, labels = two_labels(0.2, 9, 1)
    assert fit_temperature(logits, labels) == pytest.approx(0.25, rel=1e-2)
    colder = fit_temperature(logits, labels, coldest=0.02)
    assert colder == pytest.approx(0.2 / math.log(9), rel=2e-3)


def test_likelihood_by_hand() -> None:
    logits, labels = two_labels(2.0, 1, 1)
    expected = (-math.log1p(math.exp(-1)) - math.log1p(math.exp(1))) / 2
    assert log_likelihood(logits, labels, 2.0) == pytest.approx(expected)
    assert probabilities(logits, 2.0)[0].tolist() == pytest.approx(
        [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))]
    )


def test_likelihood_survives_large_logits() -> None:
    logits, labels = two_labels(20_000.0, 1, 0)
    assert log_likelihood(logits, labels, 0.05) == 0.0


def test_least_score_by_hand() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    right = np.array([True, True, False, True])
    even = np.ones(4)
    assert least_score(scores, right, even, 1.0) == 0.8
    assert least_score(scores, right, even, 0.75) == 0.6
    assert least_score(scores, right, even, 0.76) == 0.8
    assert least_score(scores, ~right, even, 0.5) is None
    # The wrong one weighs a third of the others: 3 / 3.33 are right.
    assert least_score(scores, right, np.array([1, 1, 1 / 3, 1]), 0.89) == 0.6


def test_equal_scores_stand_or_fall_together() -> None:
    scores = np.array([0.9, 0.7, 0.7])
    right = np.array([True, True, False])
    assert least_score(scores, right, np.ones(3), 0.9) == 0.9
    assert least_score(np.zeros(0), np.zeros(0, bool), np.zeros(0), 0.9) is None


def test_common_threshold_by_hand() -> None:
    scores = np.repeat([0.9, 0.8, 0.7, 0.6], 10)
    right = np.array([True] * 20 + [False] * 10 + [True] * 10)
    threshold, own = fit_thresholds(scores, np.arange(40), right, 0.9)
    assert threshold == 0.8
    assert own == {}


def test_category_that_errs_more_gets_a_higher_threshold() -> None:
    # Label 0 is right whenever its score is 0.6 or more, label 1 only above 0.9.
    scores = np.tile(np.linspace(0.5, 0.99, 100), 2)
    predicted = np.repeat([0, 1], 100)
    right = np.concatenate([scores[:100] >= 0.6, scores[100:] >= 0.9])
    common, own = fit_thresholds(scores, predicted, right, 0.9)
    assert own[0] < common < own[1]
    for label, threshold in own.items():
        kept = (predicted == label) & (scores >= threshold)
        assert right[kept].mean() >= 0.85  # 0.9 of the mix with everybody's answers


def test_rare_category_has_the_common_threshold() -> None:
    scores = np.full(200, 0.95)
    predicted = np.array([0] * (200 - LEAST_PREDICTIONS + 1) + [1] * (LEAST_PREDICTIONS - 1))
    _, own = fit_thresholds(scores, predicted, predicted == 0, 0.9)
    assert 1 not in own


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.booleans()), min_size=1, max_size=200)
)
def test_thresholds_are_probabilities_of_at_least_a_half(
    rows: list[tuple[float, int, bool]],
) -> None:
    scores, predicted, right = (np.array(column) for column in zip(*rows, strict=True))
    common, own = fit_thresholds(scores, predicted, right, 0.9)
    assert all(LEAST_THRESHOLD <= threshold <= 1 for threshold in (common, *own.values()))


def test_fit_says_which_answers_are_right_and_certain() -> None:
    # 40 answers of a large lead are right but for one; of 40 with a small lead every other one is.
    strong, weak = two_labels(4.0, 39, 1), two_labels(1.0, 20, 20)
    logits = np.concatenate([strong[0], weak[0]])
    labels = np.concatenate([strong[1], weak[1]])
    found = fit(logits, labels, 0.9)
    assert found.temperature == fit_temperature(logits, labels)
    assert found.right.tolist() == (labels == 0).tolist()
    assert found.certain.tolist() == [True] * 40 + [False] * 40
    scores = probabilities(logits, found.temperature)[:, 0]
    assert scores[40] < found.threshold <= scores[0]
