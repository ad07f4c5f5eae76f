"""Engines: padded token ids in, logits out; one module for each way to compute."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from classifier.artifact import Artifact
from classifier.exit_codes import BAD_MODEL


class EngineError(Exception):
    """The engine cannot be used here; the message is one line that says what to do.

    `code` is what a process that cannot go on without it ends with, of exit_codes: BAD_MODEL only
    where the model is at fault, since the gate refuses it for that.
    """

    def __init__(self, message: str, code: int = BAD_MODEL) -> None:
        super().__init__(message)
        self.code = code


class Engine(Protocol):
    """What computes an artefact's model. One call at a time; threads of its own are its affair."""

    precision: str

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """Logits (rows, labels) of ids (rows, tokens), each padded past its one of `lengths`."""

    def close(self) -> None:
        """Frees the device. No call may follow."""


def load_engine(artifact: Artifact, threads: int) -> Engine:
    """The engine for an artefact's target, with at most `threads` threads on a CPU.

    Raises EngineError when the target is unknown or its packages or device are missing.
    """
    target = artifact.manifest.target
    if target.startswith("onnx-"):
        from classifier.engines.onnx import OnnxEngine

        return OnnxEngine(artifact, threads)
    if target.startswith("torch-"):
        from classifier.engines.torch import TorchEngine

        return TorchEngine(artifact, threads, device=target.removeprefix("torch-"))
    if target.startswith("linear-"):
        from classifier.engines.linear import LinearEngine

        return LinearEngine(artifact, threads)
    if target.startswith("neuron-"):
        from classifier.engines.neuron import NeuronEngine

        return NeuronEngine(artifact, threads)
    raise EngineError(f"no engine for target {target!r} of artefact {artifact.manifest.id}")
