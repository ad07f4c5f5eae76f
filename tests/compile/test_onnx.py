"""The ONNX file: every attention block fused, any batch and length, int64 as the graph says."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from classifier.encoder import OfferEncoder
from compile import onnx
from compile.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def checkpoint(artifact: Path) -> Checkpoint:
    return Checkpoint.load(artifact.parent / "checkpoint")


def test_fused_blocks_are_as_many_as_layers(checkpoint: Checkpoint, tmp_path: Path) -> None:
    fused = onnx.export(checkpoint, tmp_path)
    assert fused["Attention"] == checkpoint.encoder().encoder.config.num_hidden_layers == 2
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_unfused_attention_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    model: OfferEncoder = checkpoint.encoder(attention="sdpa")
    onnx.trace(model, tmp_path / "raw.onnx")
    with pytest.raises(onnx.ExportError, match="0 attention blocks fused for 2 layers"):
        onnx.fuse(model, tmp_path / "raw.onnx", tmp_path / "model.onnx")


def test_graph_takes_ids_and_mask_of_any_shape(artifact: Path) -> None:
    session = onnxruntime.InferenceSession(
        str(artifact / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("input_ids", "tensor(int64)", ["batch", "tokens"]),
        ("attention_mask", "tensor(int64)", ["batch", "tokens"]),
    ]
    (output,) = session.get_outputs()
    assert (output.name, output.type, output.shape) == ("logits", "tensor(float)", ["batch", 8])
