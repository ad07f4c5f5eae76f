"""Confusions against scikit-learn's matrix, and the examples that are shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from tests.training.answered import chance, predictions, row
from training.confusions import TITLE_CHARACTERS, confusions, shortened


@pytest.mark.parametrize("weighted", [False, True])
def test_confusions_are_the_cells_of_the_matrix(tmp_path: Path, weighted: bool) -> None:
    given = predictions(tmp_path, chance(5, 300))
    weights = given.weights if weighted and given.weights is not None else np.ones(len(given))
    found = confusions(given, weights, 1_000)
    answered = given.answers >= 0
    truths, answers = given.truths[answered], given.answers[answered]
    labels = range(len(given.category_ids))
    counts = confusion_matrix(truths, answers, labels=labels)
    masses = confusion_matrix(truths, answers, labels=labels, sample_weight=weights[answered])
    of_truth = np.bincount(given.truths)
    cells = {}
    for each in found:
        i, j = given.category_ids.index(each.truth), given.category_ids.index(each.answer)
        assert each.offers == counts[i, j]
        assert each.back == counts[j, i]
        assert each.share == pytest.approx(counts[i, j] / of_truth[i])
        assert each.weight == pytest.approx(masses[i, j] / weights.sum())
        cells[i, j] = each
    np.fill_diagonal(counts, 0)
    assert set(cells) == set(zip(*map(np.ndarray.tolist, np.nonzero(counts)), strict=True))
    masses = [round(each.weight, 12) for each in found]
    assert masses == sorted(masses, reverse=True)
    assert confusions(given, weights, 3) == found[:3]


def test_examples_are_those_with_the_highest_scores(tmp_path: Path) -> None:
    rows = [
        row(1, "a", "b", score=0.4, title="low"),
        row(2, "a", "b", score=0.8, title=" high\n<b> ", language="de"),
        row(3, "a", "b", score=0.6, title=None, description="told"),
        row(4, "a", "b", score=0.5, title="middle"),
        row(5, "a", "a", score=1.0),
    ]
    (found,) = confusions(predictions(tmp_path, rows), np.ones(5), 9)
    assert [each.title for each in found.examples] == ["high <b>", "told", "middle"]
    assert [each.score for each in found.examples] == [0.8, 0.6, 0.5]
    assert [each.certain for each in found.examples] == [True, True, True]
    assert found.examples[0].language == "de"
    assert found.share == 0.8


def test_equal_confusions_come_in_the_order_of_the_ids(tmp_path: Path) -> None:
    rows = [row(1, "b", "a"), row(2, "a", "c"), row(3, "a", "b")]
    found = confusions(predictions(tmp_path, rows), np.ones(3), 9)
    assert [(each.truth, each.answer) for each in found] == [("a", "b"), ("a", "c"), ("b", "a")]


def test_errors_and_right_answers_are_no_confusions(tmp_path: Path) -> None:
    assert confusions(predictions(tmp_path, [row(1, "a", "a"), row(2, "b")]), np.ones(2), 9) == []


def test_long_titles_are_shortened() -> None:
    assert shortened("a  b\t\nc") == "a b c"
    long = shortened("word " * 100)
    assert len(long) <= TITLE_CHARACTERS
    assert long.endswith("word…")
