"""Every figure against scikit-learn's, or against values found by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, top_k_accuracy_score

from tests.training.answered import chance, predictions, row
from training.bootstrap import Floats
from training.figures import BINS, FIGURES, bin_of, effective_size, figures, sums
from training.predictions import Predictions


def of(given: Predictions, weights: Floats | None = None) -> dict[str, float]:
    """All the figures of all the offers."""
    everything = np.arange(len(given))
    weights = np.ones(len(given)) if weights is None else weights
    summed = sums(given, everything, weights)
    values = figures(summed.total(), summed.labels).tolist()
    return dict(zip(FIGURES, values, strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weighted", [False, True])
def test_figures_are_those_of_scikit_learn(tmp_path: Path, seed: int, weighted: bool) -> None:
    given = predictions(tmp_path, chance(seed, 200, categories=9))
    weights = given.weights if weighted else None
    truths, answers = given.truths, given.answers
    found = of(given, weights)
    # An answer of -1, for an error, is a category to scikit-learn and none to us.
    labels = sorted(({*truths.tolist(), *answers.tolist()}) - {-1})
    options = {"sample_weight": weights, "zero_division": 0}
    assert found["accuracy"] == pytest.approx(
        accuracy_score(truths, answers, sample_weight=weights)
    )
    assert found["weighted_f1"] == pytest.approx(
        f1_score(truths, answers, labels=labels, average="weighted", **options)
    )
    assert found["macro_f1"] == pytest.approx(
        f1_score(truths, answers, labels=labels, average="macro", **options)
    )
    assert found["macro_f1_true_labels"] == pytest.approx(
        f1_score(truths, answers, labels=sorted(set(truths.tolist())), average="macro", **options)
    )
    scores = np.zeros((len(given), len(given.category_ids)))
    for place in range(3):
        there = given.ranked[:, place] >= 0
        scores[there, given.ranked[there, place]] = 3 - place
    # Ties at zero are scikit-learn's to break: what is not ranked is below all the others.
    scores[np.arange(len(given)), truths] -= 0.5
    assert found["top_3"] == pytest.approx(
        top_k_accuracy_score(
            truths, scores, k=3, labels=range(scores.shape[1]), sample_weight=weights
        )
    )


def test_scikit_learn_without_errors_needs_no_labels(tmp_path: Path) -> None:
    given = predictions(tmp_path, chance(7, 150, categories=40, errors=0.0))
    found = of(given)
    assert found["macro_f1"] == pytest.approx(
        f1_score(given.truths, given.answers, average="macro")
    )
    assert found["macro_f1"] < found["macro_f1_true_labels"]


def test_weights_by_hand(tmp_path: Path) -> None:
    # a: weight 3 is right, 1 is taken for b. b: 2 are right, 2 have no answer.
    rows = [
        row(1, "a", "a", "c", "d", score=0.9),
        row(2, "a", "b", "c", "d", score=0.4),
        row(3, "b", "b", "c", "d", score=0.4),
        row(4, "b"),
    ]
    found = of(predictions(tmp_path, rows), np.array([3.0, 1.0, 2.0, 2.0]))
    f1_a, f1_b = 2 * 3 / (4 + 3), 2 * 2 / (4 + 3)
    assert found["accuracy"] == pytest.approx(5 / 8)
    assert found["weighted_f1"] == pytest.approx((4 * f1_a + 4 * f1_b) / 8)
    assert found["macro_f1"] == pytest.approx((f1_a + f1_b) / 2)
    assert found["top_3"] == pytest.approx(5 / 8)
    assert found["coverage"] == pytest.approx(3 / 8)
    assert found["precision"] == 1.0
    # Of 6 that were answered: 3 at 0.9 all right, 3 at 0.4 two of them right.
    assert found["ece"] == pytest.approx(3 / 6 * 0.1 + 3 / 6 * abs(2 / 3 - 0.4))


def test_offers_without_an_answer_are_wrong(tmp_path: Path) -> None:
    found = of(predictions(tmp_path, [row(1, "a", "a"), row(2, "a"), row(3, "b")]))
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["macro_f1"] == found["macro_f1_true_labels"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["coverage"] == pytest.approx(1 / 3)
    assert found["precision"] == 1.0


def test_top_3_is_no_figure_where_alternatives_were_not_kept(tmp_path: Path) -> None:
    kept = [row(1, "a", "a", "b", "c"), row(2, "b", "a", "c", "b"), row(3, "c")]
    assert of(predictions(tmp_path, kept))["top_3"] == pytest.approx(2 / 3)
    # The model has three labels, and one answer has one alternative.
    cut = of(predictions(tmp_path, [*kept, row(4, "a", "a", "b")]))
    assert np.isnan(cut["top_3"])
    assert cut["accuracy"] == 2 / 4
    # Of a model of two labels one alternative is all there is.
    two = of(predictions(tmp_path, [row(1, "a", "b", "a"), row(2, "z", "a", "b")]))
    assert two["top_3"] == 1 / 2


def test_nothing_to_divide_by_is_no_figure(tmp_path: Path) -> None:
    found = of(predictions(tmp_path, [row(1, "a")]))
    assert found["accuracy"] == found["macro_f1"] == 0.0
    assert np.isnan(found["precision"])
    assert np.isnan(found["ece"])


def test_figures_of_a_part_are_those_of_the_part_alone(tmp_path: Path) -> None:
    rows = chance(3, 100)
    part = np.array([each["language"] == "de" for each in rows])
    whole = predictions(tmp_path, rows)
    summed = sums(whole, np.flatnonzero(part), np.ones(int(part.sum())))
    alone = of(predictions(tmp_path, [each for each in rows if each["language"] == "de"]))
    assert figures(summed.total(), summed.labels).tolist() == pytest.approx(list(alone.values()))


def test_score_on_a_border_belongs_to_the_bin_below_it() -> None:
    scores = np.array([0.0, 1e-9, 1 / BINS, 1 / BINS + 1e-9, 1.0])
    assert bin_of(scores).tolist() == [0, 0, 0, 1, BINS - 1]


def test_effective_size_by_hand() -> None:
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
