"""The picture of the sets: every point where the figures say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from training import distributions

FIGURES: dict[str, Any] = {
    "labelled": {"a": 100, "b": 900, "c": 30},
    "production": {"a": 800, "b": 150, "c": 50},
    "drawn": {"train": {"a": 60, "b": 70}, "test": {"a": 6, "b": 3, "c": 1}},
    "test": {"effective_sample_size": 7.5, "uncovered_mass": 0.02},
    "diversity": {"largest_subcategory": {"a": [0.98, 0.31], "b": [0.52, 0.33]}},
    "languages": {"labelled": {"de": 30, "fr": 10}, "train": {"de": 5, "fr": 5}},
}


@pytest.fixture
def axes() -> Axes:
    return Figure().subplots()


def lines(axes: Axes) -> dict[str, list[list[float]]]:
    return {str(each.get_label()): np.asarray(each.get_xydata()).tolist() for each in axes.lines}


def test_categories_are_across_the_largest_first_and_their_offers_up(axes: Axes) -> None:
    distributions._plot_categories(axes, FIGURES)
    found = lines(axes)
    assert found["labelled in the lake"] == [[1, 900], [2, 100], [3, 30]]
    assert found["test"] == [[1, 3], [2, 6], [3, 1]]
    assert found["train"][:2] == [[1, 70], [2, 60]]
    assert math.isnan(found["train"][2][1])
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")


def test_share_of_production_is_across_and_that_of_the_set_up(axes: Axes) -> None:
    distributions._plot_test(axes, FIGURES)
    found = lines(axes)
    # In the order of the ids: a, b, c.
    expected = [[0.8, 0.6], [0.15, 0.3], [0.05, 0.1]]
    assert np.array(found["test, unweighted"]) == pytest.approx(np.array(expected))
    expected = [[0.8, 100 / 1030], [0.15, 900 / 1030], [0.05, 30 / 1030]]
    assert np.array(found["labelled in the lake"]) == pytest.approx(np.array(expected))
    assert found["as in production; test, weighted"] == [[0.05, 0.05], [0.8, 0.8]]
    assert axes.get_title() == "Test: 10 offers weigh as 8; uncovered 2.00%"
    assert "production" in axes.get_xlabel()


def bars(axes: Axes) -> dict[str, list[Rectangle]]:
    _, names = axes.get_legend_handles_labels()
    kinds = [each.patches for each in axes.containers if isinstance(each, BarContainer)]
    return dict(zip(names, kinds, strict=True))


def test_subcategories_before_and_after_stand_at_their_shares(axes: Axes) -> None:
    distributions._plot_subcategories(axes, FIGURES)
    # Bins of a twentieth: 0.52 and 0.98 before, 0.31 and 0.33 after.
    found = {
        name: {i: bar.get_height() for i, bar in enumerate(each) if bar.get_height()}
        for name, each in bars(axes).items()
    }
    assert found == {"to train on": {10: 1, 19: 1}, "train": {6: 2}}


def test_languages_are_shares_of_each_set(axes: Axes) -> None:
    distributions._plot_languages(axes, FIGURES)
    heights = {name: [bar.get_height() for bar in each] for name, each in bars(axes).items()}
    assert heights == {"labelled": [0.75, 0.25], "train": [0.5, 0.5]}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["de", "fr"]
