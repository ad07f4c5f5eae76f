"""The bootstrap on cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp  # type: ignore[import-untyped]
import scipy.stats  # type: ignore[import-untyped]

from training.bootstrap import Bootstrap, Floats, interval, resample, wilson


def mean_of(sums: Floats) -> Floats:
    """Of the columns (value, one)."""
    return sums[:, :1] / sums[:, 1:]


def means(values: Floats, clusters: np.typing.NDArray[np.int64], how: Bootstrap) -> Floats:
    rows = sp.csr_array(np.stack([values, np.ones(len(values))], axis=1))
    drawn: Floats = resample(rows, clusters, mean_of, how)[:, 0]
    return drawn


def test_interval_of_clustered_offers_covers_the_truth_as_often_as_it_says() -> None:
    # Clusters of four offers that are all right or all wrong, with a chance of 0.7.
    rng = np.random.default_rng(11)
    clusters = np.repeat(np.arange(80), 4)
    covered, covered_by_offers = 0, 0
    for trial in range(200):
        right = np.repeat(rng.random(80) < 0.7, 4).astype(float)
        how = Bootstrap(resamples=200, confidence=0.9, seed=trial)
        low, high = interval(right.mean(), means(right, clusters, how), 0.9)
        covered += low <= 0.7 <= high
        low, high = interval(right.mean(), means(right, np.arange(320), how), 0.9)
        covered_by_offers += low <= 0.7 <= high
    # 180 of 200 are expected, with a standard deviation of 4.2.
    assert 165 <= covered <= 193
    # Were each offer a draw by itself, the interval would be half as wide: 0.59 are expected.
    assert covered_by_offers < 145


def test_spread_is_the_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=500)
    drawn = means(values, np.arange(500), Bootstrap(resamples=2_000, confidence=0.95, seed=0))
    assert drawn.std() == pytest.approx(values.std() / np.sqrt(500), rel=0.06)
    assert drawn.mean() == pytest.approx(values.mean(), abs=0.004)


def test_draws_are_the_same_for_any_figure_of_the_same_offers_and_differ_between_others() -> None:
    how = Bootstrap(resamples=120, confidence=0.95, seed=3)
    values = np.random.default_rng(0).normal(size=50)
    one = means(values, np.arange(50), how)
    assert means(2 * values, np.arange(50), how) == pytest.approx(2 * one)
    assert abs(np.corrcoef(one, means(values, np.arange(1, 51), how))[0, 1]) < 0.4
    assert abs(np.corrcoef(one, means(values, np.arange(50), Bootstrap(120, 0.95, 4)))[0, 1]) < 0.4


def test_resamples_do_not_depend_on_the_order_of_the_offers() -> None:
    rng = np.random.default_rng(0)
    values, clusters = rng.normal(size=60), rng.integers(0, 20, size=60)
    how, order = Bootstrap(60, 0.95, 0), rng.permutation(60)
    assert means(values[order], clusters[order], how) == pytest.approx(means(values, clusters, how))


def test_what_has_no_value_has_no_interval() -> None:
    assert np.isnan(interval(np.nan, np.ones(10), 0.95)).all()
    mostly_undefined = np.array([np.nan] * 6 + [0.5] * 4)
    assert np.isnan(interval(0.5, mostly_undefined, 0.95)).all()
    assert interval(0.5, mostly_undefined[4:], 0.95) == (0.5, 0.5)


def test_interval_stays_where_the_figure_can_be() -> None:
    drawn = np.array([0.0, 1.0] * 50)
    assert interval(0.9, drawn, 0.95) == pytest.approx((0.4, 1.0))
    assert interval(0.1, drawn, 0.95) == pytest.approx((0.0, 0.6))
    assert interval(-0.9, 2 * drawn - 1, 0.95, lowest=-1.0)[0] == -1.0


@pytest.mark.parametrize(("right", "trials"), [(0, 5), (5, 5), (3, 10), (97, 100)])
def test_wilson_is_that_of_scipy(right: int, trials: int) -> None:
    expected = scipy.stats.binomtest(right, trials).proportion_ci(0.95, "wilson")
    assert wilson(right / trials, trials, 0.95) == pytest.approx((expected.low, expected.high))


def test_wilson_of_nothing_is_none() -> None:
    assert np.isnan(wilson(np.nan, 0, 0.95)).all()
