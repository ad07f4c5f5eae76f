"""Rows through the real stages, with tiny encoders: made once, resumed, and read into a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from benchmarks.quality import __main__ as command
from benchmarks.quality import answers, page, recipes, row, served, table
from benchmarks.quality.recipes import Recipes
from benchmarks.quality.row import Given, NotHereError
from compile.verify import one_thread
from training import encoders, svm
from training.evaluate import REPORT
from training.scratch import Shape
from training.stage import StageError
from training.tiny import tiny_offers

LABELS = ("kettles", "sofas", "tents")
QUICK = {
    "batch": 16, "epochs": 15, "rate": 1e-2, "head_rate": 2e-2, "max_tokens": 16,
    "precision": "fp32",
}  # fmt: skip
ROWS = {
    "against": "svm",
    "decides": "alone",
    "common": {
        "baseline": {"costs": [1.0]}, "teacher": QUICK, "student": QUICK | {"layers": 1},
        "evaluate": {"resamples": 5},
    },
    "rows": {
        "svm": {"what": "n-grams", "stage": "baseline"},
        "alone": {
            "what": "the same", "stage": "baseline", "parameters": {"baseline": {"refit": False}},
        },
        "taught": {"what": "an encoder", "stage": "teacher"},
        "one-layer": {
            "what": "half of it", "stage": "student", "teacher": "taught", "transfer": True,
        },
        "both": {"what": "wide", "stage": "wide", "student": "one-layer", "linear": "alone"},
        "large": {"what": "more", "stage": "student", "gpu": True},
    },
}  # fmt: skip


def say(line: str) -> None:
    assert "\n" not in line


@pytest.fixture(scope="module", autouse=True)
def _on_one_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr("classifier.cpu.quota", lambda: 1)
        patch.setattr(row, "_has_gpu", lambda: False)
        yield


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    """Three sets of two sources, unlabelled offers, an encoder of two layers."""
    path = tmp_path_factory.mktemp("given")
    rows = [(offer, label) for offer, label in tiny_offers(each=8) if label in LABELS]
    for number, name in enumerate(("train", "validation", "test", "unlabelled")):
        lines = [
            msgspec.to_builtins(offer)
            | {"source": "north" if offer.language in {"de", "en"} else "south"}
            | ({} if name == "unlabelled" else {"label": label})
            for offer, label in rows[number::4]
        ]
        (path / f"{name}.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    shape = Shape(pieces=200, hidden=16, layers=2, heads=2, inner=16, max_tokens=24)
    made = encoders.make([offer.title or "" for offer, _ in rows], shape, seed=1)
    encoders.save(path / "encoder", made.model, made.tokenizer)
    return Given(
        train=path / "train.jsonl",
        validation=path / "validation.jsonl",
        test=path / "test.jsonl",
        unlabelled=path / "unlabelled.jsonl",
        encoder=path / "encoder",
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "rows.yaml"
    path.write_text(json.dumps(ROWS))
    return path


@pytest.fixture(scope="module")
def known(file: Path) -> Recipes:
    return recipes.load(file)


@pytest.fixture(scope="module")
def work(given: Given, known: Recipes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory where the linear row, a student's and its teacher's were run."""
    path = tmp_path_factory.mktemp("work")
    for name in ("svm", "one-layer", "taught"):
        row.run(name, known, given, path, say)
    return path


def test_row_leaves_the_records_that_the_table_is_made_of(work: Path, known: Recipes) -> None:
    quality = table.make(known, work)
    assert [name for name, figures in quality.rows.items() if figures] == [
        "svm", "taught", "one-layer",
    ]  # fmt: skip
    linear, taught, small = (quality.rows[name] for name in ("svm", "taught", "one-layer"))
    assert linear is not None
    assert taught is not None
    assert small is not None
    assert set(linear.sources) == {"north", "south"}
    assert set(linear.languages) == {"de", "en", "es", "fr", "it"}
    assert linear.accuracy == pytest.approx(sum(linear.sources.values()) / 2)
    judged = msgspec.json.decode((work / "svm" / "report" / REPORT).read_bytes())
    assert linear.accuracy == pytest.approx(judged["mean_of_sources"]["accuracy"]["value"])
    assert linear.validation is None  # it was fitted on that
    rows = pq.read_table(work / "one-layer" / "answers" / "validation.parquet").to_pylist()
    right: dict[str, list[bool]] = {"north": [], "south": []}
    for each in rows:
        right[each["source"]].append(each["category_id"] == each["label"])
    means = [sum(some) / len(some) for some in right.values()]
    assert small.validation == pytest.approx(sum(means) / 2)
    # What is served answers as what was trained.
    trained = msgspec.json.decode((work / "one-layer" / "model" / "stage.json").read_bytes())
    accuracy = trained["summary"]["validation"]["accuracy"]
    assert sum(map(sum, right.values())) / len(rows) == pytest.approx(accuracy, abs=1e-4)
    assert small.offers == linear.offers == 30
    assert small.weights
    for name, figures in (("svm", linear), ("one-layer", small)):
        asked = msgspec.json.decode((work / name / "answers" / "stage.json").read_bytes())
        assert asked["summary"]["cpu_seconds"] > 0
        assert figures.offers_per_cpu_second == asked["summary"]["offers_per_cpu_second"]
        made = msgspec.json.decode((work / name / "model" / "stage.json").read_bytes())
        assert figures.minutes == pytest.approx(made["seconds"] / 60)
    assert small.behind_teacher == pytest.approx(100 * (taught.accuracy - small.accuracy))
    assert taught.behind_teacher is None
    for language, ratio in taught.errors_by_language.items():
        own, other = taught.languages[language], linear.languages[language]
        expected = None if other == 1 else pytest.approx((1 - own) / (1 - other))
        assert ratio == expected
    assert json.loads((work / "one-layer" / "report" / REPORT).read_bytes())["against"].keys() == {
        "svm"
    }


def test_row_that_is_done_does_nothing(
    work: Path, given: Given, known: Recipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("it was done again")

    monkeypatch.setattr("training.loop.fit", never)
    monkeypatch.setattr(svm, "fit", never)
    monkeypatch.setattr("compile.build.build", never)
    monkeypatch.setattr(answers, "ProcessPoolExecutor", never)
    monkeypatch.setattr("training.evaluate.judge", never)
    before = {path: path.stat().st_mtime_ns for path in work.rglob("stage.json")}
    assert len(before) == 1 + 3 + 4 + 4
    for name in ("svm", "one-layer", "taught"):
        row.run(name, known, given, work, say)
    assert {path: path.stat().st_mtime_ns for path in work.rglob("stage.json")} == before


def test_answers_that_were_given_before_a_kill_are_kept(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = next(path for path in (work / "one-layer" / "artifact").iterdir() if path.is_dir())
    sets = {name: work / "sets" / f"{name}.parquet" for name in answers.SETS}
    monkeypatch.setattr(answers, "read", lambda files: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        answers.make(artifact, sets, tmp_path, say)
    monkeypatch.undo()
    monkeypatch.setattr(served, "classify", None)
    record = answers.make(artifact, sets, tmp_path, say)
    assert record.files.keys() == {"test.parquet", "validation.parquet"}
    assert not (tmp_path / "parts").exists()


def test_row_of_another_recipe_or_of_other_sets_was_not_run(
    work: Path, known: Recipes, tmp_path: Path
) -> None:
    changed = json.loads(json.dumps(ROWS))
    changed["common"]["student"]["epochs"] = 13
    path = tmp_path / "rows.yaml"
    path.write_text(json.dumps(changed))
    other = recipes.load(path)
    assert row.finished("svm", other, work) is not None
    assert row.finished("taught", other, work) is not None
    assert row.finished("one-layer", other, work) is None
    changed["common"]["student"]["epochs"] = QUICK["epochs"]
    changed["common"]["teacher"]["epochs"] = 14
    path.write_text(json.dumps(changed))
    # The student's own recipe is as it was, and its teacher would be another one.
    assert row.finished("one-layer", recipes.load(path), work) is None
    record = work / "sets" / "stage.json"
    content = record.read_bytes()
    sets = msgspec.json.decode(content)
    sets["files"]["test.parquet"] = "0" * 64
    record.write_bytes(msgspec.json.encode(sets))
    assert row.finished("svm", known, work) is None
    record.write_bytes(content)
    assert row.finished("svm", known, work) is not None


def test_row_that_was_killed_between_its_stages_was_not_run(work: Path, known: Recipes) -> None:
    record = work / "one-layer" / "answers" / "stage.json"
    content = record.read_bytes()
    answered = msgspec.json.decode(content)
    answered["files"]["test.parquet"] = "0" * 64  # answered again, and not yet judged
    record.write_bytes(msgspec.json.encode(answered))
    assert row.finished("one-layer", known, work) is None
    record.write_bytes(content)


def test_command_prints_the_table_and_names_what_is_missing(
    work: Path, file: Path, given: Given, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--work", str(work), "--recipes", str(file)]
    assert command.main(["table", *shared]) == 0
    printed = capsys.readouterr().out
    assert printed == (work / page.PAGE).read_text()
    assert "| `alone` | the same | not run |" in printed
    sets = ["--train", str(given.train), "--validation", str(given.validation)]
    sets += ["--test", str(given.test), *shared]
    for name, code, said in (
        ("two", 1, "no row 'two'; there are svm, alone, taught, one-layer, both, large and all"),
        ("large", 1, "large: needs a GPU, and there is none here"),
        ("one-layer", 1, "one-layer: needs unlabelled offers: UNLABELLED=FILE"),
    ):
        assert command.main(["run", name, *sets]) == code
        assert capsys.readouterr().err.splitlines()[-1] == f"error: {said}"
    assert command.main(["run", "svm"]) == 2
    assert "--train" in capsys.readouterr().err


def test_all_rows_go_in_order_past_those_that_this_machine_cannot_make(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []

    def run(name: str, *arguments: Any) -> None:
        asked.append(name)
        if name == "taught":
            raise NotHereError("taught: needs a GPU, and there is none here")

    monkeypatch.setattr(row, "run", run)
    arguments = ["run", "all", "--work", str(tmp_path), "--recipes", str(file)]
    arguments += ["--train", "a", "--validation", "b", "--test", "c"]
    assert command.main(arguments) == 0
    assert asked == ["svm", "alone", "taught", "one-layer", "both", "large"]
    told = capsys.readouterr()
    assert told.err == "not run: taught: needs a GPU, and there is none here\n"
    assert told.out.count("not run") == 6


def test_row_that_fails_is_named_at_the_end_and_the_others_are_run(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []

    def run(name: str, *arguments: Any) -> None:
        asked.append(name)
        if name in {"alone", "both"}:
            raise StageError(f"{name}: broken")

    monkeypatch.setattr(row, "run", run)
    arguments = ["--work", str(tmp_path), "--recipes", str(file)]
    arguments += ["--train", "a", "--validation", "b", "--test", "c"]
    assert command.main(["run", "all", *arguments]) == 1
    assert len(asked) == 6
    assert capsys.readouterr().err.splitlines() == [
        "not run: alone: broken",
        "not run: both: broken",
        "error: failed: alone, both; the lines above say why",
    ]
    assert command.main(["run", "both", *arguments]) == 1
    assert capsys.readouterr().err == "error: both: broken\n"
