"""The ONNX Runtime engine, for CPUs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from classifier import cpu
from classifier.artifact import Artifact
from classifier.engines import EngineError
from classifier.exit_codes import BAD_SETTINGS, NO_DEVICE

try:
    import onnxruntime
except ImportError as error:
    raise EngineError(
        "the ONNX engine needs onnxruntime: pip install 'offer-classifier[onnx]'",
        code=BAD_SETTINGS,
    ) from error

MODEL_FILE = "model.onnx"

WEIGHT_BITS = "weight_bits"
"""Where a quantised graph notes the bits of its weights: "8", or "7" for CPUs without VNNI."""

_INTEGERS: dict[str, type[np.int32 | np.int64]] = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


class OnnxEngine:
    """`model.onnx` of an artefact in one ONNX Runtime session.

    Feeds are built from the graph's own inputs: their names, and int32 or int64 as they say.
    """

    def __init__(self, artifact: Artifact, threads: int) -> None:
        self.precision = artifact.manifest.precision
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Every call has a shape of its own, and a plan kept for each would only grow. The arena is
        # kept: as large as the largest call, and without it each call asks the system anew.
        options.enable_mem_pattern = False
        # A pool that spins between calls takes the CPU from tokenising and writing.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(artifact.path / MODEL_FILE), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # noqa: BLE001 its own exceptions share no base class
            first = str(error).splitlines()[0]
            raise EngineError(
                f"ONNX Runtime refuses {artifact.path / MODEL_FILE}: {first}"
            ) from None
        noted = self._session.get_modelmeta().custom_metadata_map
        if noted.get(WEIGHT_BITS) == "8" and not cpu.has_vnni():
            raise EngineError(
                f"artefact {artifact.manifest.id} has weights of 8 bits, whose sums saturate on a"
                " CPU without VNNI, as this one: compile it with --weight-bits 7, or in fp32",
                code=NO_DEVICE,
            )
        self._feeds: dict[str, type[np.int32 | np.int64]] = {}
        for graph_input in self._session.get_inputs():
            if graph_input.name not in {"input_ids", "attention_mask", "token_type_ids"}:
                raise EngineError(f"{MODEL_FILE} wants an input {graph_input.name!r}; unknown here")
            if graph_input.type not in _INTEGERS:
                raise EngineError(f"{MODEL_FILE} wants {graph_input.name} as {graph_input.type}")
            self._feeds[graph_input.name] = _INTEGERS[graph_input.type]
        outputs = self._session.get_outputs()
        if len(outputs) != 1:
            names = ", ".join(output.name for output in outputs)
            raise EngineError(f"{MODEL_FILE} gives {names}; one output, the logits, is wanted")
        self._output = outputs[0].name
        self._width = outputs[0].shape[-1]
        if self._width != len(artifact.labels):
            raise EngineError(
                f"{MODEL_FILE} gives {self._width} logits for {len(artifact.labels)} labels"
            )

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """See Engine."""
        if not len(ids):
            return np.empty((0, self._width), dtype=np.float32)
        arrays = {
            "input_ids": ids,
            "attention_mask": np.arange(ids.shape[1]) < lengths[:, None],
            "token_type_ids": np.zeros(ids.shape, dtype=np.int32),
        }
        feeds = {name: arrays[name].astype(kind) for name, kind in self._feeds.items()}
        (logits,) = self._session.run([self._output], feeds)
        return np.asarray(logits, dtype=np.float32)

    def close(self) -> None:
        """See Engine."""
        del self._session
