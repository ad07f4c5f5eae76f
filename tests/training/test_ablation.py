"""Ablation: a student a value, each trained once, and a table of what came of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from tests.training.files import say, write
from training import ablation, encoders, loop, student
from training.ablation import AS_GIVEN, Ablation, Run, sweeps
from training.cli import app
from training.parameters import ParameterError, load
from training.scratch import Shape
from training.scratch import measured as measure
from training.stage import Record, StageError
from training.tiny import tiny_offers

pytestmark = pytest.mark.usefixtures("on_one_thread")

LABELS = ("kettles", "sofas", "tents")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, an encoder of two layers, and a pipeline.yaml that trains on it for a moment."""
    path = tmp_path_factory.mktemp("work")
    rows = [(offer, label) for offer, label in tiny_offers(each=6) if label in LABELS]
    write(path / "train.jsonl", rows[::2])
    write(path / "validation.jsonl", rows[1::2])
    shape = Shape(pieces=200, hidden=16, layers=2, heads=2, inner=16, max_tokens=24)
    made = encoders.make([offer.title or "" for offer, _ in rows], shape, seed=1)
    encoders.save(path / "encoder", made.model, made.tokenizer)
    section = {
        "encoder": str(path / "encoder"), "batch": 8, "epochs": 3, "rate": 1e-2, "head_rate": 2e-2,
        "max_tokens": 16, "precision": "fp32", "layers": 2,
    }  # fmt: skip
    (path / "pipeline.yaml").write_text(json.dumps({"student": section}))
    return path


def make(work: Path, out: Path, *varied: str, told: list[str] | None = None) -> Ablation:
    return ablation.make(
        load(work / "pipeline.yaml").student,
        sweeps(work / "pipeline.yaml", [], varied),
        work / "train.jsonl",
        work / "validation.jsonl",
        None,
        None,
        None,
        out,
        say if told is None else told.append,
    )


def test_every_value_is_trained_once_and_more_values_cost_only_themselves(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = make(work, tmp_path, "student.layers=[1, 2]", "student.max_tokens=[8, 16]")
    names = {key: [run.run for run in runs] for key, runs in found.sweeps.items()}
    # What is given is among both, and is one run.
    assert names == {
        "layers": ["layers-1", AS_GIVEN], "max_tokens": ["max_tokens-8", AS_GIVEN],
    }  # fmt: skip
    assert [run.value for run in found.sweeps["max_tokens"]] == [8, 16]
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "layers-1", "max_tokens-8", AS_GIVEN,
    }  # fmt: skip
    one, two = found.sweeps["layers"]
    assert one.weights is not None
    assert two.weights is not None
    assert one.weights < two.weights
    record = msgspec.json.decode((tmp_path / "runs" / AS_GIVEN / "stage.json").read_bytes())
    assert two.figures == {
        name: record["summary"]["validation"][name] for name in ("accuracy", "macro_f1")
    }

    trained: list[Any] = []
    fit = loop.fit

    def watched(*arguments: Any, **options: Any) -> None:
        trained.append(arguments)
        fit(*arguments, **options)

    monkeypatch.setattr(loop, "fit", watched)
    again = make(work, tmp_path, "student.layers=[1, 2]", "student.max_tokens=[8, 12, 16]")
    assert len(trained) == 1
    assert again.sweeps["layers"] == found.sweeps["layers"]
    assert msgspec.json.decode((tmp_path / "ablation.json").read_bytes(), type=Ablation) == again
    page = (tmp_path / "ablation.md").read_text()
    accuracy = 100 * (again.sweeps["max_tokens"][2].figures["accuracy"] or 0)
    assert f"| `16`, as given | {accuracy:.2f} |" in page
    assert page.count("\n## ") == 2
    root = ElementTree.parse(tmp_path / "ablation.svg").getroot()
    said = " ".join(root.itertext())
    assert all(word in said for word in ("layers", "max_tokens", "accuracy", "macro F1"))


def test_value_that_cannot_be_trained_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, work: Path, tmp_path: Path
) -> None:
    def trained(parameters: Any, *given: Any) -> Record:
        if parameters.rate > 1:
            raise StageError("student: the loss is not finite; a lower rate may help")
        summary = {"validation": {"accuracy": 0.5, "macro_f1": 0.25}, "weights": 2_500_000}
        return Record("student", "", {}, {}, {}, summary, 90.0)

    monkeypatch.setattr(student, "make", trained)
    told: list[str] = []
    found = make(work, tmp_path, "student.rate=[0.5, 7.0]", told=told)
    assert found.sweeps["rate"] == [
        Run(0.5, "rate-0.5", {"accuracy": 0.5, "macro_f1": 0.25}, 2_500_000, 1.5),
        Run(
            7.0,
            "rate-7.0",
            {"accuracy": None, "macro_f1": None},
            error="student: the loss is not finite; a lower rate may help",
        ),
    ]
    assert told[-1].startswith("rate = 7.0: student: the loss is not finite")
    page = (tmp_path / "ablation.md").read_text()
    assert "| `0.5` | 50.00 | 25.00 | 2.5 | 1.5 |" in page
    assert "| `7.0` | student: the loss is not finite; a lower rate may help |" in page
    with pytest.raises(StageError, match="not finite"):
        make(work, tmp_path, "student.rate=[7.0]")


def test_values_that_look_alike_have_directories_of_their_own() -> None:
    values = [{"title": 20, "brand": 10}, {"brand": 10, "title": 20}, "a/b", "a b", "a_b", 1, 10]
    names = [ablation._name("fields", value) for value in values]
    assert len(set(names)) == len(values)
    assert not [name for name in names if "/" in name or len(name) > 60]


@pytest.mark.parametrize(
    ("varied", "said"),
    [
        (["student.layers=3"], "must be student.key=[value, ...]"),
        (["student.layers=[]"], "must be student.key=[value, ...]"),
        (["teacher.rate=[1.0]"], "must be student.key=[value, ...]"),
        (["student.layers=[3"], "is no YAML"),
        (["student.layer=[3]"], "--vary student.layer: 3: Extra inputs are not permitted"),
        (["student.layers=[3, 0]"], "--vary student.layers: 0: Input should be greater"),
        (["student.layers=[1]", "student.layers=[2]"], "student.layers is varied twice"),
    ],
)
def test_what_cannot_be_varied_is_one_line(work: Path, varied: list[str], said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        sweeps(work / "pipeline.yaml", ["student.layers=1"], varied)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_else_is_as_the_overrides_say(work: Path) -> None:
    (sweep,) = sweeps(
        work / "pipeline.yaml",
        ["student.layers=1", "student.seed=7"],
        ["student.layers=[2, null]"],
    )
    assert [(each.layers, each.seed) for each in sweep.students] == [(2, 7), (None, 7)]


def test_command_refuses_in_one_line(work: Path, tmp_path: Path) -> None:
    arguments = [
        "ablate", "--out", str(tmp_path / "out"), "--pipeline", str(work / "pipeline.yaml"),
        "--train", "none", "--validation", "none", "--vary",
    ]  # fmt: skip
    for varied, code, told in (("student.layers=[1]", 1, "none: cannot"), ("layers", 2, "--vary")):
        done = CliRunner().invoke(app, [*arguments, varied])
        assert done.exit_code == code, done.output
        assert told in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: ")


def test_macro_f1_of_validation_is_scikit_learns() -> None:
    from sklearn.metrics import f1_score

    from training.examples import Examples

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 60)
    logits = rng.normal(size=(60, 6)).astype(np.float32)
    logits[np.arange(60), labels] += 1.5
    given = Examples(["x"] * 60, labels, ["de"] * 60, [*"abcdef"], 0)
    answers = logits.argmax(axis=1)
    right = answers == labels
    found = measure(given, logits, right, right)["macro_f1"]
    assert found == pytest.approx(f1_score(labels, answers, average="macro"), abs=1e-4)
