"""Teacher and student, from a directory of a tiny encoder to a served artefact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from classifier.artifact import Label, file_hash
from classifier.model import Model
from classifier.offer import Offer
from classifier.text import FieldBudget, TextRecipe
from compile.build import build
from compile.checkpoint import Checkpoint
from compile.labelled import read_labelled
from tests.training.files import say, write
from training import encoders, held_out, student, teacher
from training.embeddings import answers, embed, embedder
from training.examples import examples
from training.parameters import StudentParameters, TeacherParameters
from training.scratch import Shape, encode
from training.stage import Record, StageError
from training.student import training_texts, transfer_texts
from training.tiny import tiny_offers

pytestmark = pytest.mark.usefixtures("on_one_thread")

QUICK: dict[str, Any] = {
    "batch": 16, "head_rate": 2e-2, "rate": 1e-2, "max_tokens": 24, "precision": "fp32",
}  # fmt: skip
LABELS = ("kettles", "sofas", "tents")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets of three categories, a wide encoder of two layers and a narrow one of three."""
    path = tmp_path_factory.mktemp("work")
    rows = [(offer, label) for offer, label in tiny_offers(each=20) if label in LABELS]
    third = [rows[i::3] for i in range(3)]
    write(path / "train.jsonl", third[0])
    write(path / "validation.jsonl", third[1])
    write(path / "transfer.jsonl", [(offer, None) for offer, _ in third[2]])
    texts = [offer.title or "" for offer, _ in rows]
    for name, hidden, layers in (("wide", 32, 2), ("narrow", 16, 3)):
        shape = Shape(pieces=300, hidden=hidden, layers=layers, heads=2, inner=32, max_tokens=24)
        made = encoders.make(texts, shape, seed=1)
        encoders.save(path / name, made.model, made.tokenizer)
    return path


@pytest.fixture(scope="module")
def taught(work: Path) -> Record:
    parameters = TeacherParameters(encoder=str(work / "wide"), prefix="query: ", epochs=20, **QUICK)
    return make_teacher(work, parameters)


def make_teacher(work: Path, parameters: TeacherParameters) -> Record:
    train, validation = work / "train.jsonl", work / "validation.jsonl"
    return teacher.make(parameters, train, validation, None, work / "teacher", say)


def make_student(
    work: Path,
    out: Path,
    *,
    transfer: bool = True,
    by: Path | None = None,
    **changed: Any,
) -> Record:
    own: dict[str, Any] = {"encoder": str(work / "narrow"), "fields": {"title": 200}, "epochs": 20}
    parameters = StudentParameters(**own | QUICK | changed)
    return student.make(
        parameters,
        work / "train.jsonl",
        work / "validation.jsonl",
        work / "transfer.jsonl" if transfer else None,
        by,
        None,
        out,
        say,
    )


@pytest.fixture(scope="module")
def distilled(work: Path, taught: Record) -> tuple[Path, Record]:
    assert taught.stage == "teacher"
    out = work / "student"
    return out, make_student(work, out, by=work / "teacher", layers=2)


def test_teacher_learns_and_reads_with_its_own_recipe(work: Path, taught: Record) -> None:
    assert taught.summary["validation"]["accuracy"] > 0.9
    found = Checkpoint.load(work / "teacher" / "checkpoint")
    assert found.hash == taught.summary["checkpoint"]
    assert found.description.text.prefix == "query: "
    assert [field.name for field in found.description.text.fields][:2] == ["title", "brand"]
    assert found.labels == tuple(map(Label, LABELS))
    assert found.description.max_tokens == 24


def test_student_has_fewer_layers_and_answers_as_its_artefact_does(
    distilled: tuple[Path, Record],
) -> None:
    out, record = distilled
    assert record.summary["validation"]["accuracy"] > 0.9
    found = Checkpoint.load(out / "checkpoint")
    assert found.encoder().encoder.config.num_hidden_layers == 2
    assert found.description.report["encoder"]["layers"] == [0, 2]
    assert found.description.report["rows"] == {
        "training": 100, "fitted": 100, "unlabelled": 100, "validation": 100,
        "without_text": 0,
    }  # fmt: skip
    names = set(load_file(out / "checkpoint" / "model.safetensors"))
    assert not [name for name in names if "projection" in name]  # it was training's alone
    served = Model.load(build(out / "checkpoint", "torch-cpu", out.parent / "served"), threads=1)
    (answer,) = served.predict([served.recipe.text(Offer("1", title="Polstersofa gris XL"))])
    assert answer is not None
    assert answer.category_id == "sofas"
    served.close()


def test_both_are_done_once(
    work: Path, taught: Record, distilled: tuple[Path, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("it was trained again")

    monkeypatch.setattr("training.loop.fit", never)
    parameters = TeacherParameters(encoder=str(work / "wide"), prefix="query: ", epochs=20, **QUICK)
    assert make_teacher(work, parameters) == taught
    out, record = distilled
    assert make_student(work, out, by=work / "teacher", layers=2) == record


def test_next_student_finds_the_teachers_embeddings(
    work: Path, distilled: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the teacher was asked again")

    assert distilled[1].inputs["teacher"]
    monkeypatch.setattr("training.student.embedder", lambda *arguments: never)
    make_student(work, tmp_path, by=work / "teacher", layers=1, epochs=1)


def test_distilled_student_lies_nearer_to_its_teacher(
    work: Path, distilled: tuple[Path, Record], tmp_path: Path
) -> None:
    """Judged by how alike the distances between offers are, which needs no projection."""
    make_student(work, tmp_path, transfer=False, by=work / "teacher", layers=2, loss_weight=0.0)
    known = Checkpoint.load(work / "teacher" / "checkpoint")
    likeness = []
    for path in (distilled[0], tmp_path):
        found = Checkpoint.load(path / "checkpoint")
        pairs = transfer_texts(
            work / "transfer.jsonl", found.description.text, known.description.text
        )
        ours, theirs = (
            embedder(one.encoder(), one.tokeniser())([pair[side] for pair in pairs])
            for side, one in ((0, found), (1, known))
        )
        likeness.append(float(np.corrcoef(distances(ours), distances(theirs))[0, 1]))
    assert likeness[0] > likeness[1]


def distances(embedded: Any) -> Any:
    found = np.linalg.norm(embedded[:, None] - embedded[None], axis=2)
    return found[np.triu_indices(len(embedded), 1)]


def test_student_can_start_from_its_teachers_layers(
    work: Path, taught: Record, tmp_path: Path
) -> None:
    encoder = str(work / "teacher" / "checkpoint")
    record = make_student(
        work, tmp_path, transfer=False, by=work / "teacher", encoder=encoder, layers=1, epochs=1,
        rate=1e-9, head_rate=1e-9, prune=False, fields={"title": 200, "brand": 40},
    )  # fmt: skip
    assert record.inputs["teacher"] == taught.summary["checkpoint"]
    ours, theirs = (
        load_file(path / "checkpoint" / "model.safetensors")
        for path in (tmp_path, work / "teacher")
    )
    kept = [name for name in ours if name.startswith("encoder.")]
    assert any("layer.0" in name for name in kept)
    assert not any("layer.1" in name for name in kept)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in kept)


def test_student_that_is_fitted_once_more_learns_validation_and_keeps_what_it_said_before(
    work: Path, tmp_path: Path, taught: Record
) -> None:
    """Validation alone has a category, which only the second fit can learn."""
    assert taught.stage == "teacher"
    held = [(offer, label) for offer, label in tiny_offers(each=20) if label in LABELS][1::3]
    boats = [(Offer(f"b{i}", title=f"oar boat {i}"), "boats") for i in range(40)]
    for name in ("train.jsonl", "transfer.jsonl"):
        (tmp_path / name).write_bytes((work / name).read_bytes())
    write(tmp_path / "validation.jsonl", [*held, *boats])
    found = {}
    for epochs in (0, 20):
        out = tmp_path / str(epochs)
        record = make_student(
            tmp_path, out, by=work / "teacher", encoder=str(work / "narrow"), refit_epochs=epochs,
            refit_rate=1.0, epochs=6,
        )  # fmt: skip
        assert record.files[held_out.FILE] == file_hash(out / held_out.FILE)
        found[epochs] = Checkpoint.load(out / "checkpoint")
    assert [label.id for label in found[0].labels] == list(LABELS)
    assert [label.id for label in found[20].labels] == sorted(["boats", *LABELS])
    assert found[0].description.report["rows"]["fitted"] == 100
    assert found[20].description.report["rows"]["fitted"] == 100 + 100 + 40
    assert found[0].description.data["sha256"] != found[20].description.data["sha256"]
    recipe = found[20].description.text
    given = examples(read_labelled(tmp_path / "validation.jsonl"), recipe)
    model, tokeniser = found[20].encoder(), found[20].tokeniser()
    now = answers(model, embed(model, encode(tokeniser, given.texts), tokeniser.pad_id))
    before = held_out.read(tmp_path / "20", given)
    boat = given.labels == given.label_ids.index("boats")
    assert (before.argmax(axis=1) == given.labels)[boat].mean() == 0
    assert (now.argmax(axis=1) == given.labels)[boat].mean() > 0.9
    # Of the student of training alone are the figures, too.
    accuracy = float((before.argmax(axis=1) == given.labels).mean())
    assert found[20].description.report["validation"]["accuracy"] == round(accuracy, 4)


def test_student_answers_by_the_shares_of_validation(work: Path, tmp_path: Path) -> None:
    """An encoder that learns nothing tells no two texts apart: its answers are the prior."""
    rows = [(offer, label) for offer, label in tiny_offers(each=20) if label in LABELS]
    (tmp_path / "train.jsonl").write_bytes((work / "train.jsonl").read_bytes())
    write(
        tmp_path / "validation.jsonl",
        [row for row in rows if row[1] == "tents"] + [row for row in rows if row[1] == "sofas"][:3],
    )
    best = {}
    for prior in ("training", "validation"):
        out = tmp_path / prior
        make_student(
            tmp_path, out, transfer=False, encoder=str(work / "narrow"), prior=prior, rate=1e-9,
            head_rate=1e-9, epochs=1,
        )  # fmt: skip
        checkpoint = Checkpoint.load(out / "checkpoint")
        best[prior] = checkpoint.encoder().head.bias.detach().numpy()
        assert {golden.category_id for golden in checkpoint.golden} <= set(LABELS)
    assert np.abs(best["training"]).max() < 1e-6
    assert best["validation"].argmax() == LABELS.index("tents")
    assert best["validation"].argmin() == LABELS.index("kettles")
    with pytest.raises(ValueError, match="prior: validation moves what balance: logits has moved"):
        StudentParameters(prior="validation", balance="logits")


def test_pruning_changes_no_answer_and_leaves_fewer_weights(work: Path, tmp_path: Path) -> None:
    titles = [offer.title or "" for offer, _ in tiny_offers(each=20)]
    foreign = [f"{a}{b} {b}{a}" for a in ("qow", "wux", "zyk") for b in ("jav", "hib", "yuf")] * 3
    shape = Shape(pieces=900, hidden=16, layers=1, heads=2, inner=32, max_tokens=24)
    made = encoders.make([*titles, *foreign], shape, seed=1)
    encoders.save(tmp_path / "broad", made.model, made.tokenizer)
    texts = [*(offer.title or "" for offer, _ in read_labelled(work / "validation.jsonl"))]
    weights, answered = [], []
    for prune in (False, True):
        out, encoder = tmp_path / str(prune), str(tmp_path / "broad")
        record = make_student(work, out, transfer=False, encoder=encoder, prune=prune, epochs=4)
        found = Checkpoint.load(out / "checkpoint")
        model, tokeniser = found.encoder(), found.tokeniser()
        rows = encode(tokeniser, [*texts, "qowjav sofa"])
        answered.append(answers(model, embed(model, rows, tokeniser.pad_id)))
        weights.append(record.summary["weights"])
        assert found.description.report["pruned"] == record.summary["pruned"]
    pruned = record.summary["pruned"]
    assert pruned["rows"] < pruned["rows_before"] - 20
    assert weights[0] - weights[1] == 16 * (pruned["rows_before"] - pruned["rows"])
    assert pruned["texts_changed"] == 0
    # The texts of the sets; a word of another is cut into smaller pieces, and answered still.
    assert np.allclose(answered[0][:-1], answered[1][:-1], atol=1e-4)
    assert answered[0][:-1].std() > 0.1
    assert np.isfinite(answered[1][-1]).all()


def test_tokeniser_that_cannot_be_pruned_is_one_line(work: Path, tmp_path: Path) -> None:
    made = encoders.load(work / "narrow")
    words = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1, "sofa": 2}, unk_token="[UNK]"))
    encoders.save(tmp_path / "words", made.model, words)
    with pytest.raises(StageError, match=r"student: .*WordLevel.*: set student.prune to false$"):
        make_student(work, tmp_path / "1", transfer=False, encoder=str(tmp_path / "words"))


def test_texts_of_the_teacher_go_with_those_of_the_student(tmp_path: Path) -> None:
    offers: list[tuple[Offer, str | None]] = [
        (Offer("1", title="tent", brand="Norvik"), "b"),
        (Offer("2", title="sofa", brand="Altea"), "a"),
        (Offer("3", title="tent", brand="Brunn"), "a"),
        (Offer("4", title="?", brand="Brunn"), "a"),
        (Offer("5", title="tent", brand="Brunn"), "b"),
    ]
    train = write(tmp_path / "train.jsonl", offers)
    recipe = TextRecipe(fields=(FieldBudget("title", 50),))
    more = TextRecipe(prefix="query: ", fields=(FieldBudget("title", 50), FieldBudget("brand", 50)))
    given = examples([(offer, label or "") for offer, label in offers], recipe)
    texts = training_texts(train, recipe, more)
    found = [
        (text, given.label_ids[label], theirs)
        for text, label, theirs in zip(given.texts, given.labels, texts, strict=True)
    ]
    assert found == [
        ("sofa", "a", "query: sofa | Altea"),
        ("tent", "a", "query: tent | Brunn"),
        ("tent", "b", "query: tent | Brunn"),
        ("tent", "b", "query: tent | Norvik"),
    ]
    assert transfer_texts(train, recipe, more) == [
        ("sofa", "query: sofa | Altea"),
        ("tent", "query: tent | Brunn"),
        ("tent", "query: tent | Norvik"),
    ]


def test_what_is_missing_is_one_line(work: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"nowhere: there is no such directory"):
        make_student(work, tmp_path / "1", transfer=False, encoder="./nowhere")
    with pytest.raises(StageError, match=r"without a teacher there is nothing to learn of it"):
        make_student(work, tmp_path / "2")
    with pytest.raises(StageError, match=r"has no checkpoint.json, so it is no checkpoint"):
        make_student(work, tmp_path / "3", by=tmp_path)
    with pytest.raises(StageError, match=r"9 layers cannot be kept of 3"):
        make_student(work, tmp_path / "4", transfer=False, layers=9)
    with pytest.raises(StageError, match=r"max_tokens is 99, but .* has positions for 24"):
        make_student(work, tmp_path / "5", transfer=False, max_tokens=99)
