"""A checkpoint as one ONNX file, its attention fused into ONNX Runtime's own operators.

The exporter is torch's older, tracing one (dynamo=False) over eager attention: the graph that
onnxruntime.transformers recognises. From the newer exporter's graph it fuses no attention at all,
and from any other attention none either, so the number of fused blocks is checked.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import torch

from classifier.encoder import OfferEncoder
from compile.checkpoint import Checkpoint, CheckpointError

FILE = "model.onnx"
OPSET = 17
"""The newest operator set whose LayerNormalization the optimiser fuses in every release we take."""

DYNAMO_OPSET = 18
"""The oldest that the newer exporter writes."""

ATTENTION = frozenset({"Attention", "MultiHeadAttention"})

RANDOM = frozenset(
    {
        "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
        "RandomUniformLike",
    }
)  # fmt: skip

DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
"""Operators that take an activation's scale from the batch they are asked."""

QUANTISED = frozenset({"QuantizeLinear", "DequantizeLinear", "QLinearMatMul", *DYNAMIC})

NEIGHBOURS = "it scales activations over the whole batch, so neighbours move each other's answers"
"""What is wrong with dynamic quantisation."""


class ExportError(CheckpointError):
    """The checkpoint cannot be made an ONNX file. The message is one line."""


class Exported(NamedTuple):
    """What an exporter took and gave."""

    seconds: float
    fused: dict[str, int]  # how many of each operator


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


def export_by(
    exporter: Callable[[OfferEncoder, Path], None], checkpoint: Checkpoint, directory: Path
) -> Exported:
    """Write `directory`/model.onnx by `trace` or `dynamo`, with whatever can be fused of it."""
    model = checkpoint.encoder(attention="eager")
    raw = directory / "raw.onnx"
    start = time.perf_counter()
    exporter(model, raw)
    fused = optimise(model, raw, directory / FILE)
    seconds = time.perf_counter() - start
    raw.unlink()
    return Exported(round(seconds, 2), fused)


def trace(model: OfferEncoder, file: Path) -> None:
    """Write the model as plain ONNX operators; the model must be in evaluation mode."""
    free = {0: "batch", 1: "tokens"}
    with warnings.catch_warnings():
        # It is deprecated, and traces the mask's size checks; see the head for why it is taken.
        # What it gives is verified at every length.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            _example(),
            file,
            input_names=["input_ids", "attention_mask"],
            output_names=["logits"],
            dynamic_axes={"input_ids": free, "attention_mask": free, "logits": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )


def dynamo(model: OfferEncoder, file: Path) -> None:
    """As `trace`, by the newer exporter: for comparison with it, and never served."""
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2)}
    # Whoever asks for a comparison wants its figures, not what the exporter thinks of the packages.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            _example(),
            file,
            input_names=["input_ids", "attention_mask"],
            output_names=["logits"],
            dynamic_shapes=(free, free),
            opset_version=DYNAMO_OPSET,
            external_data=False,
            verbose=False,
            dynamo=True,
        )


def _example() -> tuple[torch.Tensor, torch.Tensor]:
    # The example's sizes must not be 1, or the tracer takes them for constants to broadcast.
    ids = torch.ones((2, 8), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return ids, mask


def check_inference(file: Path) -> None:
    """Refuse a graph that draws random numbers: one that was exported in training mode.

    Its answers may not show it, since ONNX Runtime leaves dropout out when it optimises a graph;
    without optimisation, or in another runtime, every answer would be another.
    """
    if random := sorted(_operators(file).keys() & RANDOM):
        raise ExportError(f"exported in training mode: the graph holds {', '.join(random)}")


def check_served(file: Path, layers: int, precision: str) -> None:
    """Refuse a graph that must not be served, whatever it answers.

    One that was exported in training mode, one whose attention is not fused in every one of the
    encoder's layers, one that is quantised dynamically, and one of another precision than is said
    of it, which would be held to other bounds than its own. Raises ExportError.
    """
    check_inference(file)
    operators = _operators(file)
    if dynamic := sorted(operators.keys() & DYNAMIC):
        raise ExportError(f"quantised dynamically, by {', '.join(dynamic)}: {NEIGHBOURS}")
    found = "int8" if operators.keys() & QUANTISED else "fp32"
    if found != precision:
        raise ExportError(f"{file.name} is in {found}, and said to be in {precision}")
    _check_fused(file.name, operators, layers)


def fuse(model: OfferEncoder, source: Path, target: Path, *, apart: bool = False) -> dict[str, int]:
    """Write `source` with attention, GELU and layer norms fused; returns how many of each.

    With `apart`, the projections into queries, keys and values stay matrix products of their own,
    beside the fused attention. Raises ExportError when not every layer's attention was fused.
    """
    fused = optimise(model, source, target, apart=apart)
    config: Any = model.encoder.config
    _check_fused(config.model_type, fused, config.num_hidden_layers)
    return fused


def optimise(
    model: OfferEncoder, source: Path, target: Path, *, apart: bool = False
) -> dict[str, int]:
    """As `fuse`, content with whatever could be fused."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    config: Any = model.encoder.config
    options = FusionOptions("bert")
    options.use_multi_head_attention = apart
    optimised = optimizer.optimize_model(
        str(source),
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        optimization_options=options,
        # ONNX Runtime's own passes depend on the CPU; each worker's session does them for its own.
        opt_level=0,
    )
    statistics = optimised.get_fused_operator_statistics()
    optimised.save_model_to_file(str(target))
    return {name: int(count) for name, count in statistics.items() if count}


def _check_fused(name: str, operators: dict[str, int], layers: int) -> None:
    blocks = sum(operators.get(attention, 0) for attention in ATTENTION)
    if blocks != layers:
        raise ExportError(
            f"{name}: {blocks} attention blocks fused for {layers}"
            " layers, so it would be served at a fraction of its speed"
        )


def _operators(file: Path) -> dict[str, int]:
    """How many nodes of each operator."""
    counts: dict[str, int] = {}
    for node in onnx.load(str(file), load_external_data=False).graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts
