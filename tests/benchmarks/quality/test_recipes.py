"""Recipes: what stands in rows.yaml, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quality import recipes
from training.parameters import ParameterError

GOOD = """
against: svm
common:
  student: {epochs: 3, rate: 1.0e-4}
rows:
  svm: {what: a linear model, stage: baseline}
  taught: {what: an encoder, stage: teacher}
  small:
    what: a student
    stage: student
    teacher: taught
    transfer: true
    parameters: {student: {layers: 2, epochs: 5, fields: {title: 80, brand: 20}}}
  beside:
    what: a linear model of the student's text
    stage: baseline
    parameters: {baseline: {fields: {title: 80, brand: 20}, refit: false}}
  both: {what: wide and deep, stage: wide, student: small, linear: beside}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rows.yaml"
    path.write_text(text)
    return path


def test_rows_are_in_the_order_in_which_they_are_run() -> None:
    found = recipes.load()
    assert list(found.rows) == [
        "svm", "svm-train", "teacher", "six-labels", "six-distilled", "six-transfer",
        "three-transfer", "svm-fields", "wide", "twelve",
    ]  # fmt: skip
    students = {
        name: found.parameters(name, None).student.layers
        for name, recipe in found.rows.items()
        if recipe.stage == "student"
    }
    assert students == {
        "six-labels": 6, "six-distilled": 6, "six-transfer": 6, "three-transfer": 3, "twelve": 12,
    }  # fmt: skip
    assert [name for name, recipe in found.rows.items() if recipe.gpu] == ["twelve"]


def test_linear_row_that_validation_can_be_asked_of_differs_in_that_alone() -> None:
    found = recipes.load()
    both, alone = (found.parameters(name, None).baseline for name in ("svm", "svm-train"))
    assert both.refit
    assert both.model_copy(update={"refit": False}) == alone


def test_row_learns_validation_where_it_or_a_part_of_it_does(tmp_path: Path) -> None:
    found = recipes.load(written(tmp_path, GOOD))
    names = ("svm", "taught", "small", "beside", "both")
    assert [found.learns_validation(name) for name in names] == [True, *4 * [False]]
    changed = GOOD.replace("refit: false", "refit: true").replace("epochs: 5", "refit_epochs: 1")
    found = recipes.load(written(tmp_path, changed))
    assert [found.learns_validation(name) for name in names] == [True, False, True, True, True]


def test_row_has_the_common_parameters_but_for_its_own(tmp_path: Path) -> None:
    found = recipes.load(written(tmp_path, GOOD))
    student = found.parameters("small", Path("e5")).student
    assert (student.layers, student.epochs, student.rate) == (2, 5, 1e-4)
    assert student.encoder == "e5"
    assert found.parameters("taught", Path("e5")).teacher.encoder == "e5"
    assert found.needs("both") == {"student": "small", "linear": "beside"}
    assert found.teacher("both") == found.teacher("small") == "taught"
    assert found.teacher("svm") is None
    assert found.parameters("taught", None).teacher.encoder == "intfloat/multilingual-e5-base"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("layers: 2", "layer: 2", "row small: student.layer: Extra inputs are not permitted"),
        ("stage: student", "stage: pupil", "Invalid enum value 'pupil'"),
        ("what: a student", "why: a student", "unknown field `why`"),
        ("teacher: taught", "teacher: svm", "row small: teacher: 'svm' is no row of that kind"),
        ("    teacher: taught\n", "", "row small: without a teacher"),
        (
            "stage: baseline}",
            "stage: baseline, teacher: taught}",
            "row svm: a baseline has neither",
        ),
        (", linear: beside", "", "row both: a wide has a linear and a student"),
        ("linear: beside", "linear: svm", "row both: svm must read what small reads"),
        ("refit: false", "refit: true", "row both: beside and small must both be fitted"),
        ("epochs: 5,", "epochs: 5, refit_epochs: 1,", "must both be fitted on validation in the"),
        ("brand: 20}, r", "brand: 21}, r", "row both: beside must read what small reads"),
        ("against: svm", "against: none", "there is no row 'none'"),
        ("  svm:", "  all:", "'all' cannot be a row's name"),
        ("rows:", "rows: [", "is no YAML"),
    ],
)
def test_what_is_no_recipe_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ParameterError) as caught:
        recipes.load(written(tmp_path, GOOD.replace(old, new)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
