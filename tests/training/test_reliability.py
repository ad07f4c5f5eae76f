"""Calibration errors and the Brier score, by hand and by scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from training.figures import BINS
from training.reliability import reliability


def drawn(seed: int, offers: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of which seven tenths are right, and weights."""
    rng = np.random.default_rng(seed)
    scores = rng.random(offers)
    return scores, rng.random(offers) < 0.7 * scores, rng.gamma(1.0, size=offers)


def test_brier_score_is_that_of_scikit_learn() -> None:
    scores, right, weights = drawn(0)
    found = reliability(scores, right, weights)
    assert found.brier == pytest.approx(brier_score_loss(right, scores, sample_weight=weights))


@pytest.mark.parametrize(("strategy", "name"), [("uniform", "ece"), ("quantile", "ece_equal_mass")])
def test_calibration_error_is_made_of_the_curve_of_scikit_learn(strategy: str, name: str) -> None:
    # 405 offers make 15 bins of 27.
    scores, right, _ = drawn(1, offers=405)
    found = reliability(scores, right, np.ones(405))
    share, score = calibration_curve(right, scores, n_bins=BINS, strategy=strategy)
    weight = (
        np.histogram(scores, np.linspace(0, 1, BINS + 1))[0] / 405
        if strategy == "uniform"
        else np.full(BINS, 1 / BINS)
    )
    expected = float((weight * abs(share - score)).sum())
    assert getattr(found, name) == pytest.approx(expected, abs=0.004 if "mass" in name else 1e-9)


def test_bins_by_hand() -> None:
    scores = np.array([0.95, 0.95, 1.0, 0.02, np.nan])
    right = np.array([True, False, True, False, False])
    found = reliability(scores, right, np.array([1.0, 2.0, 1.0, 4.0, 9.0]))
    assert found.answers == 4
    assert [each.offers for each in found.bins] == [1, *[0] * 13, 3]
    first, last = found.bins[0], found.bins[-1]
    assert (first.weight, first.score, first.right) == pytest.approx((0.5, 0.02, 0.0))
    assert (last.low, last.high) == pytest.approx((14 / 15, 1.0))
    assert (last.weight, last.right) == pytest.approx((0.5, 2 / 4))
    assert last.score == pytest.approx((3 * 0.95 + 1.0) / 4)
    assert found.ece == pytest.approx(0.5 * 0.02 + 0.5 * abs(0.5 - 3.85 / 4))
    assert found.bins[5].score is None


def test_equal_scores_are_never_told_apart() -> None:
    scores = np.full(30, 0.8)
    right = np.arange(30) < 24
    for order in (np.arange(30), np.arange(30)[::-1]):
        found = reliability(scores[order], right[order], np.ones(30))
        assert found.ece_equal_mass == pytest.approx(0.0)


def test_heap_of_equal_scores_has_a_bin_of_its_own() -> None:
    # Beside 49 that are wrong, 51 at 0.9 that are right: were they in one bin, errors would cancel.
    scores = np.concatenate([np.arange(1, 50) / 100, np.full(51, 0.9)])
    found = reliability(scores, scores > 0.5, np.ones(100))
    assert found.ece_equal_mass == pytest.approx(0.51 * 0.1 + scores[:49].sum() / 100)


def test_scores_that_are_what_they_say_have_no_error() -> None:
    scores, right = np.repeat([0.25, 0.75], 4), np.array([1, 0, 0, 0, 1, 1, 1, 0], dtype=bool)
    found = reliability(scores, right, np.ones(8))
    assert found.ece == found.ece_equal_mass == pytest.approx(0.0)
    assert found.brier == pytest.approx(0.25 * 0.75)


def test_no_answers_have_no_error() -> None:
    found = reliability(np.array([np.nan]), np.array([False]), np.ones(1))
    assert (found.answers, found.ece, found.ece_equal_mass, found.brier) == (0, None, None, None)
    assert found.bins == ()
