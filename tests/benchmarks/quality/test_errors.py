"""Errors in another model's, by hand."""

from __future__ import annotations

import pytest

from benchmarks.quality.answers import mean_over_sources
from benchmarks.quality.errors import relative


def test_mean_is_of_the_sources_ratios_and_not_of_all_offers() -> None:
    own = {"books": 0.90, "shoes": 0.70, "tools": 0.95}
    svm = {"books": 0.80, "shoes": 0.60, "tools": 0.96}
    found = relative(own, svm)
    assert found.by_source == pytest.approx({"books": 0.5, "shoes": 0.75, "tools": 1.25})
    assert found.mean == pytest.approx((0.5 + 0.75 + 1.25) / 3)
    assert found.worse == ["tools"]


def test_source_without_an_error_of_the_other_has_no_ratio_and_can_still_be_worse() -> None:
    found = relative({"a": 0.9, "b": 0.5}, {"a": 1.0, "b": 0.0})
    assert found.by_source == {"a": None, "b": 0.5}
    assert found.mean == 0.5
    assert found.worse == ["a"]
    assert relative({"a": 0.9}, {"a": 1.0}).mean is None


def test_worst_source_is_named_first_and_equal_is_not_worse() -> None:
    found = relative({"a": 0.5, "b": 0.3, "c": 0.7}, {"a": 0.6, "b": 0.8, "c": 0.7})
    assert found.worse == ["b", "a"]


def test_other_sources_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="different sources"):
        relative({"a": 0.9}, {"b": 0.9})


def test_every_source_counts_as_much() -> None:
    assert mean_over_sources({"large": 0.9, "small": 0.5, "smaller": 0.1}) == pytest.approx(0.5)
