"""Scores: calibrated, ranked with a fixed rule for ties, never made of NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from classifier.scores import SCORE_DECIMALS, NotFiniteError, Prediction, Scorer

LABELS = ["kettles", "sofas", "tents"]


def scorer(
    labels: list[str] = LABELS,
    temperature: float = 1.0,
    threshold: float | list[float] = 0.5,
    alternatives: int = 3,
) -> Scorer:
    thresholds = np.broadcast_to(np.asarray(threshold, np.float64), (len(labels),))
    return Scorer(labels, temperature, thresholds, alternatives)


def logits(*rows: Any) -> NDArray[np.float32]:
    return np.array(rows, dtype=np.float32)


def test_scores_are_those_worked_out_by_hand() -> None:
    # exp(0), exp(log 2), exp(log 5) are 1, 2 and 5 of 8.
    (prediction,) = scorer().predictions(logits([0, math.log(2), math.log(5)]))
    assert prediction == Prediction(
        "tents", 0.625, (("sofas", 0.25), ("kettles", 0.125)), "classified"
    )


def test_temperature_divides_the_logits() -> None:
    row = logits([0, 2 * math.log(2), 2 * math.log(5)])
    (prediction,) = scorer(temperature=2.0).predictions(row)
    assert prediction.score == 0.625
    (warmer,) = scorer(temperature=1e6).predictions(row)
    assert warmer.category_id == "tents"
    assert warmer.score == pytest.approx(1 / 3, abs=1e-5)


def test_scores_are_rounded_and_survive_json() -> None:
    (prediction,) = scorer().predictions(logits([0, 0.1, 0.2]))
    for score in (prediction.score, *(score for _, score in prediction.alternatives)):
        assert type(score) is float
        assert round(score, SCORE_DECIMALS) == score
    total = prediction.score + sum(score for _, score in prediction.alternatives)
    assert total == pytest.approx(1, abs=2e-6)


def test_logits_too_large_for_a_float_give_no_prediction() -> None:
    with pytest.raises(NotFiniteError, match="1 rows"):
        scorer(temperature=0.1).predictions(logits([1, 2, 3], [1, 3e38, 3]))


def test_logits_at_both_ends_are_scored() -> None:
    (prediction,) = scorer().predictions(logits([-3e38, 3e38, 0]))
    assert prediction.category_id == "sofas"
    assert (prediction.score, prediction.alternatives[0][1]) == (1.0, 0.0)


@pytest.mark.parametrize("large", [1e4, 3e38, -3e38])
def test_large_logits_do_not_overflow(large: float) -> None:
    (prediction,) = scorer().predictions(logits([large, large, large]))
    assert prediction.category_id == "kettles"
    assert prediction.score == pytest.approx(1 / 3, abs=1e-6)


# Ties


def test_equal_logits_are_ranked_by_label_order() -> None:
    (prediction,) = scorer().predictions(logits([1, 1, 1]))
    assert [prediction.category_id, *(name for name, _ in prediction.alternatives)] == LABELS


def test_tie_at_the_border_of_the_alternatives_falls_by_label_order() -> None:
    labels = [f"c{number:03}" for number in range(300)]
    row = np.zeros((1, 300), dtype=np.float32)
    row[0, [250, 40]] = [2, 1]
    (prediction,) = scorer(labels).predictions(row)
    assert prediction.category_id == "c250"
    assert [name for name, _ in prediction.alternatives] == ["c040", "c000", "c001"]


@given(
    st.integers(1, 12).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(-3, 3), min_size=width, max_size=width), min_size=1, max_size=5
        )
    ),
    st.integers(0, 5),
)
def test_best_categories_equal_a_full_sort_whatever_the_neighbours(
    rows: list[list[int]], alternatives: int
) -> None:
    labels = [f"c{number}" for number in range(len(rows[0]))]
    score = scorer(labels, alternatives=alternatives)
    together = score.predictions(logits(*rows))
    for row, prediction in zip(rows, together, strict=True):
        ranked = sorted(range(len(row)), key=lambda label: (-row[label], label))
        names = [labels[label] for label in ranked[: alternatives + 1]]
        assert [prediction.category_id, *(name for name, _ in prediction.alternatives)] == names
        total = sum(map(math.exp, row))
        assert prediction.score == pytest.approx(math.exp(max(row)) / total, abs=2e-6)
        assert score.predictions(logits(row)) == [prediction]


def test_alternatives_are_stored_best_first() -> None:
    prediction = Prediction("a", 0.5, (("b", 0.25), ("c", 0.125)), "classified")
    assert prediction.alternative_documents() == [
        {"category_id": "b", "score": 0.25},
        {"category_id": "c", "score": 0.125},
    ]


# Certain or not


def test_score_below_its_category_threshold_is_uncertain() -> None:
    rows = logits([0, math.log(2), math.log(5)], [math.log(5), math.log(2), 0])
    statuses = [found.status for found in scorer(threshold=[0.7, 0.5, 0.6]).predictions(rows)]
    assert statuses == ["classified", "uncertain"]


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 0.4, 0.6, 0.625, 0.7, 0.8, 0.9])
def test_score_at_its_threshold_is_classified(threshold: float) -> None:
    odds = math.log(threshold / (1 - threshold))
    labels = ["a", "b"]
    for row in ([odds, 0.0], [0.0, odds]):
        (prediction,) = scorer(labels, threshold=threshold).predictions(logits(row))
        top = max(threshold, round(1 - threshold, 6))
        assert prediction.score == top
        assert prediction.status == "classified"
        (stricter,) = scorer(labels, threshold=top + 1e-6).predictions(logits(row))
        assert stricter.status == "uncertain"


# Edges


def test_no_rows_are_no_predictions() -> None:
    assert scorer().predictions(np.empty((0, 3), dtype=np.float32)) == []


@pytest.mark.parametrize(("alternatives", "kept"), [(0, 0), (1, 1), (2, 2), (20, 2)])
def test_so_many_alternatives_are_kept(alternatives: int, kept: int) -> None:
    (prediction,) = scorer(alternatives=alternatives).predictions(logits([1, 2, 3]))
    assert len(prediction.alternatives) == kept


def test_single_category_is_always_certain() -> None:
    (prediction,) = scorer(["all"]).predictions(logits([-7]))
    assert prediction == Prediction("all", 1.0, (), "classified")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_give_no_prediction(bad: float) -> None:
    with pytest.raises(NotFiniteError, match="1 rows"):
        scorer().predictions(logits([1, 2, 3], [1, bad, 3], [3, 2, 1]))
    with pytest.raises(NotFiniteError, match="1 rows"):
        scorer().predictions(logits([bad, bad, bad]))
