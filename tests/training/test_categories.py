"""The figures of each category against scikit-learn's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_fscore_support

from tests.training.answered import chance, predictions, row
from training.bootstrap import wilson
from training.categories import categories


def test_categories_are_those_of_scikit_learn(tmp_path: Path) -> None:
    given = predictions(tmp_path, chance(2, 300))
    found = categories(given, None, None, 0.95)
    labels = range(len(given.category_ids))
    precision, recall, f1, support = precision_recall_fscore_support(
        given.truths, given.answers, labels=labels, zero_division=0
    )
    assert [each.category_id for each in found] == given.category_ids
    assert [each.precision for each in found] == pytest.approx(precision.tolist())
    assert [each.recall.value for each in found] == pytest.approx(recall.tolist())
    assert [each.f1 for each in found] == pytest.approx(f1.tolist())
    assert [each.offers for each in found] == support.tolist()
    assert sum(each.answers for each in found) == int((given.answers >= 0).sum())
    assert sum(each.right for each in found) == int(given.right.sum())
    assert {each.production for each in found} == {None}


def test_in_production_they_are_scikit_learn_s_with_the_weights(tmp_path: Path) -> None:
    given = predictions(tmp_path, chance(3, 300))
    assert given.weights is not None
    found = categories(given, given.weights, None, 0.95)
    shares = [each.production for each in found]

    def theirs(rows: NDArray[np.bool_]) -> tuple[list[float], ...]:
        precision, recall, f1, _ = precision_recall_fscore_support(
            given.truths[rows],
            given.answers[rows],
            labels=range(len(given.category_ids)),
            sample_weight=None if given.weights is None else given.weights[rows],
            zero_division=0,
        )
        return precision.tolist(), recall.tolist(), f1.tolist()

    precision, recall, f1 = theirs(np.ones(len(given), dtype=np.bool_))
    assert [each and each.precision for each in shares] == pytest.approx(precision)
    assert [each and each.recall for each in shares] == pytest.approx(recall)
    assert [each and each.f1 for each in shares] == pytest.approx(f1)
    certain_precision, _, _ = theirs(given.certain)
    assert [each and each.certain_precision for each in shares] == pytest.approx(certain_precision)
    assert [each.precision for each in found] != pytest.approx(precision, abs=0.01)


def test_rare_category_s_wrong_answers_cost_a_common_one_little_in_production(
    tmp_path: Path,
) -> None:
    # The test floor has as many of b as of a, of which production has nine times as many.
    rows = [row(i, "a", "a", score=0.9, weight=1.8) for i in range(5)]
    rows += [row(i, "b", "a", score=0.6, weight=0.2) for i in range(5, 10)]
    given = predictions(tmp_path, rows)
    a, b = categories(given, given.weights, None, 0.95)
    assert a.production is not None
    assert b.production is not None
    assert (a.precision, a.certain_precision) == (0.5, 0.5)
    assert a.production.precision == pytest.approx(0.9)
    assert a.production.certain_precision == pytest.approx(0.9)
    assert a.f1 == pytest.approx(2 / 3)
    assert a.production.f1 == pytest.approx(18 / 19)
    assert a.score == pytest.approx(0.75)
    assert a.production.score == pytest.approx(0.87)
    assert (b.production.precision, b.production.recall, b.production.f1) == (None, 0.0, 0.0)


def test_one_category_by_hand(tmp_path: Path) -> None:
    rows = [
        row(1, "a", "a", "c", "d", score=0.9, cluster="k", weight=2.0),
        row(2, "a", "a", "c", "d", score=0.3, cluster="k", weight=2.0),
        row(3, "a", "b", "a", "c", score=0.8, cluster="l", weight=2.0),
        row(4, "a", weight=2.0, cluster="m"),
        row(5, "b", "a", "c", "d", score=0.6, weight=1.0),
        row(6, "b", "c", "d", "a", score=0.6, weight=1.0),
    ]
    given = predictions(tmp_path, rows)
    assert given.weights is not None
    found = {
        each.category_id: each
        for each in categories(given, given.weights, {"a": 70}, confidence=0.95)
    }
    a = found["a"]
    assert (a.offers, a.answers, a.right) == (4, 3, 2)
    assert a.precision == pytest.approx(2 / 3)
    assert (a.recall.low, a.recall.high) == pytest.approx(wilson(0.5, 3, 0.95))
    assert a.top_3 == pytest.approx(3 / 4)
    assert a.coverage == pytest.approx(2 / 4)
    assert a.certain_precision == pytest.approx(1 / 2)
    assert a.score == pytest.approx((0.9 + 0.3 + 0.6) / 3)
    assert a.weight == pytest.approx(8 / 10)
    assert (a.training_offers, found["b"].training_offers) == (70, 0)
    # Answered, but no offer's label; and an alternative alone is neither.
    assert (found["c"].offers, found["c"].recall.value, found["c"].precision) == (0, None, 0.0)
    assert "d" not in found
