"""The stages as a person runs them, one after the other, on a small sample lake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from classifier import bulk
from classifier.artifact import resolve
from classifier.model import Model
from training.cli import app
from training.stage import Record
from training.tracking import reports

SMALL = (
    "lake.offers=6000",
    "dataset.training_offers=2000",
    "dataset.floor=5",
    "dataset.validation_offers=400",
    "dataset.test_offers=600",
    "dataset.experiment_offers={s: 500, m: 1000, l: 2000}",
    "dataset.transfer_offers=500",
    "baseline.costs=[1.0]",
    "baseline.tuning_offers=2000",
    "evaluate.resamples=50",
)


@pytest.fixture(autouse=True)
def tracked(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Stages whose runs were logged, each with the files that went with it, which are there.

    MLflow itself has tests of its own.
    """
    logged: dict[str, list[str]] = {}

    def log(record: Record, out: Path, say: Callable[[str], None]) -> bool:
        assert record.stage not in logged
        files = reports(record, out)
        assert all(file.is_file() for file in files)
        logged[record.stage] = [str(file.relative_to(out)) for file in files]
        return True

    monkeypatch.setattr("training.tracking.log", log)
    return logged


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text("")
    return path


def run(pipeline: Path, *arguments: object) -> Result:
    settings = [part for each in SMALL for part in ("--set", each)]
    command = [*map(str, arguments), "--pipeline", str(pipeline), *settings]
    return CliRunner().invoke(app, command)


def summary(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return told


def test_from_a_lake_to_a_judged_baseline_each_stage_once(
    tmp_path: Path, pipeline: Path, tracked: dict[str, list[str]]
) -> None:
    lake, sets, svm, report = (tmp_path / name for name in ("lake", "sets", "svm", "report"))
    stages: list[tuple[object, ...]] = [
        ("lake", "--out", lake),
        (
            "dataset", "--out", sets, "--lake", lake, "--taxonomy", lake / "taxonomy.json",
            "--production", lake / "production.json",
        ),
        (
            "baseline", "--out", svm, "--train", sets / "train.parquet",
            "--validation", sets / "validation.parquet", "--taxonomy", sets / "taxonomy.json",
        ),
    ]  # fmt: skip
    told = [summary(run(pipeline, *stage)) for stage in stages]
    assert told[0]["offers"] == 6_000
    assert told[2]["artifact"] == resolve(svm).name

    answers = tmp_path / "answers.parquet"
    model = Model.load(resolve(svm), threads=1)
    bulk.classify_file(sets / "test.parquet", answers, model, record_bytes=1 << 20)
    judge = (
        "evaluate", "--out", report, "--predictions", answers, "--against", f"itself={answers}",
        "--taxonomy", sets / "taxonomy.json", "--train", sets / "train.parquet",
        "--dataset", sets / "dataset.json",
    )  # fmt: skip
    judged = summary(run(pipeline, *judge))
    # Two thousand offers of 165 categories teach a linear model a little, and guessing nothing.
    assert 0.3 < judged["unweighted"]["accuracy"] < 0.9
    assert (report / "report.html").stat().st_size > 10_000

    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("stage.json")}
    assert len(finished) == 4
    for stage in (*stages, judge):
        summary(run(pipeline, *stage))
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert tracked == {
        "lake": [],
        "dataset": ["dataset.json", "plots.png"],
        "baseline": [f"{resolve(svm).name}/report.json"],
        "evaluate": ["report.html", "report.json"],
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("lake", "--out", "OUT", "--set", "lake.offer=1"), 2, "lake.offer=1: Extra inputs"),
        (("lake", "--out", "OUT", "--pipeline", "none.yaml"), 2, "none.yaml: cannot be read"),
        (
            ("dataset", "--out", "OUT", "--lake", "none", "--taxonomy", "none.json"),
            1,
            "none.json: cannot be read",
        ),
        (
            ("baseline", "--out", "OUT", "--train", "none", "--validation", "none"),
            1,
            "none: cannot be read",
        ),
        (("evaluate", "--out", "OUT", "--predictions", "none"), 1, "none: cannot be read"),
        (
            ("evaluate", "--out", "OUT", "--predictions", "none", "--against", "none"),
            2,
            "--against none: must be NAME=FILE",
        ),
        (("endpoint", "--out", "OUT", "--model", "none", "--offers", "none"), 1, "none: "),
        (
            ("given", "--out", "OUT", "--train", "a", "--validation", "b", "--test", "c"),
            1,
            "a: cannot be read",
        ),
        (("taxonomy", "show", "none.json"), 1, "none.json: cannot be read"),
        (("taxonomy", "apply", "a.json", "b.yaml", "--out", "c.json"), 1, "a.json: cannot be read"),
        (("production", "--out", "OUT", "--taxonomy", "none.json"), 1, "none.json: cannot be read"),
    ],
)
def test_what_cannot_run_is_one_line(
    tmp_path: Path,
    pipeline: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    filled = [argument.replace("OUT", str(tmp_path / "out")) for argument in arguments]
    done = CliRunner().invoke(app, filled)
    assert pipeline.exists()
    assert done.exit_code == code, done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
