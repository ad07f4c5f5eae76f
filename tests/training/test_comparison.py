"""Paired tests against scipy's and values found by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats  # type: ignore[import-untyped]

from tests.training.answered import QUICK, both, chance, row
from training.bootstrap import Bootstrap
from training.comparison import compare, holm, mcnemar
from training.figures import FIGURES
from training.slices import Slice, languages


@pytest.mark.parametrize(("one", "other"), [(0, 0), (1, 0), (0, 5), (7, 3), (40, 70), (12, 12)])
def test_mcnemar_is_the_exact_binomial_test(one: int, other: int) -> None:
    expected = scipy.stats.binomtest(one, one + other).pvalue if one + other else 1.0
    assert float(mcnemar(np.array(one), np.array(other))) == pytest.approx(expected)


def test_mcnemar_by_hand() -> None:
    # 2 * (1 + 5) / 2**5
    assert float(mcnemar(np.array(1), np.array(4))) == pytest.approx(12 / 32)


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03, 0.5]) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_difference_is_counted_offer_by_offer(tmp_path: Path) -> None:
    own, other = both(
        tmp_path,
        [row(1, "a", "a"), row(2, "a", "a"), row(3, "b", "a"), row(4, "b"), row(5, "c", "c")],
        [row(1, "a", "a"), row(2, "a", "b"), row(3, "b", "b"), row(4, "b", "c"), row(5, "c", "d")],
    )
    found = compare(own, other, {}, QUICK)
    assert (found.both_right, found.only_own, found.only_other, found.both_wrong) == (1, 2, 1, 1)
    assert found.p_value == 1.0
    accuracy = found.unweighted["accuracy"]
    assert (accuracy.own, accuracy.other) == pytest.approx((3 / 5, 2 / 5))
    assert accuracy.difference.value == pytest.approx(1 / 5)
    assert found.production is None
    assert [(each.category_id, each.own, each.other) for each in found.fell] == [("b", 0, 1)]
    assert [(each.category_id, each.own, each.other) for each in found.rose] == [
        ("a", 2, 1),
        ("c", 1, 0),
    ]
    assert found.fell[0].offers == 2
    assert found.fell[0].p_value == found.fell[0].adjusted == 1.0


def test_model_differs_from_itself_in_nothing(tmp_path: Path) -> None:
    rows = chance(0, 80)
    own, other = both(tmp_path, rows, rows)
    found = compare(own, other, {"language": languages(own)}, QUICK)
    assert found.p_value == 1.0
    assert found.fell == found.rose == []
    assert found.production is not None
    for differences in (found.unweighted, found.production):
        assert list(differences) == list(FIGURES)
        for name, each in differences.items():
            found_at = (each.difference.low, each.difference.value, each.difference.high)
            assert found_at == ((None, 0, None) if name == "ece" else (0, 0, 0))
    assert [part.p_value for part in found.parts["language"]] == [1.0, 1.0]


def test_pairing_tells_a_small_difference_that_two_intervals_would_not(tmp_path: Path) -> None:
    # 400 offers, half of them right for both, and 12 more for one alone.
    own, other = both(
        tmp_path,
        [row(i, "a", "a" if i < 212 else "b") for i in range(400)],
        [row(i, "a", "a" if i < 200 else "b") for i in range(400)],
    )
    found = compare(own, other, {}, Bootstrap(resamples=500, confidence=0.95, seed=0))
    accuracy = found.unweighted["accuracy"].difference
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.low > 0
    # The standard error of a difference of 12 of 400 that never goes the other way.
    error = np.sqrt(0.03 * 0.97 / 400)
    assert accuracy.high - accuracy.low == pytest.approx(2 * 1.96 * error, rel=0.2)
    assert found.p_value == pytest.approx(2 / 2**12)
    # Seen from the other model it is the same difference, below zero.
    mirrored = compare(other, own, {}, Bootstrap(resamples=500, confidence=0.95, seed=0))
    below = mirrored.unweighted["accuracy"].difference
    assert (below.low, below.value, below.high) == pytest.approx(
        (-accuracy.high, -0.03, -accuracy.low), abs=1e-3
    )


def test_weighted_difference_by_hand(tmp_path: Path) -> None:
    own, other = both(
        tmp_path,
        [row(1, "a", "a", weight=3.0), row(2, "b", "a", weight=1.0)],
        [row(1, "a", "b", weight=9.0), row(2, "b", "b", weight=9.0)],
    )
    found = compare(own, other, {"all": [Slice("all", np.arange(2))]}, QUICK)
    assert found.unweighted["accuracy"].difference.value == 0
    assert found.production is not None
    # The offers' weights are the judged model's: they belong to the test set.
    assert found.production["accuracy"].difference.value == pytest.approx(0.75 - 0.25)
    (part,) = found.parts["all"]
    assert part.weighted_accuracy is not None
    assert part.weighted_accuracy.difference.value == pytest.approx(0.5)


def test_parts_are_tested_together(tmp_path: Path) -> None:
    def rows(answer_of_de: str) -> list[dict[str, object]]:
        return [
            row(i, "a", answer_of_de if i < 8 else "a", language="de" if i < 8 else f"l{i}")
            for i in range(12)
        ]

    own, other = both(tmp_path, rows("a"), rows("b"))
    found = compare(own, other, {"language": languages(own)}, QUICK).parts["language"]
    german = next(part for part in found if part.name == "de")
    assert (german.only_own, german.only_other, german.offers) == (8, 0, 8)
    assert german.p_value == pytest.approx(2 / 2**8)
    assert german.adjusted == pytest.approx(5 * 2 / 2**8)
