"""Measures: whether the intervals hold what they say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.training.answered import QUICK, chance, predictions, row
from training.bootstrap import Bootstrap, Floats, wilson
from training.figures import FIGURES, WITHOUT_INTERVAL
from training.measures import mean, measure
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


def test_calibration_error_has_no_interval(tmp_path: Path) -> None:
    # Any resample of offers has more of it than they have, and they more than there is.
    given = predictions(tmp_path, chance(0, 80))
    found = measure(given, np.arange(80), equal(given), QUICK).figures["ece"]
    assert found.value is not None
    assert (found.low, found.high) == (None, None)


def test_intervals_cover_as_often_as_they_say(tmp_path: Path) -> None:
    """Test sets of 200 products of two offers, some four times as frequent in production.

    What a share is, is known. The mean F1 of such test sets is what they have on average, as the
    F1 of few offers is another than that of many.
    """
    trials, products, categories = 200, 200, 50
    rows = [row(i, f"c{i % 50:02}", "c00", "c01", "c02") for i in range(2 * products)]
    base = predictions(tmp_path, rows)
    cluster, offers = np.repeat(np.arange(products), 2), np.arange(2 * products)
    rng = np.random.default_rng(3)
    values, low, high = (np.empty((trials, len(FIGURES))) for _ in range(3))
    for trial in range(trials):
        frequent = (rng.random(products) < 0.3)[cluster]
        weights = np.where(frequent, 4.0, 1.0)
        right = rng.random(products)[cluster] < np.where(frequent, 0.6, 0.85)
        truths = rng.integers(categories, size=products)[cluster]
        apart = rng.integers(1, categories, size=products)[cluster]
        answers = np.where(right, truths, (truths + apart) % categories)
        given = dataclasses.replace(
            base,
            truths=truths,
            ranked=np.stack([answers, answers, answers], axis=1),
            certain=(rng.random(products) < 0.7)[cluster],
            clusters=cluster,
        )
        found = measure(given, offers, weights, Bootstrap(100, 0.95, trial)).figures
        for i, name in enumerate(FIGURES):
            each = found[name]
            values[trial, i], low[trial, i], high[trial, i] = (
                np.nan if value is None else value for value in (each.value, each.low, each.high)
            )
    right_share = (0.3 * 4 * 0.6 + 0.7 * 0.85) / (0.3 * 4 + 0.7)
    # The alternatives repeat the answer, so that the first three are right as often as it is.
    truth = dict.fromkeys(("accuracy", "precision", "top_3"), right_share) | {"coverage": 0.7}
    for i, name in enumerate(FIGURES):
        expected = truth.get(name, values[:, i].mean())
        covered = ((low[:, i] <= expected) & (expected <= high[:, i])).mean()
        if name in truth:
            # With 200 trials a share of 0.95 has a standard error of 0.015.
            assert 0.9 <= covered <= 0.99, name
        elif name not in WITHOUT_INTERVAL:
            assert "f1" in name
            assert 0.85 <= covered <= 0.99, name


def test_mean_of_sources_that_share_their_products_is_no_surer_than_one_of_them(
    tmp_path: Path,
) -> None:
    # Each of 60 products is in both sources, and right in both or in none.
    how = Bootstrap(resamples=400, confidence=0.95, seed=0)
    rows = [
        row(i, "a", "a" if i % 60 < 40 else "b", "c", "d", cluster=f"k{i % 60}") for i in range(120)
    ]
    given = predictions(tmp_path, rows)
    first, second = np.arange(60), np.arange(60, 120)
    one = measure(given, first, np.ones(60), how).figures["accuracy"]
    together = mean(given, [first, second], how)["accuracy"]
    assert (together.value, one.value) == pytest.approx((2 / 3, 2 / 3))
    assert together.low == pytest.approx(one.low, abs=0.02)
    # Were they of 120 products, it would be surer.
    apart = dataclasses.replace(given, clusters=np.arange(120))
    surer = mean(apart, [first, second], how)["accuracy"]
    assert surer.low is not None
    assert one.low is not None
    assert surer.low > one.low + 0.02


def test_mean_of_sources_is_made_of_their_figures(tmp_path: Path) -> None:
    given = predictions(tmp_path, chance(1, 90))
    parts = [np.arange(0, 20), np.arange(20, 90)]
    alone = [measure(given, each, np.ones(len(each)), QUICK).figures for each in parts]
    together = mean(given, parts, QUICK)
    for name in FIGURES:
        values = [each[name].value for each in alone]
        assert together[name].value == pytest.approx(np.mean([v for v in values if v is not None]))
    assert together["ece"].low is None


def test_mean_of_sources_that_are_all_right_is_no_certainty(tmp_path: Path) -> None:
    given = predictions(tmp_path, [row(i, "a", "a") for i in range(11)])
    found = mean(given, [np.array([0]), np.arange(1, 11)], QUICK)
    # One offer has half of the weight: they tell as much as 1 / (1 / 4 + 10 / 400).
    assert found["precision"] == found["accuracy"]
    assert found["accuracy"].low == pytest.approx(wilson(1.0, 1 / 0.275, 0.95)[0])
    assert found["macro_f1"].low is None
