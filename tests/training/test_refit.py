"""A changed taxonomy on an old student: a new head, from a change set to a served artefact."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from classifier.model import Model
from classifier.offer import Offer
from compile import checkpoint
from compile.build import build
from compile.checkpoint import Checkpoint
from compile.labelled import read_labelled
from tests.training.files import say
from training import embeddings, encoders, head, held_out, refit, sets, student, taxonomy
from training.calibration import fit_temperature
from training.changes import ChangeSet, Merge, New, Split, apply
from training.cli import app
from training.head import Head
from training.parameters import RefitParameters, StudentParameters
from training.priors import log_ratio
from training.refit import encoder_sha256
from training.scratch import Shape
from training.stage import Record, StageError
from training.taxonomy import Category, Taxonomy
from training.tiny import LABELS, tiny_offers

pytestmark = pytest.mark.usefixtures("on_one_thread")

PARAMETERS = RefitParameters(decays=(1e-3, 1e-5), iterations=60)


class Work(NamedTuple):
    """An old edition and a student of it; files of the new edition, which differs in four ways."""

    path: Path
    old: Taxonomy
    new: Taxonomy

    @property
    def student(self) -> Path:
        return self.path / "student"

    def file(self, name: str) -> Path:
        return self.path / name


def category(name: str, parent: str | None = None) -> Category:
    return Category(name, dict.fromkeys(("de", "en", "fr", "es", "it"), name), parent)


def old_label(word: str) -> str | None:
    """What of the tiny offers the old edition knows, and as what."""
    return {"bicycles": "outdoor", "tents": "outdoor", "dog-food": None, "olive-oil": None}.get(
        word, word
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    path = tmp_path_factory.mktemp("work")
    names = ("desk-lamps", "headphones", "kettles", "outdoor", "sofas")
    old = taxonomy.first([*map(category, names), category("rare")])
    changes = (
        New("bicycles", category("x").names, "outdoor"),
        New("tents", category("x").names, "outdoor"),
        Split("outdoor", {"bicycles": ("bicycles",), "tents": ("tents",)}),
        Merge("kettles", "desk-lamps"),
        New("dog-food", category("x").names, None),
    )
    applied = apply(old, ChangeSet(old.version, changes))
    taxonomy.save(applied.taxonomy, path / "taxonomy.json")
    taxonomy.save(old, path / "old.json")
    offers = [(offer, word) for offer, word in tiny_offers(each=14) if word != "olive-oil"]
    before = [(offer, old_label(word)) for offer, word in offers]
    after = [
        (offer, applied.remap(old_label(word), word) or (word if word == "dog-food" else None))
        for offer, word in offers
    ]
    for name, rows in (("old", before), ("new", after)):
        write(path / f"{name}-train.jsonl", rows[::2])
        write(path / f"{name}-validation.jsonl", rows[1::2])
    shape = Shape(pieces=300, hidden=64, layers=1, heads=2, inner=32, max_tokens=24)
    made = encoders.make([offer.title or "" for offer, _ in offers], shape, seed=1)
    encoders.save(path / "encoder", made.model, made.tokenizer)
    parameters = StudentParameters(
        encoder=str(path / "encoder"), fields={"title": 200}, epochs=2, batch=16, rate=1e-2,
        head_rate=2e-2, max_tokens=24, precision="fp32", prune=False, label_smoothing=0.03,
    )  # fmt: skip
    train, validation = path / "old-train.jsonl", path / "old-validation.jsonl"
    out = path / "student"
    student.make(parameters, train, validation, None, None, path / "old.json", out, say)
    return Work(path, old, applied.taxonomy)


def write(path: Path, rows: list[tuple[Offer, str | None]]) -> Path:
    path.write_bytes(
        b"\n".join(
            msgspec.json.encode(msgspec.to_builtins(offer) | {"label": label})
            for offer, label in rows
            if label is not None
        )
    )
    return path


def make(
    work: Work,
    out: Path,
    *,
    by: Path | None = None,
    train: str = "new-train.jsonl",
    edition: str | None = "taxonomy.json",
    told: Callable[[str], None] = say,
    parameters: RefitParameters = PARAMETERS,
) -> Record:
    return refit.make(
        parameters,
        by or work.student,
        work.file(train),
        work.file("new-validation.jsonl"),
        None if edition is None else work.file(edition),
        out,
        told,
    )


@pytest.fixture(scope="module")
def refitted(work: Work) -> tuple[Path, Record]:
    out = work.path / "refit"
    return out, make(work, out)


def test_split_merge_and_new_category_are_served(work: Work, refitted: tuple[Path, Record]) -> None:
    out, record = refitted
    assert record.summary["labels"] == {
        "kept": 3, "new": ["bicycles", "dog-food", "tents"], "gone": ["kettles", "outdoor"],
    }  # fmt: skip
    figures = record.summary["validation"]
    assert figures["kept_labels"]["refit"] > 0.9
    assert figures["new_labels"]["refit"] > 0.6
    # The student's head knows neither what was merged by its new name nor anything of a new label.
    assert figures["kept_labels"]["student"] < figures["kept_labels"]["refit"] - 0.1
    held = list(read_labelled(work.file("new-validation.jsonl")))
    with closing(
        Model.load(build(out / "checkpoint", "torch-cpu", out.parent / "served"), threads=1)
    ) as served:
        answered = served.predict([served.recipe.text(offer) for offer, _ in held])
        assert served.artifact.manifest.taxonomy == work.new.version
    right = [
        answer is not None and answer.category_id == label
        for answer, (_, label) in zip(answered, held, strict=True)
    ]
    assert np.mean(right) == pytest.approx(figures["accuracy"], abs=0.01)


def test_space_is_the_students(work: Work, refitted: tuple[Path, Record]) -> None:
    out, record = refitted
    old, new = Checkpoint.load(work.student / "checkpoint"), Checkpoint.load(out / "checkpoint")
    hashed = encoder_sha256(old.encoder())
    assert record.summary["encoder_sha256"] == hashed == encoder_sha256(new.encoder())
    assert new.description.report["encoder_sha256"] == hashed
    assert new.description.report["student"]["checkpoint"] == old.hash
    assert new.description.text == old.description.text
    assert new.description.max_tokens == old.description.max_tokens
    other = old.encoder()
    next(other.encoder.parameters()).data[0, 0] += 1
    assert encoder_sha256(other) != hashed


def test_done_is_done(work: Work, refitted: tuple[Path, Record]) -> None:
    out, record = refitted
    assert make(work, out) == record


def test_next_change_embeds_new_texts_alone(
    work: Work, refitted: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = refitted[1].summary["texts"]
    assert first["embedded"] > 200
    asked: list[str] = []

    def listening(*arguments: Any) -> embeddings.Embed:
        ask = embeddings.embedder(*arguments)

        def answer(texts: list[str]) -> NDArray[np.float32]:
            asked.extend(texts)
            return ask(texts)

        return answer

    monkeypatch.setattr("training.refit.embedder", listening)
    more = [*tiny_offers({"olive-oil": LABELS["olive-oil"]}, each=2)]
    lines = work.file("new-train.jsonl").read_bytes() + b"\n"
    added = write(tmp_path / "more.jsonl", [(offer, label) for offer, label in more])
    work.file("more.jsonl").write_bytes(lines + added.read_bytes())
    record = make(work, tmp_path / "out", train="more.jsonl", edition=None)
    assert record.summary["labels"]["new"] == ["bicycles", "dog-food", "olive-oil", "tents"]
    assert sorted(asked) == sorted({offer.title or "" for offer, _ in more})
    assert record.summary["texts"]["embedded"] == len(asked)


def test_killed_run_goes_on_and_ends_with_the_same_weights(
    work: Work, refitted: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, fitted = head.fit, []

    def killed(*arguments: Any, **options: Any) -> Head:
        fitted.append(options["decay"])
        if len(fitted) == 2:
            raise KeyboardInterrupt
        return fit(*arguments, **options)

    monkeypatch.setattr("training.head.fit", killed)
    with pytest.raises(KeyboardInterrupt):
        make(work, tmp_path)
    record = make(work, tmp_path)
    assert fitted == [1e-3, 1e-5, 1e-5]  # the first is not fitted again
    assert record.summary["texts"]["embedded"] == 0
    weights = [path / "checkpoint" / "model.safetensors" for path in (refitted[0], tmp_path)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not (tmp_path / "parts").exists()


def test_students_own_smoothing_and_balance_hold_unless_others_are_given(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, found = head.fit, []

    def noted(*arguments: Any, **options: Any) -> Head:
        found.append((options["label_smoothing"], options["balance"]))
        return fit(*arguments, **options)

    monkeypatch.setattr("training.head.fit", noted)
    quick = RefitParameters(decays=(1e-3,), iterations=1)
    make(work, tmp_path / "1", parameters=quick)
    other = quick.model_copy(update={"label_smoothing": 0.0, "balance": "logits"})
    make(work, tmp_path / "2", parameters=other)
    assert found == [(0.03, "none"), (0.0, "logits")]


def test_students_prior_holds_for_its_new_head(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation has a category more often: the head's bias is moved by what that is worth."""
    own = Checkpoint.load(work.student / "checkpoint").description.report["parameters"]
    parameters = StudentParameters(**own | {"prior": "validation"})
    train, validation = work.file("old-train.jsonl"), work.file("old-validation.jsonl")
    by = tmp_path / "student"
    student.make(parameters, train, validation, None, None, work.file("old.json"), by, say)
    make(work, tmp_path / "moved", by=by)
    monkeypatch.setattr(refit, "_learns_evenly", lambda *arguments: False)
    make(work, tmp_path / "plain", by=by)
    moved, plain = (Checkpoint.load(tmp_path / name / "checkpoint") for name in ("moved", "plain"))
    recipe = plain.description.text
    given = sets.read(
        recipe, work.file("new-train.jsonl"), work.file("new-validation.jsonl"), None, say
    )
    logits = held_out.read(tmp_path / "plain", given.validation, recipe.prefix)
    learnt, labels = given.training.labels, given.validation.labels
    expected = fit_temperature(logits, labels) * log_ratio(labels, learnt, len(given.labels))
    shift = moved.encoder().head.bias - plain.encoder().head.bias
    assert np.abs(expected).max() > 1e-4
    assert shift.detach().numpy() == pytest.approx(expected, abs=1e-5)
    kept = held_out.read(tmp_path / "moved", given.validation, recipe.prefix)
    assert not np.array_equal(kept, logits)


def test_what_cannot_be_refitted_is_one_line(work: Work, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"has no checkpoint.json, so it is no checkpoint"):
        make(work, tmp_path / "1", by=tmp_path)
    with pytest.raises(StageError, match=r"3 labels of the training offers are no labels of .*old"):
        make(work, tmp_path / "2", edition="old.json")
    offers = [(Offer(str(i), title="sofa"), f"other-{i % 2}") for i in range(4)]
    write(work.file("other.jsonl"), [(offer, label) for offer, label in offers])
    with pytest.raises(StageError, match=r"new-validation.jsonl: has no offer of any label of .*"):
        make(work, tmp_path / "3", edition=None, train="other.jsonl")
    with pytest.raises(StageError, match=r"is the stage student's; choose another directory"):
        make(work, work.student)


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("sofas", r"has no offer of 'sofas', a category of .* that the student answers \(1 in all"),
        ("dog-food", r"has no offer of 'dog-food', a category of .* that is new \(1 in all\)"),
    ],
)
def test_category_without_an_offer_is_refused(
    work: Work, tmp_path: Path, without: str, said: str
) -> None:
    lines = work.file("new-train.jsonl").read_bytes().splitlines()
    kept = [line for line in lines if msgspec.json.decode(line)["label"] != without]
    work.file(f"no-{without}.jsonl").write_bytes(b"\n".join(kept))
    with pytest.raises(StageError, match=said):
        make(work, tmp_path, train=f"no-{without}.jsonl")


def test_category_that_was_empty_before_is_only_told(work: Work, tmp_path: Path) -> None:
    told: list[str] = []
    quick = RefitParameters(decays=(1e-3,), iterations=1)
    make(work, tmp_path, told=told.append, parameters=quick)
    assert any("1 categories of" in line and "get no answer" in line for line in told)
    assert any(
        line == "refit: 3 labels stay, 3 new (bicycles, dog-food, tents), 2 gone (kettles, outdoor)"
        for line in told
    )


def test_head_that_is_not_finite_is_one_line(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> Head:
        return Head(*(np.full_like(part, np.nan) for part in arguments[2]))

    monkeypatch.setattr("training.head.fit", broken)
    with pytest.raises(StageError, match=r"^refit: the head has weights that are not finite$"):
        make(work, tmp_path)


def test_model_of_another_kind_is_one_line(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Checkpoint.load(work.student / "checkpoint")
    wide = msgspec.structs.replace(found.description, kind="wide-and-deep")
    other = checkpoint.Checkpoint(found.path, found.hash, wide, found.labels, found.golden)
    monkeypatch.setattr(Checkpoint, "load", lambda path: other)
    with pytest.raises(StageError, match=r"is wide-and-deep: refit the student that it was made"):
        make(work, tmp_path)


def test_command_runs_the_stage(work: Work, tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("refit: {decays: [0.001], iterations: 2}")
    arguments = [
        "refit", "--out", tmp_path / "out", "--student", work.student,
        "--train", work.file("new-train.jsonl"), "--validation", work.file("new-validation.jsonl"),
        "--taxonomy", work.file("taxonomy.json"), "--pipeline", tmp_path / "pipeline.yaml",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.tracking.log", lambda *_: None)
        done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    assert '"stage":"refit"' in done.stdout.replace(" ", "")
