"""Plots: what stands in them."""

from __future__ import annotations

import numpy as np
import pytest

from training import plots
from training.coverage import coverage


@pytest.mark.parametrize("name", ["_old", "svm", "$x^2$", "__"])
def test_every_model_is_in_the_legend_whatever_its_name(name: str) -> None:
    curve = coverage(np.array([0.9, 0.4]), np.array([True, False]), np.ones(2))
    drawn = plots.coverage({"this model": curve, name: curve}, None, "coverage")
    assert f"{name}</text>" in drawn
    assert f"{name}</text>" in plots.past(["1", "2"], {name: [0.1, 0.2]}, "past")
