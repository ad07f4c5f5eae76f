"""From a checkpoint to a published artefact; a wrong one is never published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from classifier.artifact import Artifact
from classifier.encoder import Attention, OfferEncoder
from compile import choice
from compile.build import CompileError, Wanted, build
from compile.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def checkpoint(artifact: Path) -> Checkpoint:
    return Checkpoint.load(artifact.parent / "checkpoint")


def report(artifact: Path) -> Any:
    return json.loads((artifact / "report.json").read_text())["compile"]


def test_artefact_says_where_it_comes_from(artifact: Path, checkpoint: Checkpoint) -> None:
    manifest = Artifact.load(artifact).manifest
    known = checkpoint.description
    assert manifest.checkpoint == checkpoint.hash
    assert (manifest.target, manifest.precision, manifest.kind) == ("onnx-cpu", "fp32", "encoder")
    assert manifest.data == {"name": "tiny", "seed": 0}
    assert manifest.taxonomy == "tiny-1"
    assert (manifest.temperature, manifest.threshold) == (known.temperature, known.threshold)
    assert manifest.versions["torch"] == torch.__version__
    assert set(manifest.versions) >= {"onnx", "onnxruntime", "transformers", "tokenizers"}


def test_report_holds_what_was_measured(artifact: Path) -> None:
    report = json.loads((artifact / "report.json").read_text())
    assert report["training"]["validation"]["accuracy"] > 0.8
    assert report["compile"]["verification"]["top1_agreement"] == 1.0
    assert report["compile"]["fused"]["Attention"] == 2
    assert report["compile"]["bytes"]["model.onnx"] == (artifact / "model.onnx").stat().st_size


def test_one_checkpoint_makes_an_artefact_for_each_target(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    made = {
        target: Artifact.load(build(checkpoint.path, target, tmp_path))
        for target in ("onnx-cpu", "torch-cpu", "torch-cuda")
    }
    assert {artifact.manifest.checkpoint for artifact in made.values()} == {checkpoint.hash}
    assert all(artifact.golden == checkpoint.golden for artifact in made.values())
    assert [artifact.manifest.precision for artifact in made.values()] == ["fp32", "fp32", "bf16"]
    assert len(list(tmp_path.iterdir())) == 3  # and no staging directory
    cuda = "torch on cuda" if torch.cuda.is_available() else "torch on cpu, not compiled"
    said = {name: report(each.path)["verification"]["verified_on"] for name, each in made.items()}
    assert said == {
        "onnx-cpu": "onnxruntime on cpu", "torch-cpu": "torch on cpu", "torch-cuda": cuda,
    }  # fmt: skip


def test_both_exporters_are_measured_where_it_is_asked_for(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "ROUND_SECONDS", 0.02)
    made = build(checkpoint.path, "onnx-cpu", tmp_path, wanted=Wanted(compare_exporters=True))
    said = report(made)["exporters"]
    assert set(said) == {"tracing", "dynamo"}
    for exporter in said.values():
        assert exporter["seconds"] > 0
        assert exporter["offers_per_second"] > 0
    assert said["tracing"]["fused"]["Attention"] == 2
    assert said["dynamo"]["fused"].get("Attention", 0) == 0


def test_export_in_training_mode_is_never_published(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = torch.onnx.export

    def export_training(model: OfferEncoder, *given: Any, **options: Any) -> None:
        training = torch.onnx.TrainingMode.TRAINING
        export(model.train(), *given, training=training, do_constant_folding=False, **options)

    monkeypatch.setattr(torch.onnx, "export", export_training)
    with pytest.raises(CompileError, match="exported in training mode: the graph holds Dropout"):
        build(checkpoint.path, "onnx-cpu", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_dropout_at_work_shows_in_the_answers(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = OfferEncoder.load

    def load_training(directory: Path, labels: int, attention: Attention = "sdpa") -> OfferEncoder:
        return load(directory, labels, attention).train()

    # The engine alone: the reference model is put into evaluation mode when it is asked.
    monkeypatch.setattr(OfferEncoder, "load", load_training)
    with pytest.raises(CompileError, match="differs by"):
        build(checkpoint.path, "torch-cpu", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_target_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no target 'tpu'; there are onnx-cpu"):
        build(checkpoint.path, "tpu", tmp_path)


def test_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="it is no checkpoint"):
        build(tmp_path / "nowhere", "onnx-cpu", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
