"""The PyTorch engine, for CPUs and CUDA devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from classifier.artifact import Artifact
from classifier.engines import EngineError

try:
    import torch

    from classifier.encoder import OfferEncoder
except ImportError as error:
    raise EngineError(
        f"the PyTorch engine needs {error.name}: pip install 'offer-classifier[torch]'"
    ) from error


class TorchEngine:
    """config.json and model.safetensors of an artefact, on "cpu" or "cuda".

    The encoder computes in the artefact's precision; bf16 where the device has it and fp32 where
    not, which is the closer to the checkpoint. The mean and the head are always fp32: they cost
    next to nothing, and the logits are what rounding would show in.
    """

    def __init__(self, artifact: Artifact, threads: int, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise EngineError(
                f"artefact {artifact.manifest.id} is for CUDA, and PyTorch finds no CUDA device"
            )
        self._device = torch.device(device)
        self.precision = "fp32"
        if artifact.manifest.precision == "bf16" and _has_bf16(self._device):
            self.precision = "bf16"
        if device == "cpu":
            torch.set_num_threads(threads)
        try:
            model = OfferEncoder.load(artifact.path, len(artifact.labels))
            if self.precision == "bf16":
                model.encoder.bfloat16()
            self._model = model.to(self._device)
        except (OSError, ValueError, RuntimeError) as error:
            first = str(error).partition("\n")[0]
            raise EngineError(f"PyTorch cannot load {artifact.path}: {first}") from error
        self._labels = len(artifact.labels)

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """See Engine."""
        if not len(ids):
            return np.empty((0, self._labels), dtype=np.float32)
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        with torch.inference_mode():
            logits: torch.Tensor = self._model(
                torch.from_numpy(ids.astype(np.int64)).to(self._device),
                torch.from_numpy(mask.astype(np.int64)).to(self._device),
            )
            return logits.float().cpu().numpy()

    def close(self) -> None:
        """See Engine."""
        del self._model
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def _has_bf16(device: torch.device) -> bool:
    # Every CPU computes bfloat16, if slowly; older GPUs only emulate it.
    if device.type == "cpu":
        return True
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))
