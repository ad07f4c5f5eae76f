"""The stage: from files of answers to a report, once."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.training import lakes
from tests.training.answered import chance, row, write
from training import evaluate, history
from training.judgement import Judgement
from training.parameters import EvaluateParameters
from training.production import Production
from training.stage import Record, StageError
from training.taxonomy import Category, first, from_sample, save

QUICK = EvaluateParameters(resamples=20)
DAY = datetime(2026, 3, 1, tzinfo=UTC)


def make(answers: Path, out: Path, said: list[str] | None = None, **more: Any) -> Record:
    lines: list[str] = [] if said is None else said
    return evaluate.make(
        more.get("how", QUICK),
        answers,
        more.get("against", {}),
        more.get("taxonomy"),
        more.get("train"),
        out,
        lines.append,
        at=more.get("at", DAY),
        dataset=more.get("dataset"),
    )


def read(out: Path) -> Judgement:
    return msgspec.json.decode((out / evaluate.REPORT).read_bytes(), type=Judgement)


def test_a_classified_file_becomes_a_report(tmp_path: Path) -> None:
    answers = write(tmp_path / "answers.parquet", chance(0, 90))
    other = write(tmp_path / "svm.jsonl", [each | {"model": "svm"} for each in chance(0, 90)])
    train = write(tmp_path / "train.parquet", chance(2, 50))
    save(from_sample(), taxonomy := tmp_path / "taxonomy.json")
    said: list[str] = []
    more = {"against": {"svm": other}, "taxonomy": taxonomy, "train": train}
    record = make(answers, tmp_path / "out", said, **more)
    found = read(tmp_path / "out")
    assert record.stage == "evaluate"
    assert set(record.inputs) == {"predictions", "against svm", "taxonomy", "train"}
    assert set(record.files) == {"report.json", "report.html"}
    assert record.summary["unweighted"]["accuracy"] == pytest.approx(
        found.overall["unweighted"].figures["accuracy"].value
    )
    assert record.summary["against"]["svm"] == {"accuracy": 0.0, "p_value": 1.0}
    assert found.taxonomy == from_sample().version
    assert found.test_set.labels_outside  # the labels here are none of the sample's
    assert sum(each.training_offers or 0 for each in found.categories) == 50
    assert "accuracy" in said[-2]
    assert said[-1].startswith("against svm: accuracy +0.0000")
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")


def test_answer_of_a_merged_category_counts_as_its_successor(tmp_path: Path) -> None:
    names = dict.fromkeys(("de", "en", "fr", "es", "it"), "name")
    merged = Category("old", names, None, status="retired", successor="new")
    save(first([merged, Category("new", names, None)]), taxonomy := tmp_path / "taxonomy.json")
    answers = write(tmp_path / "a.jsonl", [row(1, "new", "old")])
    for given, accuracy in ((taxonomy, 1.0), (None, 0.0)):
        record = make(answers, tmp_path / f"{accuracy}", taxonomy=given)
        assert record.summary["unweighted"]["accuracy"] == accuracy


def test_report_says_for_how_much_of_production_the_test_set_stands(tmp_path: Path) -> None:
    # Nobody labels c, which is 700 of 1,000 in production, and 100 are in no category at all.
    known = lakes.taxonomy("a", "b", "c")
    lake = lakes.write(tmp_path / "lake.parquet", lakes.rows(300, ("a", "b")))
    production = Production({"a": 150, "b": 50, "c": 700}, {"gone": 100})
    lakes.draw(tmp_path, lake, known, lakes.SMALL, production)
    rows = [
        row(i, each["label"], "a", weight=each["weight"])
        for i, each in enumerate(lakes.read(tmp_path, "test"))
    ]
    answers = write(tmp_path / "answers.jsonl", rows)
    sets, said = tmp_path / "sets" / "dataset.json", list[str]()
    record = make(answers, tmp_path / "out", said, dataset=sets)
    assert "dataset" in record.inputs
    assert record.summary["production"]["accuracy"] == pytest.approx(0.75)
    assert record.summary["uncovered_mass"] == pytest.approx(0.8)
    assert read(tmp_path / "out").test_set.uncovered_mass == pytest.approx(0.8)
    assert f"(of {len(rows)} offers, which stand for 20.0 % of production)" in said[-2]
    page = (tmp_path / "out" / evaluate.PAGE).read_text()
    assert "of the part of production that the test set stands for (20.0 %)" in page
    assert "production’s offers" not in page[: page.index("</header>")]
    # Without the file nobody knows, and the page says that.
    make(answers, tmp_path / "out", said)
    assert read(tmp_path / "out").test_set.uncovered_mass is None
    page = (tmp_path / "out" / evaluate.PAGE).read_text()
    assert "how much of it is not known here" in page
    # It is of another test set.
    write(answers, rows[1:])
    with pytest.raises(StageError, match=rf"a test set of {len(rows)} offers") as caught:
        make(answers, tmp_path / "out", dataset=sets)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{}", "no", '{"test": {"offers": 1, "uncovered_mass": 1.5}}'])
def test_what_is_no_data_set_is_refused_with_one_line(tmp_path: Path, content: str) -> None:
    answers = write(tmp_path / "a.jsonl", [row(1, "a", "a")])
    (path := tmp_path / "dataset.json").write_text(content)
    with pytest.raises(
        StageError, match=r"dataset\.json: is not what the data-set stage"
    ) as caught:
        make(answers, tmp_path / "out", dataset=path)
    assert "\n" not in str(caught.value)


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    answers, out = write(tmp_path / "a.jsonl", chance(0, 40)), tmp_path / "out"
    record = make(answers, out)
    written = (out / evaluate.REPORT).stat().st_mtime_ns
    said: list[str] = []
    assert make(answers, out, said) == record
    assert said == [f"{out}: is done already"]
    assert (out / evaluate.REPORT).stat().st_mtime_ns == written
    # Other parameters, another model to compare with, a lost history: done anew.
    for more in ({"how": EvaluateParameters(resamples=21)}, {"against": {"itself": answers}}):
        make(answers, out, said := [], **more)
        assert said != [f"{out}: is done already"]
    (out / evaluate.HISTORY).unlink()
    make(answers, out, said := [], against={"itself": answers})
    assert said != [f"{out}: is done already"]


def test_models_follow_each_other_in_the_history(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in (1, 2, 1):
        rows = [each | {"model": f"m{number}"} for each in chance(number, 30, errors=0)]
        make(write(tmp_path / f"m{number}.jsonl", rows), out)
    assert [each.model for each in history.read(out / evaluate.HISTORY)] == ["m1", "m2"]
    page = (out / evaluate.PAGE).read_text()
    assert page.index("m1</code>") < page.rindex("m2</code>")


def test_equal_answers_make_equal_bytes(tmp_path: Path) -> None:
    rows = chance(0, 80)
    one = write(tmp_path / "one.parquet", rows)
    other = write(tmp_path / "other.jsonl", rows[::-1])
    for path in (one, other):
        make(path, tmp_path / path.stem)
    for name in (evaluate.REPORT, evaluate.PAGE, evaluate.HISTORY):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_order_of_sets_has_no_part_in_it(tmp_path: Path) -> None:
    answers = write(tmp_path / "a.jsonl", chance(0, 40))
    make(answers, tmp_path / "here")
    program = (
        "import sys; from pathlib import Path; from tests.training.test_evaluate import make; "
        "make(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(answers), str(tmp_path / "there")],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        check=True,
    )
    for name in (evaluate.REPORT, evaluate.PAGE, evaluate.HISTORY):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_killed_before_its_end_it_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, out = write(tmp_path / "a.jsonl", chance(0, 40)), tmp_path / "out"
    make(answers, tmp_path / "whole")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(history, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            make(answers, out)
    make(answers, out)
    for name in (evaluate.REPORT, evaluate.PAGE, evaluate.HISTORY):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (out / "parts").exists()


@pytest.mark.parametrize("what", ["predictions", "against", "taxonomy", "train", "dataset"])
def test_missing_file_is_refused_with_one_line(tmp_path: Path, what: str) -> None:
    answers, missing = write(tmp_path / "a.jsonl", [row(1, "a", "a")]), tmp_path / "missing.jsonl"
    more: dict[str, Any] = {what: {"x": missing} if what == "against" else missing}
    with pytest.raises(StageError, match=r"missing\.jsonl") as caught:
        make(missing if what == "predictions" else answers, tmp_path / "out", **more)
    assert "\n" not in str(caught.value)


def test_other_offers_are_refused(tmp_path: Path) -> None:
    own = write(tmp_path / "own.jsonl", [row(1, "a", "a")])
    other = write(tmp_path / "other.jsonl", [row(2, "a", "a")])
    with pytest.raises(StageError, match="not of the same offers"):
        make(own, tmp_path / "out", against={"other": other})
    with pytest.raises(StageError, match="has no name"):
        make(own, tmp_path / "out", against={"": own})
