"""Measures: whether the intervals hold what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.training.answered import QUICK, predictions, row
from training.bootstrap import Floats, wilson
from training.measures import measure
from training.predictions import Predictions


def equal(given: Predictions) -> Floats:
    return np.ones(len(given))


def test_all_right_is_no_certainty_for_offers_that_weigh_as_one(tmp_path: Path) -> None:
    weights = np.array([100.0, *[0.01] * 99])
    given = predictions(tmp_path, [row(i, "a", "a") for i in range(100)])
    found = measure(given, np.arange(100), weights, QUICK)
    assert found.effective_offers == pytest.approx(1.02, abs=0.01)
    for name in ("accuracy", "top_3", "coverage", "precision"):
        figure = found.figures[name]
        assert figure.value == 1.0
        assert figure.low == pytest.approx(wilson(1.0, found.effective_offers, 0.95)[0])
        assert figure.low is not None
        assert figure.low < 0.25


def test_precision_of_one_is_as_certain_as_the_products_of_the_certain_answers(
    tmp_path: Path,
) -> None:
    # Six certain answers of two products with three offers each, and many uncertain ones.
    rows = [row(i, "a", "a", "b", "c", cluster=f"k{i % 2}") for i in range(6)]
    rows += [row(i, "a", "b", "a", "c", score=0.1, cluster=f"l{i}") for i in range(6, 60)]
    given = predictions(tmp_path, rows)
    figure = measure(given, np.arange(60), equal(given), QUICK).figures["precision"]
    assert (figure.value, figure.low) == pytest.approx((1.0, wilson(1.0, 2, 0.95)[0]))


def test_f1_that_every_resample_repeats_has_no_interval(tmp_path: Path) -> None:
    given = predictions(tmp_path, [row(i, "a", "a") for i in range(9)])
    found = measure(given, np.arange(9), equal(given), QUICK).figures["macro_f1"]
    assert (found.value, found.low, found.high) == (1.0, None, None)
