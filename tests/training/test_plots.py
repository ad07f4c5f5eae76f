"""Plots: what stands in them, and where."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from training import plots
from training.coverage import Coverage, Point, coverage
from training.reliability import reliability


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures as they are before they become SVG."""
    figures: list[Figure] = []
    svg = plots._svg

    def watched(figure: Figure, name: str) -> str:
        figures.append(figure)
        return svg(figure, name)

    monkeypatch.setattr(plots, "_svg", watched)
    return figures


@pytest.mark.parametrize("name", ["_old", "svm", "$x^2$", "__"])
def test_every_model_is_in_the_legend_whatever_its_name(name: str) -> None:
    curve = coverage(np.array([0.9, 0.4]), np.array([True, False]), np.ones(2))
    drawn = plots.coverage({"this model": curve, name: curve}, None, "coverage")
    assert f"{name}</text>" in drawn
    assert f"{name}</text>" in plots.past(["1", "2"], {name: [0.1, 0.2]}, "past")


def test_coverage_is_across_and_precision_up(drawn: list[Figure]) -> None:
    points = (Point(score=0.9, coverage=0.25, precision=1.0), Point(0.3, 0.75, 0.8))
    plots.coverage({"this": Coverage(points, ())}, (0.6, 0.9), "coverage")
    (axes,) = drawn[0].axes
    curve, thresholds = axes.lines
    assert np.asarray(curve.get_xydata()).tolist() == [[0.25, 1.0], [0.75, 0.8]]
    assert np.asarray(thresholds.get_xydata()).tolist() == [[0.6, 0.9]]
    assert axes.get_xlim() == (0, 1)
    assert "acted on" in axes.get_xlabel()
    assert "right" in axes.get_ylabel()


def test_reliability_is_the_share_that_is_right_over_the_score(drawn: list[Figure]) -> None:
    # Of four answers with a score of 0.9 one is right, and of two with 0.5 both.
    scores = np.array([0.9] * 4 + [0.5] * 2)
    right = np.array([True, False, False, False, True, True])
    plots.reliability(reliability(scores, right, np.ones(6)), "reliability")
    upper, lower = drawn[0].axes
    diagonal, found = upper.lines
    assert np.asarray(diagonal.get_xydata()).tolist() == [[0, 0], [1, 1]]
    assert np.asarray(found.get_xydata()) == pytest.approx(np.array([[0.5, 1.0], [0.9, 0.25]]))
    bars = [
        (bar.get_x() + bar.get_width() / 2, bar.get_height())
        for bar in lower.patches
        if isinstance(bar, Rectangle) and bar.get_height() > 0
    ]
    middles, heights = zip(*bars, strict=True)
    assert middles == pytest.approx((0.5, 0.9), abs=1 / 30)
    assert heights[1] == pytest.approx(2 * heights[0])
