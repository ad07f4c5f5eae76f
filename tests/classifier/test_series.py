"""Series take any label and whole arrays, and never fall."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier import metrics
from tests.classifier.exposition import samples


@given(st.lists(st.text(max_size=200), max_size=20))
def test_any_text_makes_a_valid_exposition(values: list[str]) -> None:
    counted = metrics.in_process()
    counted.predictions.inc_many(values)
    predictions = {
        key: value
        for key, value in samples(prometheus_client.generate_latest(counted.registry)).items()
        if key[0] == "classifier_predictions_total"
    }
    assert sum(predictions.values()) == len(values)


def test_a_lone_surrogate_is_a_label_like_any_other(tmp_path: Path) -> None:
    counted = metrics.for_worker(0, tmp_path)
    counted.predictions.inc("half \ud83d")
    assert samples(metrics.scrape(tmp_path))["classifier_predictions_total", "half ?"] == 1


# Arrays


@given(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True, width=32)
        | st.sampled_from([0.0, 0.05, 0.1, 0.5, 0.99, 1.0, -1.0]),
        max_size=50,
    )
)
def test_an_array_counts_as_its_values_one_by_one_would(values: list[float]) -> None:
    usual = prometheus_client.Histogram(
        "usual", "x", buckets=metrics._SCORES, registry=prometheus_client.CollectorRegistry()
    )
    whole, single = metrics.in_process().score, metrics.in_process().score
    whole.observe_many(np.array(values, dtype=np.float64))
    for value in values:
        single.observe(value)
        if math.isfinite(value):
            usual.observe(value)
    expected = [bucket.get() for bucket in usual._buckets]
    assert [bucket.get() for bucket in whole._buckets] == expected
    assert [bucket.get() for bucket in single._buckets] == expected
    assert whole.count == sum(expected)
    assert whole.sum == pytest.approx(usual._sum.get(), rel=1e-9, abs=1e-30)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_arrays_of_any_kind_and_shape_are_taken(kind: type) -> None:
    counted = metrics.in_process()
    counted.score.observe_many(np.ones((2, 3), dtype=kind))
    assert (counted.score.count, counted.score.sum) == (6, 6)


def test_an_empty_array_is_nothing(tmp_path: Path) -> None:
    counted = metrics.in_process()
    counted.score.observe_many(np.array([]))
    counted.score.observe_many([math.nan])
    counted.predictions.inc_many([])
    counted.offers.inc("classified", 0)
    assert counted.score.count == 0


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf])
def test_a_count_never_falls_and_never_spoils(amount: float) -> None:
    counted = metrics.in_process()
    with pytest.raises(ValueError, match="grows by a finite amount"):
        counted.offers.inc("classified", amount)
    with pytest.raises(ValueError, match="grows by a finite amount"):
        counted.rebalances.inc(amount)
    assert counted.offers.value("classified") == 0


def test_a_stage_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        metrics.in_process().stage_seconds.observe("guess", 1)
