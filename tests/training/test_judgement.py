"""The judgement as a whole: which offers and weights its figures are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from tests.training.answered import Row, chance, predictions, row
from training.judgement import Judgement, judge, successors
from training.parameters import EvaluateParameters
from training.taxonomy import Category, first

QUICK = EvaluateParameters(resamples=20)
LANGUAGES = ("de", "en", "fr", "es", "it")


def category(category_id: str, parent: str | None = None, **more: Any) -> Category:
    names = {language: f"{category_id} {language}" for language in LANGUAGES}
    return Category(category_id, names, parent, **more)


def of(tmp_path: Path, rows: list[Row], **more: Any) -> Judgement:
    given = predictions(tmp_path, rows)
    return judge(
        given, {}, more.get("taxonomy"), more.get("training_offers"), more.get("how", QUICK)
    )


def test_figures_come_unweighted_and_in_production(tmp_path: Path) -> None:
    rows = [row(1, "a", "a", weight=3.0), row(2, "b", "a", weight=1.0)]
    found = of(tmp_path, rows)
    assert found.overall["unweighted"].figures["accuracy"].value == 0.5
    assert found.overall["production"].figures["accuracy"].value == 0.75
    assert found.overall["production"].effective_offers == pytest.approx(16 / 10)
    assert found.test_set.effective_offers == pytest.approx(16 / 10)
    assert list(of(tmp_path, [row(1, "a", "a")]).overall) == ["unweighted"]


def test_each_slice_has_its_own_figures_and_weights(tmp_path: Path) -> None:
    rows = chance(4, 200, errors=0.0)
    found = of(tmp_path, rows)
    for part in found.slices["language"]:
        mine = [each for each in rows if each["language"] == part.name]
        truths, answers = ([each[key] for each in mine] for key in ("label", "category_id"))
        weights = [each["weight"] for each in mine]
        figures = part.unweighted.figures
        assert figures["accuracy"].value == pytest.approx(accuracy_score(truths, answers))
        assert figures["macro_f1"].value == pytest.approx(
            f1_score(truths, answers, average="macro")
        )
        assert part.production is not None
        assert part.production.figures["accuracy"].value == pytest.approx(
            accuracy_score(truths, answers, sample_weight=weights)
        )
        assert part.weight == pytest.approx(sum(weights) / sum(each["weight"] for each in rows))
    assert sum(part.weight for part in found.slices["shop"]) == pytest.approx(1)


def test_mean_of_sources_counts_each_source_alike(tmp_path: Path) -> None:
    rows = [row(i, "a", "a" if i else "b", source="small" if i == 0 else "large") for i in range(9)]
    found = of(tmp_path, rows)
    assert found.mean_of_sources is not None
    assert found.mean_of_sources["accuracy"].value == 0.5
    assert found.overall["unweighted"].figures["accuracy"].value == pytest.approx(8 / 9)
    assert of(tmp_path, rows[1:]).mean_of_sources is None


def test_slices_with_few_offers_are_told_apart(tmp_path: Path) -> None:
    rows = [row(i, "a", "a", language="de" if i < 3 else "fr") for i in range(5)]
    found = of(tmp_path, rows, how=EvaluateParameters(resamples=5, least_offers=3))
    assert {part.name: part.small for part in found.slices["language"]} == {"de": False, "fr": True}


def test_what_nobody_knows_is_no_slice(tmp_path: Path) -> None:
    found = of(tmp_path, [row(1, "a", "a"), row(2, "a", "b")])
    assert list(found.slices) == ["text_length"]


def test_all_of_few_right_is_no_certainty(tmp_path: Path) -> None:
    found = of(tmp_path, [row(i, "a", "a") for i in range(4)])
    accuracy = found.overall["unweighted"].figures["accuracy"]
    assert (accuracy.value, accuracy.high) == (1.0, 1.0)
    assert accuracy.low == pytest.approx(1 / (1 + 1.96**2 / 4), abs=1e-3)


def test_errors_are_counted_and_named(tmp_path: Path) -> None:
    late: Row = {"error": {"reason": "inference", "detail": None}}
    rows = [row(1, "a", "a"), row(2, "a"), row(3, "a") | late, row(4, "b")]
    found = of(tmp_path, rows).test_set
    assert found.errors == {"inference": 1, "no text": 2}
    assert [(each.offer_id, each.reason, each.title) for each in found.unanswered] == [
        ("o00002", "no text", "offer 2"),
        ("o00003", "inference", "offer 3"),
        ("o00004", "no text", "offer 4"),
    ]


def test_taxonomy_gives_names_and_departments_and_tells_what_is_outside(tmp_path: Path) -> None:
    taxonomy = first(
        [
            category("top"),
            category("mid", "top"),
            category("leaf", "mid"),
            category("alone"),
            category("old", status="retired"),
        ]
    )
    rows = [
        row(1, "leaf", "leaf"),
        row(2, "alone", "mid"),
        row(3, "old", "leaf"),
        row(4, "gone", "alone", "unknown"),
    ]
    found = of(tmp_path, rows, taxonomy=taxonomy)
    assert found.taxonomy == taxonomy.version
    assert found.test_set.labels_outside == {"gone": 1, "old": 1}
    assert found.test_set.answers_outside == {"mid": 1}
    assert {part.name: part.unweighted.offers for part in found.slices["department"]} == {
        "top en": 1,
        "alone en": 1,
        "old en": 1,
        "not known": 1,
    }
    assert (found.names["leaf"].name, found.names["leaf"].path) == ("leaf en", "top en › mid en")
    assert "gone" not in found.names


def test_merged_categories_are_followed_to_the_last() -> None:
    taxonomy = first(
        [
            category("a", status="retired", successor="b"),
            category("b", status="retired", successor="c"),
            category("c"),
            category("d", status="retired"),
        ]
    )
    assert successors(taxonomy) == {"a": "c", "b": "c"}


def test_frequency_needs_the_training_offers(tmp_path: Path) -> None:
    rows = [row(1, "a", "a"), row(2, "b", "a")]
    assert "category_frequency" not in of(tmp_path, rows).slices
    found = of(tmp_path, rows, training_offers={"a": 50})
    assert [part.name for part in found.slices["category_frequency"]] == ["under 10", "30 to 99"]
    assert [each.training_offers for each in found.categories] == [50, 0]


def test_one_offer_is_judged(tmp_path: Path) -> None:
    for only in (row(1, "a", "a"), row(1, "a", "b"), row(1, "a"), row(1, "a", title=None)):
        found = of(tmp_path, [only])
        assert found.test_set.offers == 1
        assert found.overall["unweighted"].figures["accuracy"].value in {0.0, 1.0}


def test_order_and_name_of_the_file_have_no_part_in_it(tmp_path: Path) -> None:
    rows = chance(9, 120)
    order = np.random.default_rng(0).permutation(120).tolist()
    assert of(tmp_path, rows) == of(tmp_path, [rows[i] for i in order])
