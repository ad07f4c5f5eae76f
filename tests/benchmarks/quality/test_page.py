"""The table as people read it: figures where there are some, and no guess where there are none."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from benchmarks.quality import asked, page, recipes
from benchmarks.quality.recipes import Recipe, Recipes
from benchmarks.quality.table import Figures, Quality
from training.stage import StageError

STUDENT = {"student": {"layers": 6}}
KNOWN = Recipes(
    against="svm",
    decides="alone",
    rows={
        "svm": Recipe("n-grams", "baseline"),
        "alone": Recipe("the same", "baseline"),
        "taught": Recipe("an encoder", "teacher"),
        "six": Recipe("six layers", "student", teacher="taught", parameters=STUDENT),
        "labels": Recipe("six layers", "student", parameters=STUDENT),
        "twelve": Recipe(
            "twelve layers", "student", teacher="taught", parameters={"student": {"layers": 12}}
        ),
    },
)
SVM = Figures(
    offers=300,
    accuracy=0.8,
    macro_f1=0.7,
    sources={"a": 0.9, "b": 0.7},
    languages={"de": 0.8},
    errors=1.0,
    errors_by_source={"a": 1.0, "b": 1.0},
    errors_by_language={"de": 1.0},
    worse=[],
    behind_teacher=None,
    validation=None,
    hierarchy={"b": 0.75},
    weights=None,
    minutes=16.04,
    offers_per_cpu_second=2979.4,
)
ALONE = msgspec.structs.replace(SVM, validation=0.79)
SIX = msgspec.structs.replace(
    SVM,
    accuracy=0.85,
    sources={"a": 0.88, "b": 0.82},
    errors=0.9,
    errors_by_source={"a": 1.2, "b": 0.6},
    errors_by_language={"de": 0.75},
    worse=["a"],
    behind_teacher=0.456,
    validation=0.84,
    offers_per_cpu_second=74.2,
)
TAUGHT = msgspec.structs.replace(SIX, behind_teacher=None, validation=0.85)


def quality(**rows: Figures) -> Quality:
    return Quality({name: rows.get(name) for name in KNOWN.rows})


def test_row_that_was_not_run_has_no_figure() -> None:
    lines = page.markdown(quality(), KNOWN).splitlines()
    assert len(lines) == 2 + len(KNOWN.rows)
    assert lines[2] == "| `svm` | n-grams | not run |  |  |  |  |  |  |  |"
    assert not re.search(r"\d", "".join(line.split("|", 3)[3] for line in lines[2:]))


def test_figures_stand_in_their_columns() -> None:
    lines = page.markdown(quality(svm=SVM, six=SIX), KNOWN).splitlines()
    heads = lines[0].split(" | ")
    for name, expected in (
        ("svm", ["80.00", "70.00", "1.00", "", "", "", "16.0", "2,979"]),
        ("six", ["85.00", "70.00", "0.90", "a", "0.46", "84.00", "16.0", "74"]),
    ):
        (line,) = [each for each in lines if each.startswith(f"| `{name}` |")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[2:] == expected
        assert len(cells) == len(heads)
    text = "\n".join(lines)
    assert "Accuracy by source:\n\n|  | `svm` | `six` |\n| --- | --- | --- |\n" in text
    assert "| a | 90.00 | 88.00 |" in text
    assert "| a | 1.00 | 1.20 |" in text
    assert "| de | 80.00 | 80.00 |" in text
    assert "| de | 1.00 | 0.75 |" in text
    assert "| b | 75.00 | 75.00 |" in text


def test_row_that_is_nowhere_worse_says_so() -> None:
    better = msgspec.structs.replace(SIX, worse=[])
    assert "| 0.90 | none |" in page.markdown(quality(svm=SVM, six=better), KNOWN)
    # Without the row that all are held against nothing is known.
    alone = msgspec.structs.replace(
        SIX, errors=None, errors_by_source={}, errors_by_language={}, worse=[], behind_teacher=None
    )
    text = page.markdown(quality(six=alone), KNOWN)
    assert "| `six` | six layers | 85.00 | 70.00 |  |  |  | 84.00 |" in text
    assert "Errors by" not in text
    assert asked.lines(quality(six=alone), KNOWN) == [
        "`six`: `svm` was not run; its teacher was not run"
    ]
    perfect = msgspec.structs.replace(SVM, errors=None)
    (line,) = asked.lines(quality(svm=perfect, six=alone), KNOWN)
    assert line.startswith("`six`: `svm` makes no errors that this one's could be compared with;")


def test_what_is_asked_of_a_small_distilled_student_is_held_against_its_figures() -> None:
    rows = {"svm": SVM, "alone": ALONE, "taught": TAUGHT, "labels": SIX, "twelve": SIX}
    (line,) = asked.lines(quality(six=SIX, **rows), KNOWN)
    assert line == (
        "`six`: 0.90 of the errors of `svm`, asked 0.7: missed; worse than it in a, asked none:"
        " missed; 0.46 points behind its teacher, asked 0.5: met; the teacher beats `alone` on"
        " validation, 85.00 and 79.00"
    )
    good = msgspec.structs.replace(SIX, errors=0.7, worse=[], behind_teacher=0.51)
    weak = msgspec.structs.replace(TAUGHT, validation=0.79)
    (line,) = asked.lines(quality(six=good, **(rows | {"taught": weak})), KNOWN)
    assert "asked 0.7: met; worse than it in no source, asked none: met" in line
    assert "0.51 points behind its teacher, asked 0.5: missed; the teacher does not beat" in line
    (line,) = asked.lines(quality(six=good, svm=SVM, taught=weak), KNOWN)
    assert line.endswith("whether the teacher beats the SVM on validation is not known")


def test_tables_go_between_the_marks_of_a_page_and_nowhere_else(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"before\n\n{page.BEGIN}\nold\n{page.END}\n\nafter\n")
    page.insert(file, quality(svm=SVM), KNOWN)
    made = page.markdown(quality(svm=SVM), KNOWN)
    assert file.read_text() == f"before\n\n{page.BEGIN}\n{made}\n{page.END}\n\nafter\n"
    file.write_text("no marks")
    with pytest.raises(StageError, match="has no place for the table"):
        page.insert(file, quality(), KNOWN)
    with pytest.raises(StageError, match="cannot be read"):
        page.insert(tmp_path / "none.md", quality(), KNOWN)


def test_page_of_the_project_has_every_row_and_the_command_that_makes_it() -> None:
    text = (Path(__file__).parents[3] / "docs" / "quality.md").read_text()
    tables = text[text.index(page.BEGIN) : text.index(page.END)]
    known = recipes.load()
    assert "make benchmark-quality ROW=" in text
    assert re.findall(r"^\| `(.+?)` \|", tables, re.MULTILINE)[1 : 1 + len(known.rows)] == [
        *known.rows
    ]
    for name, recipe in known.rows.items():
        assert f"| `{name}` | {recipe.what} | " in tables
