"""A linear SVM beside an encoder: the best sum of both, and the artefact that serves it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize  # type: ignore[import-untyped]
from typer.testing import CliRunner

from classifier.artifact import Artifact, current, file_hash
from classifier.model import Model, wide_part
from classifier.offer import Offer
from classifier.wide import Wide
from compile.build import CompileError, build
from compile.checkpoint import Checkpoint
from compile.verify import reference_logits
from tests.training.files import say, write
from training import baseline, encoders, student, wide
from training.cli import app
from training.parameters import BaselineParameters, StudentParameters, WideParameters
from training.scratch import Shape
from training.stage import Record, StageError
from training.tiny import tiny_offers
from training.wide import LOUDEST, fit_scales, judge

pytestmark = pytest.mark.usefixtures("on_one_thread")

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]


def drawn(seed: int, rows: int, scales: tuple[float, float]) -> tuple[Logits, Logits, Labels]:
    """Two parts' logits, and labels drawn from the softmax of their sum by these scales."""
    rng = np.random.default_rng(seed)
    encoder = rng.normal(0, 2, (rows, 5)).astype(np.float32)
    beside = rng.normal(0, 0.3, (rows, 5)).astype(np.float32)
    noise = rng.gumbel(size=(rows, 5))
    labels = (scales[0] * encoder + scales[1] * beside + noise).argmax(axis=1)
    return encoder, beside, labels


def loss(scales: Sequence[float], encoder: Logits, beside: Logits, labels: Labels) -> float:
    logits = scales[0] * encoder.astype(np.float64) + scales[1] * beside
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return float(-np.log(shares[np.arange(len(labels)), labels]).mean())


# The scales


@pytest.mark.parametrize("seed", range(3))
def test_scales_are_the_minimum_that_scipy_finds_without_slopes(seed: int) -> None:
    given = drawn(seed, 400, (0.7, 5.0))
    found = fit_scales(*given)
    other = minimize(loss, [1, 1], given, "Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    assert list(found) == pytest.approx(other.x, rel=1e-3)
    assert loss(found, *given) == pytest.approx(other.fun, abs=1e-7)


def test_scales_that_labels_were_drawn_by_are_found() -> None:
    assert list(fit_scales(*drawn(1, 20_000, (0.7, 5.0)))) == pytest.approx([0.7, 5.0], rel=0.05)


def test_part_that_is_right_four_times_in_five_gets_the_scale_that_says_so() -> None:
    """Of two labels, one logit ahead: a share of 0.8 is a scale of ln 4."""
    encoder = np.tile(np.array([1, 0], np.float32), (5, 1))
    labels = np.array([0, 0, 0, 0, 1])
    assert fit_scales(encoder, np.zeros_like(encoder), labels) == (round(np.log(4), 3), 0.0)
    assert fit_scales(np.zeros_like(encoder), encoder, labels) == (0.0, round(np.log(4), 3))


def test_part_that_misleads_is_silent_and_none_is_endlessly_loud() -> None:
    right = np.tile(np.eye(3, dtype=np.float32), (20, 1))
    labels = np.tile(np.arange(3), 20)
    assert fit_scales(right, -right, labels) == (LOUDEST[0], 0.0)
    silent, loud = fit_scales(-right, right, labels)
    assert silent == 0
    assert 10 < loud <= LOUDEST[1]


def test_sum_over_pieces_is_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(2, 101, (0.7, 5.0))
    whole = fit_scales(*given)
    monkeypatch.setattr(wide, "CELLS", 35)  # seven rows at a time
    assert fit_scales(*given) == whole


def test_wide_part_pays_where_it_knows_what_the_encoder_does_not() -> None:
    worth = judge(*drawn(3, 2_000, (0.7, 5.0)))
    assert worth["pays"]
    assert worth["both"]["loss"] < min(worth["encoder"]["loss"], worth["linear"]["loss"])
    gain = worth["both"]["accuracy"] - worth["encoder"]["accuracy"]
    assert (worth["gained"] - worth["lost"]) / 2_000 == pytest.approx(gain, abs=2e-4)
    assert worth["p_value"] < 1e-6


def test_wide_part_of_noise_does_not_pay() -> None:
    """On its own rows one more scale always gains a little; those it was not fitted on tell."""
    encoder, beside, labels = drawn(0, 300, (0.7, 0.0))
    assert loss(fit_scales(encoder, beside, labels), encoder, beside, labels) <= loss(
        (fit_scales(encoder, np.zeros_like(beside), labels).encoder, 0), encoder, beside, labels
    )
    worth = judge(encoder, beside, labels)
    assert not worth["pays"]


def test_halves_are_judged_by_each_other() -> None:
    """The first half says the encoder is right and the second that it is wrong, of two labels."""
    encoder = np.tile(np.array([1, 0], np.float32), (8, 1))
    labels = np.array([0, 0, 0, 1, 0, 1, 0, 1])
    worth = judge(encoder, np.zeros_like(encoder), labels)
    # Every second one is right once in four, which silences it: the other half is a coin's toss.
    # By the half that is always right it is as loud as may be, and is wrong three times in four.
    loud = np.log1p(np.exp(-LOUDEST[0]))
    expected = (4 * np.log(2) + 1 * loud + 3 * (LOUDEST[0] + loud)) / 8
    assert worth["encoder"]["loss"] == pytest.approx(expected, abs=1e-4)
    assert worth["encoder"]["accuracy"] == 5 / 8


# The stage

QUICK: dict[str, Any] = {
    "batch": 16, "head_rate": 2e-2, "rate": 1e-2, "max_tokens": 24, "precision": "fp32",
    "epochs": 3, "prefix": "query: ",
}  # fmt: skip
LABELS = ("kettles", "sofas", "tents")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets of three categories, a student and an SVM of the same training set."""
    path = tmp_path_factory.mktemp("work")
    rows = [(offer, label) for offer, label in tiny_offers(each=8) if label in LABELS]
    write(path / "train.jsonl", rows[::2])
    write(path / "validation.jsonl", [*rows[1::2], (Offer("none", title="oar"), "boats")])
    shape = Shape(pieces=300, hidden=16, layers=2, heads=2, inner=32, max_tokens=24)
    made = encoders.make([offer.title or "" for offer, _ in rows], shape, seed=1)
    encoders.save(path / "encoder", made.model, made.tokenizer)
    make_student(path, path / "student")
    make_svm(path, path / "svm")
    return path


def make_student(work: Path, out: Path, train: str = "train", **changed: Any) -> Record:
    parameters = StudentParameters(encoder=str(work / "encoder"), prune=False, **QUICK | changed)
    sets = (work / f"{train}.jsonl", work / "validation.jsonl")
    return student.make(parameters, *sets, None, None, None, out, say)


def make_svm(
    work: Path, out: Path, train: str = "train", validation: str = "validation", **changed: Any
) -> Record:
    own: dict[str, Any] = {"costs": (1.0,), "refit": False}
    parameters = BaselineParameters(**own | changed)
    sets = (work / f"{train}.jsonl", work / f"{validation}.jsonl")
    return baseline.make(parameters, *sets, None, out, say)


@pytest.fixture(scope="module")
def both(work: Path) -> tuple[Path, Record]:
    out = work / "both"
    return out, make(work, out)


def make(work: Path, out: Path, **changed: Path) -> Record:
    given = {"student": work / "student", "linear": work / "svm"} | changed
    validation = given.pop("validation", work / "validation.jsonl")
    return wide.make(WideParameters(), **given, validation=validation, out=out, say=say)


TEXTS = ("query: sofa bed", "query: Kettle 2 l", "query: tent", "query: no such thing")


def by_hand(work: Path, record: Record) -> NDArray[np.float64]:
    """The sum of what both answer to TEXTS, each loaded as its own stage left it."""
    deep = Checkpoint.load(work / "student" / "checkpoint")
    rows, _ = deep.tokeniser().encode(list(TEXTS))
    own = reference_logits(deep.encoder(), rows)
    with closing(Wide(Artifact.load(current(work / "svm")))) as svm:
        beside = svm.answers([text.removeprefix("query: ") for text in TEXTS])
    scales = record.summary["scales"]
    return np.asarray(scales["encoder"] * own.astype(np.float64) + scales["wide"] * beside)


@pytest.mark.parametrize("target", ["onnx-cpu", "torch-cpu"])
def test_artefact_answers_the_scaled_sum_of_the_two(
    work: Path, both: tuple[Path, Record], target: str
) -> None:
    out, record = both
    published = build(out / "checkpoint", target, work / "served")
    expected = by_hand(work, record)
    with closing(Model.load(published, threads=1)) as model:
        manifest = model.artifact.manifest
        assert (manifest.kind, manifest.target) == ("wide-and-deep", target)
        assert manifest.checkpoint == record.summary["checkpoint"]
        assert model.recipe.prefix == "query: "
        shares = np.exp(expected / manifest.temperature)
        shares /= shares.sum(axis=1, keepdims=True)
        for answer, share in zip(model.predict(list(TEXTS)), shares, strict=True):
            assert answer is not None
            found = {answer.category_id: answer.score, **dict(answer.alternatives)}
            assert [found[label] for label in LABELS] == pytest.approx(share, abs=1e-4)
        alone = wide_part(model.artifact)
        assert alone is not None
        assert len(set(alone.answers(TEXTS).argmax(axis=1))) == 3  # it serves by itself, too
        alone.close()
    report = json.loads((published / "report.json").read_text())
    assert report["training"]["scales"] == record.summary["scales"]
    assert report["compile"]["bytes"]["wide.safetensors"] > 0


def test_record_says_what_the_wide_part_is_worth(work: Path, both: tuple[Path, Record]) -> None:
    out, record = both
    assert set(record.summary["worth"]) == {
        "encoder", "linear", "both", "gained", "lost", "p_value", "pays",
    }  # fmt: skip
    known = Checkpoint.load(out / "checkpoint").description
    assert known.report["worth"] == record.summary["worth"]
    assert known.report["linear"]["artifact"] == current(work / "svm").name
    students = Checkpoint.load(work / "student" / "checkpoint")
    assert known.report["student"]["checkpoint"] == students.hash
    assert known.data == students.description.data
    # The label that training lacks had no part in it.
    assert (
        sum(each["offers"] for each in record.summary["validation"]["by_language"].values())
        == sum(1 for _, label in tiny_offers(each=8) if label in LABELS) // 2
    )


def test_done_once_and_the_same_again(
    work: Path, both: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, record = both
    assert make(work, tmp_path).summary == record.summary | {
        "checkpoint": Checkpoint.load(tmp_path / "checkpoint").hash
    }
    for name, digest in Checkpoint.load(out / "checkpoint").description.files.items():
        assert file_hash(tmp_path / "checkpoint" / name) == digest

    def never(*arguments: Any) -> None:
        raise AssertionError("it was fitted again")

    monkeypatch.setattr(wide, "fit_scales", never)
    assert make(work, out) == record


def test_wide_part_that_was_changed_is_not_compiled(
    both: tuple[Path, Record], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(both[0] / "checkpoint", tmp_path / "changed"))
    vocabulary = json.loads((path / "vocabulary.json").read_text())
    grams = vocabulary["words"]["grams"]
    vocabulary["words"]["grams"] = grams[1:] + grams[:1]
    (path / "vocabulary.json").write_text(json.dumps(vocabulary))
    description = json.loads((path / "checkpoint.json").read_text())
    description["files"]["vocabulary.json"] = file_hash(path / "vocabulary.json")
    (path / "checkpoint.json").write_text(json.dumps(description))
    with pytest.raises(CompileError, match="otherwise than in training"):
        build(path, "torch-cpu", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_checkpoint_without_its_wide_part_is_refused(
    both: tuple[Path, Record], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(both[0] / "checkpoint", tmp_path / "changed"))
    description = json.loads((path / "checkpoint.json").read_text())
    del description["files"]["wide.safetensors"]
    (path / "checkpoint.json").write_text(json.dumps(description))
    with pytest.raises(CompileError, match=r"must list .*wide\.safetensors and nothing else"):
        build(path, "torch-cpu", tmp_path / "out")
    (path / "checkpoint.json").write_text(json.dumps(description | {"kind": "deep"}))
    with pytest.raises(CompileError, match="kind 'deep' is not one of encoder, wide-and-deep"):
        build(path, "torch-cpu", tmp_path / "out")


def refusal(work: Path, out: Path, **changed: Path) -> str:
    with pytest.raises(StageError) as refused:
        make(work, out, **changed)
    assert "\n" not in str(refused.value)
    assert not out.exists()
    return str(refused.value)


def test_svm_that_does_not_fit_is_refused_in_a_line(
    work: Path, both: tuple[Path, Record], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rows = [(offer, label) for offer, label in tiny_offers(each=8) if label in LABELS]
    write(work / "others.jsonl", rows[::3])
    write(work / "fewer.jsonl", [row for row in rows if row[1] != "tents"])
    make_svm(work, tmp_path / "refit", refit=True)
    make_svm(work, tmp_path / "others", "others")
    make_svm(work, tmp_path / "labels", "fewer")
    make_svm(work, tmp_path / "fields", fields={"title": 90})
    make_svm(work, tmp_path / "held", validation="others")
    assert "fitted on validation in the end" in refusal(work, out, linear=tmp_path / "refit")
    assert "another training set" in refusal(work, out, linear=tmp_path / "others")
    assert "its 2 labels are not those of" in refusal(work, out, linear=tmp_path / "labels")
    fields = "title: 200, brand: 40, category_path: 100, description: 160"
    assert refusal(work, out, linear=tmp_path / "fields").endswith(
        f"make it with --set 'baseline.fields={{{fields}}}'"
    )
    assert "another validation set" in refusal(work, out, linear=tmp_path / "held")
    assert "another validation set" in refusal(work, out, validation=work / "others.jsonl")
    assert "is not what `training baseline` made" in refusal(work, out, linear=work / "student")
    assert "no checkpoint" in refusal(work, out, student=work / "svm")
    assert "is of kind 'wide-and-deep'" in refusal(work, out, student=both[0])
    assert "has no stage.json" in refusal(work, out, linear=tmp_path)
    changed = Path(shutil.copytree(work / "student", tmp_path / "changed"))
    file = changed / "checkpoint" / "checkpoint.json"
    file.write_text(file.read_text() + "\n")
    assert "is not what the stage made" in refusal(work, out, student=changed)


def test_command_prints_what_came_out(work: Path, both: tuple[Path, Record]) -> None:
    (work / "pipeline.yaml").write_text("")
    arguments = {
        "--student": work / "student", "--linear": work / "svm", "--out": both[0],
        "--validation": work / "validation.jsonl", "--pipeline": work / "pipeline.yaml",
    }  # fmt: skip
    flat = [str(part) for pair in arguments.items() for part in pair]
    done = CliRunner().invoke(app, ["wide", *flat])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scales"] == both[1].summary["scales"]
