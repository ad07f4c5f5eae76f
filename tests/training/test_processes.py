"""Two processes of the real command make what one makes, and one of them writes and speaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from compile.checkpoint import Checkpoint
from compile.verify import one_thread
from training import encoders, processes
from training.cli import app
from training.embeddings import answers, embed
from training.scratch import Shape, encode
from training.tiny import tiny_offers

PIPELINE = """
teacher: {encoder: %s/wide, max_tokens: 24, epochs: 3, rate: 1.0e-3,
  head_rate: 2.0e-2, batch: 16, precision: fp32}
student: {encoder: %s/narrow, loss_weight: 0.01, max_tokens: 24, epochs: 6, rate: 5.0e-3,
  head_rate: 2.0e-2, batch: 16, precision: fp32}
adapt: {encoder: %s/narrow, max_tokens: 24, replay: 0, epochs: 3, batch: 16, accumulation: 2,
  head_batches: 4, original_rate: 3.0e-2}
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module", autouse=True)
def _on_one_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr("classifier.cpu.quota", lambda: 1)
        yield


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets, two encoders without dropout (each process draws its own), and a teacher."""
    path = tmp_path_factory.mktemp("work")
    rows = [
        msgspec.to_builtins(offer) | {"label": label}
        for offer, label in tiny_offers(each=10)
        if label in ("kettles", "sofas", "tents")
    ]
    for i, name in enumerate(("train", "validation", "transfer")):
        lines = map(msgspec.json.encode, rows[i::3])
        (path / f"{name}.jsonl").write_bytes(b"\n".join(lines))
    texts = [row["title"] for row in rows]
    for name, hidden in (("wide", 32), ("narrow", 16)):
        shape = Shape(pieces=300, hidden=hidden, layers=1, heads=2, inner=32, max_tokens=24)
        made = encoders.make(texts, shape, seed=1)
        encoders.save(path / name, made.model, made.tokenizer)
    (path / "pipeline.yaml").write_text(PIPELINE % (path, path, path))
    done = CliRunner().invoke(app, command("teacher", work=path, out=path / "teacher"))
    assert done.exit_code == 0, done.output
    return path


def command(stage: str, *, work: Path, out: Path) -> list[str]:
    given = {"train": work / "train.jsonl", "validation": work / "validation.jsonl", "out": out}
    if stage == "student":
        given |= {"transfer": work / "transfer.jsonl", "teacher": work / "teacher"}
    given["pipeline"] = work / "pipeline.yaml"
    return [stage, *(part for name, value in given.items() for part in (f"--{name}", str(value)))]


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    launched = [sys.executable, *TORCHRUN, "-m", "training", *arguments]
    return subprocess.run(launched, env=environment, capture_output=True, text=True, check=False)


def logits(checkpoint: Path) -> np.ndarray:
    found = Checkpoint.load(checkpoint)
    model, tokeniser = found.encoder(), found.tokeniser()
    rows = encode(tokeniser, [offer.title or "" for offer, _ in tiny_offers(each=2, seed=5)])
    return answers(model, embed(model, rows, tokeniser.pad_id))


def test_two_processes_distil_what_one_does(work: Path, tmp_path: Path) -> None:
    two = torchrun(*command("student", work=work, out=tmp_path / "two"))
    assert two.returncode == 0, two.stderr[-3000:]
    assert len(two.stdout.splitlines()) == 1  # one of them speaks
    said = json.loads(two.stdout)
    assert two.stderr.count("right in validation") == 1
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [
        ".stage", "checkpoint", "held-out.safetensors", "stage.json",
    ]  # fmt: skip

    one = CliRunner().invoke(app, command("student", work=work, out=tmp_path / "one"))
    assert one.exit_code == 0, one.output
    alone = json.loads(one.stdout.splitlines()[-1])
    assert said["labels"] == alone["labels"]
    assert said["pruned"] == alone["pruned"]
    found, expected = (logits(tmp_path / name / "checkpoint") for name in ("two", "one"))
    assert np.allclose(found, expected, atol=1e-3)
    assert expected.std() > 0.05
    # And it is done for however many.
    again = CliRunner().invoke(app, command("student", work=work, out=tmp_path / "two"))
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout.splitlines()[-1]) == said


def test_two_processes_adapt_as_one_does(work: Path, tmp_path: Path) -> None:
    arguments = ["adapt", "--offers", str(work / "train.jsonl")]
    arguments += ["--pipeline", str(work / "pipeline.yaml"), "--out"]
    two = torchrun(*arguments, str(tmp_path / "two"))
    assert two.returncode == 0, two.stderr[-3000:]
    one = CliRunner().invoke(app, [*arguments, str(tmp_path / "one")])
    assert one.exit_code == 0, one.output
    assert json.loads(two.stdout)["gain"] > 0.05
    found, expected = (
        load_file(tmp_path / name / "encoder" / "model.safetensors") for name in ("two", "one")
    )
    for name, weights in expected.items():
        assert np.allclose(found[name], weights, atol=1e-4), name


def test_what_processes_cannot_do_is_one_line(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    refused = CliRunner().invoke(app, ["lake", "--out", str(tmp_path)])
    assert (refused.exit_code, refused.stderr) == (2, "error: lake runs in one process\n")
    monkeypatch.setattr(processes, "wait", lambda: None)
    uneven = CliRunner().invoke(app, command("student", work=work, out=tmp_path / "out"))
    assert uneven.exit_code == 1
    assert "a batch of 16 cannot be dealt out evenly among 3 processes" in uneven.stderr
    monkeypatch.setenv("RANK", "2")
    third = CliRunner().invoke(app, ["student", *command("student", work=work, out=work)[1:]])
    assert third.exit_code == 1
    assert third.stderr.startswith("error in process 2: ")


def test_machine_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classifier.cpu.quota", lambda: 5)
    assert processes.threads() == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert processes.threads() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert processes.threads() == 1
