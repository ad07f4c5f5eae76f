"""The PyTorch engine, for CPUs and CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classifier.artifact import Artifact
from classifier.engines import EngineError
from classifier.exit_codes import BAD_SETTINGS, NO_DEVICE

try:
    import torch

    from classifier.encoder import OfferEncoder
except ImportError as error:
    raise EngineError(
        f"the PyTorch engine needs {error.name}: pip install 'offer-classifier[torch]'",
        code=BAD_SETTINGS,
    ) from error


Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

Backend = str | Callable[..., Any]
"""What torch.compile takes as one."""

_BACKEND: dict[str, Backend] = {"cpu": "", "cuda": "inductor"}
"""What torch.compile compiles with on each device; "" leaves the model as it is."""


class TorchEngine:
    """config.json and model.safetensors of an artefact, on "cpu" or "cuda".

    The encoder computes in the artefact's precision; bf16 where the device has it and fp32 where
    not, which is the closer to the checkpoint. The mean and the head are always fp32: they cost
    next to nothing, and the logits are what rounding would show in.

    On CUDA the model is compiled by torch.compile before the first call: one program for a single
    row, which torch.compile always makes apart, and one for all other sizes. On a CPU that would
    cost a C++ compiler and gain little. `backend` is torch.compile's ("" for none), in place of the
    device's own.
    """

    def __init__(
        self, artifact: Artifact, threads: int, device: str, backend: Backend | None = None
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise EngineError(
                f"artefact {artifact.manifest.id} is for CUDA, and PyTorch finds no CUDA device",
                code=NO_DEVICE,
            )
        self._device = torch.device(device)
        self.precision = "fp32"
        if artifact.manifest.precision == "bf16" and _has_bf16(self._device):
            self.precision = "bf16"
        self._labels = len(artifact.labels)
        if device == "cpu":
            torch.set_num_threads(threads)
        try:
            model = OfferEncoder.load(artifact.path, len(artifact.labels))
            if self.precision == "bf16":
                model.encoder.bfloat16()
            self._model = model.to(self._device)
            self._call = _compiled(self._model, _BACKEND[device] if backend is None else backend)
            if self._call is not self._model:
                self._warm(artifact.manifest.pad_multiple)
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(f"PyTorch cannot load {artifact.path}: {_reason(error)}") from error

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """See Engine."""
        if not len(ids):
            return np.empty((0, self._labels), dtype=np.float32)
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        with torch.inference_mode():
            logits = self._call(
                torch.from_numpy(ids.astype(np.int64)).to(self._device),
                torch.from_numpy(mask.astype(np.int64)).to(self._device),
            )
            return logits.float().cpu().numpy()

    def _warm(self, length: int) -> None:
        """Compiles what any later call needs: for one row, and for more. `length` is of tokens."""
        for rows in (1, 2):
            self.logits(np.zeros((rows, length), np.int32), np.full(rows, length, np.int32))

    def close(self) -> None:
        """See Engine."""
        del self._model, self._call
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _compiled(model: OfferEncoder, backend: Backend) -> Forward:
    """The model's call. Batch and length are sizes as they come: a program for each would be
    compiled, for seconds, whenever traffic brings another.
    """
    if not backend:
        return model
    compiled: Forward = torch.compile(model, dynamic=True, backend=backend)
    return compiled


def _reason(error: Exception) -> str:
    """Its first line; and the next, where the first only says whose error it is."""
    first, _, rest = str(error).partition("\n")
    return f"{first} {rest.partition(chr(10))[0]}" if first.endswith(":") else first


def _has_bf16(device: torch.device) -> bool:
    # Every CPU computes bfloat16, if slowly; older GPUs only emulate it.
    if device.type == "cpu":
        return True
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))
