"""Masked-language pretraining that goes on: gains on offers, replay, exact resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM
from typer.testing import CliRunner

from classifier.offer import Offer
from classifier.tokens import Tokeniser
from compile.labelled import DataError
from compile.verify import one_thread
from tests.training.files import say
from training import adaptation, encoders
from training.adaptation import IGNORED, MASKED, Batches, Masks
from training.cli import app
from training.fit import collate
from training.parameters import AdaptParameters
from training.scratch import Shape
from training.stage import StageError
from training.tiny import tiny_offers

SHAPE = Shape(pieces=400, hidden=16, layers=1, heads=2, inner=16, max_tokens=24, dropout=0.1)
OFFERS = [offer for offer, _ in tiny_offers(each=6)]
TEXTS = [f"{offer.title} | {offer.brand}" for offer in OFFERS]
_NOUNS = ("river", "mayor", "winter", "village", "teacher", "ship", "letter", "garden")
_VERBS = ("remembers", "follows", "crosses", "forgets", "describes")
GENERAL = [
    f"The {one} {verb} the {other} in the {third}."
    for one in _NOUNS for verb in _VERBS for other in _NOUNS[:4] for third in _NOUNS[4:6]
]  # fmt: skip


class Files(NamedTuple):
    """What the stage reads."""

    offers: Path
    general: Path


@pytest.fixture(autouse=True)
def _on_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("classifier.cpu.quota", lambda: 1)
    with one_thread():
        yield


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder") / "bert"
    made = encoders.make([*TEXTS, *GENERAL], SHAPE)
    encoders.save(path, made.model, made.tokenizer)
    return path


def written(path: Path, offers: list[Offer] = OFFERS, general: list[str] = GENERAL) -> Files:
    """The texts as the files that the stage reads."""
    files = Files(path / "offers.jsonl", path / "general.txt")
    files.offers.write_bytes(b"\n".join(map(msgspec.json.encode, offers)))
    files.general.write_text("\n".join(general), encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return written(tmp_path_factory.mktemp("texts"))


def parameters(encoder: Path, **changes: object) -> AdaptParameters:
    given: dict[str, object] = {
        "fields": {"title": 200, "brand": 40},
        "encoder": str(encoder), "max_tokens": 24, "epochs": 3, "batch": 16, "replay": 0.25,
        "original_rate": 3e-2, "head_batches": 5, "held_out": 60, "precision": "fp32",
    }  # fmt: skip
    return AdaptParameters.model_validate(given | changes)


def test_adapted_encoder_knows_offers_better_and_is_an_encoder(
    encoder: Path, files: Files, tmp_path: Path
) -> None:
    said: list[str] = []
    record = adaptation.make(parameters(encoder), *files, tmp_path / "out", said.append)
    summary = record.summary
    assert summary["gain"] == pytest.approx(
        summary["loss_before"]["offers"] - summary["loss_after"]["offers"], abs=1e-4
    )
    assert summary["gain"] > 0.3
    assert summary["rate"] == pytest.approx(3e-3)
    assert not summary["head_came_along"]
    assert any(line.startswith("general: loss ") for line in said)
    # The loss that is reported is that of the encoder that is kept, head and all.
    path = str(tmp_path / "out" / "encoder")
    model = encoders.load_model(AutoModelForMaskedLM, path)
    tokenizer = encoders.load_tokenizer(path)
    masks = Masks(tokenizer, model)
    rng = np.random.default_rng(0)
    tokeniser = Tokeniser(tokenizer, 24)
    _, held = adaptation._hold_out(adaptation._encode(tokeniser, sorted(set(TEXTS))), 60, rng)
    loss = adaptation.loss(model, held, masks)
    assert loss == pytest.approx(summary["loss_after"]["offers"], abs=2e-4)  # of a rounded figure
    adapted = encoders.load(path)
    assert torch.equal(
        adapted.model.state_dict()["embeddings.word_embeddings.weight"],
        model.state_dict()["bert.embeddings.word_embeddings.weight"],
    )
    # Its head comes along to the next time.
    again = adaptation.make(
        parameters(Path(path), epochs=1), *files, tmp_path / "again", said.append
    )
    assert again.summary["head_came_along"]
    assert again.summary["loss_before"] == summary["loss_after"]
    # And done is done.
    before = len(said)
    same = adaptation.make(parameters(encoder), *files, tmp_path / "out", said.append)
    assert same == record
    assert len(said) == before


def test_replay_keeps_what_was_known(encoder: Path, files: Files, tmp_path: Path) -> None:
    """The same encoder, which knows general text, adapted with replay and without."""
    knows = parameters(encoder, replay=0.0, epochs=4)
    prose = written(tmp_path, [Offer(str(i), title=text) for i, text in enumerate(GENERAL)])
    adaptation.make(knows, prose.offers, None, tmp_path / "general", say)
    forgotten = {}
    for replay in (0.0, 0.5):
        adapt = parameters(tmp_path / "general" / "encoder", replay=replay, epochs=2)
        record = adaptation.make(adapt, *files, tmp_path / str(replay), say)
        assert record.summary["gain"] > 0
        forgotten[replay] = record.summary["forgotten"]
    assert forgotten[0.5] < forgotten[0.0]


_KILLED = """
import json, sys
from pathlib import Path
from classifier import cpu
from compile.verify import one_thread
from training import adaptation
from training.parameters import AdaptParameters
given = json.loads(sys.stdin.read())
cpu.quota = lambda: 1
with one_thread():
    parameters = AdaptParameters.model_validate(given["parameters"])
    paths = [Path(given[name]) for name in ("offers", "general", "out")]
    adaptation.make(parameters, *paths, print)
"""


def _reached(out: Path, step: int) -> bool:
    found = out.glob("parts/*/encoder/checkpoint-*/whole")
    return any(int(path.parent.name.removeprefix("checkpoint-")) >= step for path in found)


def test_killed_run_ends_with_the_very_weights_of_an_undisturbed_one(
    encoder: Path, files: Files, tmp_path: Path
) -> None:
    settings = parameters(encoder, checkpoint_minutes=0.0, epochs=1, head_batches=3)
    adaptation.make(settings, *files, tmp_path / "undisturbed", say)
    given = {
        "parameters": settings.model_dump(),
        "offers": str(files.offers),
        "general": str(files.general),
        "out": str(tmp_path / "killed"),
    }
    process = subprocess.Popen([sys.executable, "-c", _KILLED], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(given))
    process.stdin.close()
    deadline = time.monotonic() + 90
    while not _reached(tmp_path / "killed", 5):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "stage.json").exists()
    # One that was torn while it was written is none.
    torn = next((tmp_path / "killed").glob("parts/*/encoder")) / "checkpoint-9999"
    torn.mkdir()
    record = adaptation.make(settings, *files, tmp_path / "killed", say)
    weights = [
        load_file(tmp_path / name / "encoder" / "model.safetensors")
        for name in ("undisturbed", "killed")
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not list((tmp_path / "killed").glob("parts/*/*"))
    assert record.summary["batches"] > 10


@pytest.fixture(scope="module")
def masks(encoder: Path) -> Masks:
    name = str(encoder)
    model = encoders.load_model(AutoModelForMaskedLM, name)
    return Masks(encoders.load_tokenizer(name), model)


def test_shares_of_masked_replaced_and_kept_pieces(masks: Masks, encoder: Path) -> None:
    tokenizer = encoders.load_tokenizer(str(encoder))
    mask_id = encoders.piece_id(tokenizer, "mask_token")
    rng = np.random.default_rng(0)
    rows = [np.array([2, *rng.integers(10, 200, int(rng.integers(4, 20))), 3]) for _ in range(3000)]
    batch = masks.batch(rows, rng)
    ids, labels = batch["input_ids"], batch["labels"]
    original, mask = collate(rows, masks.pad_id)
    assert torch.equal(batch["attention_mask"], mask)
    asked = labels != IGNORED
    assert torch.equal(labels[asked], original[asked])
    assert torch.equal(ids[~asked], original[~asked])
    inside = int(mask.sum()) - 2 * len(rows)
    assert int(asked.sum()) / inside == pytest.approx(MASKED, abs=0.01)
    assert not asked[(original == 2) | (original == 3) | (mask == 0)].any()
    masked = (ids == mask_id)[asked].float().mean().item()
    same = (ids == original)[asked].float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.02)
    assert same == pytest.approx(0.1, abs=0.02)
    others = ids[asked & (ids != mask_id)]
    assert not torch.isin(others, torch.tensor([0, 1, 2, 3, mask_id])).any()


def test_text_so_short_that_nothing_falls_is_asked_for_something(masks: Masks) -> None:
    for seed in range(20):
        batch = masks.batch([np.array([2, 50, 3])], np.random.default_rng(seed))
        assert batch["labels"].tolist() == [[IGNORED, 50, IGNORED]]
    nothing = masks.batch([np.array([2, 3])], np.random.default_rng(0))
    assert (nothing["labels"] == IGNORED).all()


def test_batches_hold_every_offer_once_a_pass_and_the_share_of_general_text(
    masks: Masks, encoder: Path
) -> None:
    rng = np.random.default_rng(0)
    domain = [np.array([2, *[9] * int(n), 3]) for n in rng.integers(1, 20, 120)]
    general = [np.array([2, *[8] * int(n), 3]) for n in rng.integers(1, 20, 30)]
    settings = parameters(encoder, epochs=2, batch=16, replay=0.25)
    batches = Batches(domain, general, settings, masks)
    assert batches.domain_rows.shape == (20, 12)
    assert batches.general_rows.shape == (20, 4)
    assert np.bincount(batches.domain_rows.ravel()).tolist() == [2] * 120
    assert np.ptp(np.bincount(batches.general_rows.ravel(), minlength=30)) <= 1
    again = Batches(domain, general, settings, masks)
    for number in (7, 3):
        for name, tensor in batches[number].items():
            assert torch.equal(tensor, again[number][name])
    assert not torch.equal(batches[3]["labels"], batches[7]["labels"])
    none = Batches(domain, [], parameters(encoder, replay=0.0, epochs=1), masks)
    assert none.general_rows.shape == (8, 0)


def test_what_it_cannot_do_is_one_line(
    encoder: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parameters(encoder)
    with pytest.raises(StageError, match=r"^replay needs general texts: give some, or set adapt"):
        adaptation.make(settings, files.offers, None, tmp_path / "1", say)
    few = written(tmp_path, OFFERS[:5])
    with pytest.raises(StageError, match=r"^5 texts of offers and 320 general ones are too few$"):
        adaptation.make(settings, *few, tmp_path / "2", say)
    few.general.write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"general.txt: is no text in UTF-8: "):
        adaptation.make(settings, *few, tmp_path / "3", say)
    with pytest.raises(StageError, match="there is no such directory"):
        adaptation.make(parameters(tmp_path / "none"), *files, tmp_path / "4", say)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StageError, match=r"^adapt: 3 batches of a step cannot be dealt out"):
        adaptation.make(parameters(encoder, accumulation=3), *files, tmp_path / "5", say)


def test_command_takes_what_pipeline_says(encoder: Path, files: Files, tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(
        f"adapt: {{encoder: {encoder}, max_tokens: 24, head_batches: 2, replay: 0.5}}\n"
    )
    command = ["adapt", "--offers", files.offers, "--general", files.general]
    command += ["--out", tmp_path / "out", "--pipeline", pipeline]
    done = CliRunner().invoke(app, [*map(str, command)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["stage"], told["rate"]) == ("adapt", pytest.approx(6e-5))
    assert encoders.load(tmp_path / "out" / "encoder").pad_id == 0
