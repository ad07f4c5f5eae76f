"""A checkpoint as one ONNX file, its attention fused into ONNX Runtime's own operators.

The exporter is torch's older, tracing one (dynamo=False) over eager attention: the graph that
onnxruntime.transformers recognises. From the newer exporter's graph it fuses no attention at all,
and from any other attention none either, so the number of fused blocks is checked.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import torch

from classifier.encoder import OfferEncoder
from compile.checkpoint import Checkpoint

FILE = "model.onnx"
OPSET = 17
"""The newest operator set whose LayerNormalization the optimiser fuses in every release we take."""

RANDOM = frozenset(
    {
        "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
        "RandomUniformLike",
    }
)  # fmt: skip


class ExportError(Exception):
    """The checkpoint cannot be made an ONNX file. The message is one line."""


def export(checkpoint: Checkpoint, directory: Path) -> dict[str, int]:
    """Write `directory`/model.onnx, batch and length free; returns what was fused, by operator.

    Inputs input_ids and attention_mask (B, T) int64, output logits (B, labels) float32. Raises
    ExportError when not every layer's attention could be fused.
    """
    model = checkpoint.encoder(attention="eager")
    raw = directory / "raw.onnx"
    trace(model, raw)
    check_inference(raw)
    fused = fuse(model, raw, directory / FILE)
    raw.unlink()
    return fused


def trace(model: OfferEncoder, file: Path) -> None:
    """Write the model as plain ONNX operators; the model must be in evaluation mode."""
    # The example's sizes must not be 1, or the tracer takes them for constants to broadcast.
    ids = torch.ones((2, 8), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    free = {0: "batch", 1: "tokens"}
    with warnings.catch_warnings():
        # It is deprecated, and traces the mask's size checks; see the head for why it is taken.
        # What it gives is verified at every length.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (ids, mask),
            file,
            input_names=["input_ids", "attention_mask"],
            output_names=["logits"],
            dynamic_axes={"input_ids": free, "attention_mask": free, "logits": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )


def check_inference(file: Path) -> None:
    """Refuse a graph that draws random numbers: one that was exported in training mode.

    Its answers may not show it, since ONNX Runtime leaves dropout out when it optimises a graph;
    without optimisation, or in another runtime, every answer would be another.
    """
    graph = onnx.load(str(file)).graph
    if random := sorted({node.op_type for node in graph.node} & RANDOM):
        raise ExportError(f"exported in training mode: the graph holds {', '.join(random)}")


def fuse(model: OfferEncoder, source: Path, target: Path) -> dict[str, int]:
    """Write `source` with attention, GELU and layer norms fused; returns how many of each."""
    from onnxruntime.transformers import optimizer

    config: Any = model.encoder.config
    optimised = optimizer.optimize_model(
        str(source),
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        # ONNX Runtime's own passes depend on the CPU; each worker's session does them for its own.
        opt_level=0,
    )
    statistics = optimised.get_fused_operator_statistics()
    fused = {name: int(count) for name, count in statistics.items() if count}
    blocks = fused.get("Attention", 0) + fused.get("MultiHeadAttention", 0)
    if blocks != config.num_hidden_layers:
        raise ExportError(
            f"{config.model_type}: {blocks} attention blocks fused for {config.num_hidden_layers}"
            " layers, so it would be served at a fraction of its speed"
        )
    optimised.save_model_to_file(str(target))
    return fused
