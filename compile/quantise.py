"""int8: the products of an encoder's layers in 8 bits, by scales that offers were measured for.

Static quantisation: each activation's range is measured once, on offers of the training set, and
becomes a constant of the graph, so that an answer depends on its text alone. Dynamic quantisation
takes the range from each batch, which lets neighbours move each other's answers; it is refused.

Quantised are the products with weights that every token pays for: the projections of attention and
the two of the feed-forward part; weights by column (the output's channel), activations by tensor,
the sums back in float32. Embeddings, softmax, layer norms, the mean and the head stay in float32:
they cost next to nothing, and an error of the last two would show in every logit. Attention stays
fused, as MultiHeadAttention, with its projections beside it; the operator Attention would keep
their weights inside, where ONNX Runtime's quantiser leaves them in float32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from classifier.cpu import has_vnni
from classifier.engines.onnx import WEIGHT_BITS
from classifier.tokens import Tokeniser, pad
from compile.checkpoint import Checkpoint
from compile.onnx import FILE, NEIGHBOURS, ExportError, check_inference, fuse, trace

FULL_BITS, REDUCED_BITS = 8, 7
"""Of a weight. x86 CPUs without VNNI sum products in pairs in 16 bits, which saturates where both
are near the ends of 8 bits; with weights of 7 bits no pair can."""

ROWS = 16
"""Texts of one length range that calibration asks at once."""

DYNAMIC = f"dynamic quantisation is refused, because {NEIGHBOURS}: int8 is static here"


def weight_bits() -> int:
    """Of a weight, for this CPU."""
    return FULL_BITS if has_vnni() else REDUCED_BITS


def export(
    checkpoint: Checkpoint, texts: Sequence[str], directory: Path, bits: int
) -> dict[str, Any]:
    """Write `directory`/model.onnx in int8, calibrated on the texts; returns what to report.

    Inputs and output are those of compile.onnx.export. Raises ExportError.
    """
    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quant_utils,
        quantize_static,
    )

    start = time.perf_counter()
    model = checkpoint.encoder(attention="eager")
    raw, apart = directory / "raw.onnx", directory / "apart.onnx"
    trace(model, raw)
    check_inference(raw)
    fused = fuse(model, raw, apart, apart=True)
    graph = onnx.load(str(apart))
    products = _products(graph)
    if not products:
        raise ExportError(f"{checkpoint.path}: its graph has no product with weights to quantise")
    quant_utils.add_pre_process_metadata(graph)  # else it warns; fusing was all there is to do
    onnx.save(graph, str(apart))
    quantize_static(
        str(apart),
        str(directory / FILE),
        _Calls(checkpoint.tokeniser(), texts),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=products,
        per_channel=True,
        reduce_range=bits == REDUCED_BITS,
        activation_type=QuantType.QUInt8,  # with signed weights: what x86 has instructions for
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={
            # Sums go on in float32: 8 bits there cost both accuracy and time (docs/compile.md).
            "OpTypesToExcludeOutputQuantization": ["MatMul"],
            # A residual that goes past a product stays in float32.
            "DedicatedQDQPair": True,
        },
    )
    for file in (raw, apart):
        file.unlink()
    quantised = onnx.load(str(directory / FILE))
    onnx.helper.set_model_props(quantised, {WEIGHT_BITS: str(bits)})
    onnx.save(quantised, str(directory / FILE))
    return {
        "fused": fused,
        "quantised": {
            "products": len(products),
            "weight_bits": bits,
            "calibration_texts": len(texts),
            "seconds": round(time.perf_counter() - start, 2),
        },
    }


class _Calls:
    """The texts as an encoder's inputs: what onnxruntime calls a CalibrationDataReader."""

    def __init__(self, tokeniser: Tokeniser, texts: Sequence[str]) -> None:
        rows, _ = tokeniser.encode(list(texts))
        rows.sort(key=len)  # little padding, which nobody's range should be stretched by
        self._calls = iter([rows[i : i + ROWS] for i in range(0, len(rows), ROWS)])
        self._pad_id = tokeniser.pad_id

    def get_next(self) -> dict[str, NDArray[np.int64]] | None:
        rows = next(self._calls, None)
        if rows is None:
            return None
        ids, lengths = pad(rows, max(map(len, rows)), self._pad_id)
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        return {"input_ids": ids.astype(np.int64), "attention_mask": mask.astype(np.int64)}


def _products(graph: onnx.ModelProto) -> list[str]:
    """The matrix products with constant weights, by name; their types are noted for the quantiser,
    which knows nothing of what ONNX Runtime's own operators give."""
    weights = {tensor.name for tensor in graph.graph.initializer}
    known = {value.name for value in graph.graph.value_info}
    products = []
    for node in graph.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            continue
        products.append(node.name)
        for name in {node.input[0], node.output[0]} - known:
            graph.graph.value_info.append(
                onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            )
            known.add(name)
    return products
