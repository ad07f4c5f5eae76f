"""What make would run is what the commands take: no option is renamed without the Makefile."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from classifier.cli import app as classifier_app
from compile.cli import app as compile_app
from training import evaluate, finetuning, given, pretraining
from training.cli import app as training_app
from training.dataset import wanted
from training.endpoint import ANSWERS
from training.parameters import DatasetParameters, load

ROOT = Path(__file__).parents[1]
APPS = {"training": training_app, "classifier": classifier_app, "compile": compile_app}

# What a stage leaves, as far as another reads it: "" is its directory itself.
MAKES = {
    "lake": {"", "taxonomy.json", "production.json"},
    "given": {f"{name}.parquet" for name in given.SETS},
    "dataset": {
        "taxonomy.json",
        "dataset.json",
        *(f"{each.name}.parquet" for each in wanted(DatasetParameters())),
    },
    "baseline": {""},
    "encoder": {pretraining.ENCODER},
    "teacher": {""},
    "student": {finetuning.CHECKPOINT},
    "build": {""},
    "endpoint": {"", ANSWERS},
    "evaluate": {evaluate.PAGE},
    "gate": {""},
}

STAGES_OF_TRAINING = [
    "lake", "dataset", "baseline", "encoder", "teacher", "student", "build", "endpoint",
    "endpoint", "evaluate",
]  # fmt: skip

SPLIT = {name: f"my {name}.jsonl.gz" for name in ("TRAIN", "VALIDATION", "TEST")}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def told(target: str, variables: Mapping[str, str]) -> list[list[str]]:
    """The commands that make would run, each as its words."""
    command = ["make", "-n", target, *(f"{name}={value}" for name, value in variables.items())]
    # Of the run of make that these tests may be part of, nothing is taken over.
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.replace("\\\n", " ").splitlines()
    # What follows "||" says which exit code of a command is none of make's business.
    return [shlex.split(line.partition("||")[0]) for line in lines]


def parsed(target: str, **variables: str) -> list[tuple[str, dict[str, Any]]]:
    """Name and values of every command of ours, by the command line's own parser, which raises."""
    found = []
    for line in told(target, variables):
        words = list(itertools.dropwhile(lambda word: "=" in word, line))  # its environment
        if words[1:2] != ["-m"] or (app := APPS.get(words[2])) is None:
            continue
        command: Any = typer.main.get_command(app)
        name, *arguments = words[3:]
        if app is compile_app and name not in command.commands:  # it builds, unless told otherwise
            name, arguments = "build", words[3:]
        context = command.commands[name].make_context(name, arguments)
        found.append((name, context.params))
    return found


@pytest.mark.parametrize(
    ("variables", "stages"),
    [
        ({}, ["lake", "dataset", "baseline", "endpoint", "evaluate"]),
        (
            {"LAKE": "my/lake", "TAXONOMY": "my/taxonomy.json"},
            ["dataset", "baseline", "endpoint", "evaluate"],
        ),
        (
            {"LAKE": "my/lake", "TAXONOMY": "my/taxonomy.json", "PRODUCTION": "my/counts.json"},
            ["dataset", "baseline", "endpoint", "evaluate"],
        ),
        (SPLIT, ["given", "baseline", "endpoint", "evaluate"]),
        (
            {**SPLIT, "TAXONOMY": "my/taxonomy.json"},
            ["given", "baseline", "endpoint", "evaluate"],
        ),
    ],
)
def test_every_stage_of_the_baseline_takes_its_options_and_finds_its_files(
    variables: dict[str, str], stages: list[str]
) -> None:
    settings = {"SET": "baseline.costs=[1] dataset.cap=500", "WORK": "runs/elsewhere"}
    made = parsed("baseline", **settings, **variables)
    assert [name for name, _ in made] == stages
    theirs = {*map(Path, variables.values()), Path("pipeline.yaml")}
    there = set(theirs)
    taken = set()
    for name, values in made:
        out = values["out"]
        assert out.parent == Path("runs/elsewhere")
        if "overrides" in values:
            parameters = load(ROOT / values["pipeline"], values["overrides"])
            assert parameters.baseline.costs == (1.0,)
            assert parameters.dataset.cap == 500
        lake = {"lake": Path(values["lake"])} if "lake" in values else {}
        read = {key: value for key, value in (values | lake).items() if isinstance(value, Path)}
        del read["out"]
        for option, path in read.items():
            assert path in there, f"{name} --{option} {path}: no stage before it makes that"
        taken |= set(read.values())
        there |= {out / file for file in MAKES[name]}
    assert theirs <= taken
    assert told("baseline", {**settings, **variables})[-1] == [
        "echo",
        str(made[-1][1]["out"] / evaluate.PAGE),
    ]


def test_every_stage_of_training_takes_its_options_and_finds_its_files() -> None:
    made = parsed("train", WORK="runs/elsewhere", SEED="7", SET="teacher.epochs=3")
    there = {Path("training/sample.yaml")}
    for name, values in made:
        out = values["out"]
        assert out.parent == Path("runs/elsewhere")
        if "overrides" in values:
            parameters = load(ROOT / values["pipeline"], values["overrides"])
            assert parameters.teacher.epochs == 3
            if name in ("encoder", "teacher", "student"):
                assert getattr(parameters, name).seed == 7
            if name in ("teacher", "student"):
                assert Path(getattr(parameters, name).encoder) in there
        lake = {"lake": Path(values["lake"])} if "lake" in values else {}
        read = {key: value for key, value in (values | lake).items() if isinstance(value, Path)}
        del read["out"]
        read |= {each: Path(each.partition("=")[2]) for each in values.get("against") or ()}
        for option, path in read.items():
            assert path in there, f"{name} --{option} {path}: no stage before it makes that"
        there |= {out / file for file in MAKES[name]}
    assert [name for name, _ in made] == STAGES_OF_TRAINING


def test_judging_compiles_verifies_and_judges_the_student_for_every_target() -> None:
    variables = {"WORK": "runs/elsewhere", "SET": "gate.category_fall=0.1"}
    made = parsed("judge", **variables)
    work = Path("runs/elsewhere")
    assert [name for name, _ in made] == [
        *STAGES_OF_TRAINING[:6], *3 * ["build"], *3 * ["verify"], "endpoint", *3 * ["gate"],
        "verdict",
    ]  # fmt: skip
    there = {Path("training/sample.yaml"), work / "judged"}
    bounds = []
    for name, values in made:
        read = {key: value for key, value in values.items() if isinstance(value, Path)}
        read.pop("out", None)
        if name == "verdict":
            read = {f"verdict {path}": path for path in values["gates"]}
        for option, path in read.items():
            assert path in there, f"{name} --{option} {path}: no stage before it makes that"
        if name == "gate":
            bounds.append(load(ROOT / values["pipeline"], values["overrides"]).gate)
            assert values["champion"] == work / "svm"
        if "out" in values:
            there |= {values["out"] / file for file in MAKES[name]}
    builds = [values for name, values in made if name == "build"]
    assert [(each["target"].value, each["precision"]) for each in builds] == [
        ("onnx-cpu", None), ("onnx-cpu", "int8"), ("neuron-inf2", None),
    ]  # fmt: skip
    judged = [values["model"] for name, values in made if name == "gate"]
    assert judged == [values["out"] for values in builds]
    assert [each.category_fall for each in bounds] == [0.1, 0.1, 0.1]
    # Only the stand-in's speed is let pass.
    assert (
        bounds[0]
        == bounds[1]
        == bounds[2].model_copy(update={"least_offers_per_second": 20.0, "most_cost": 0.25})
    )
    # Every other command on Neuron is told where its stand-in is.
    for line in told("judge", variables):
        assert ("neuron-inf2" in line or any("/neuron" in word for word in line[3:])) <= (
            line[0] == "PYTHONPATH=tests/neuron_double" or "verdict" in line
        )


def test_five_seeds_share_their_offers_and_their_svm() -> None:
    made = parsed("seeds", WORK="runs/elsewhere")
    assert [name for name, _ in made] == 5 * STAGES_OF_TRAINING
    outs = [values["out"] for name, values in made if name in ("dataset", "baseline")]
    assert set(outs) == {Path("runs/elsewhere/sets"), Path("runs/elsewhere/svm")}
    students = [values for name, values in made if name == "student"]
    seeds = [load(ROOT / each["pipeline"], each["overrides"]).student.seed for each in students]
    assert seeds == [0, 1, 2, 3, 4]
    answers = [str(values["out"] / ANSWERS) for name, values in made if name == "endpoint"]
    last = told("seeds", {"WORK": "runs/elsewhere"})[-1]
    assert last[1:5] == ["-m", "benchmarks.seeds", "--against", answers[0]]
    assert last[5:] == answers[1::2]
    assert len(set(last[5:])) == 5


def test_demo_takes_its_options() -> None:
    plain = {"OFFERS": "my offers.jsonl", "TRAIN": "my.jsonl", "COUNT": "50"}
    ((name, values),) = parsed("demo", **plain)
    assert name == "demo"
    assert (str(values["offers"]), str(values["train"])) == ("my offers.jsonl", "my.jsonl")
    assert values["count"] == 50
    assert [name for name, _ in parsed("demo")] == ["demo"]


def test_cleaning_leaves_what_a_person_trained() -> None:
    ((command, _, *removed),) = told("clean", {})
    assert command == "rm"
    assert not {"runs", "mlflow.db", "mlruns"} & set(removed)
