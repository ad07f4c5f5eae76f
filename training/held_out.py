"""What a model answered to its validation set before it was fitted on it too.

Scales of a sum of models, like temperatures, are fitted on offers that no part has learnt from. A
model that is fitted once more, on all that is labelled, leaves these answers to be fitted on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from classifier.whole_file import appearing
from training.examples import Examples
from training.stage import StageError

FILE = "held-out.safetensors"
"""In the directory of the stage that made the model."""

Logits = NDArray[np.float32]


def write(directory: Path, held: Examples, logits: Logits, prefix: str = "") -> Path:
    """Keep `logits` (rows, labels) of the held-out texts, which begin with `prefix`."""
    tensors: dict[str, NDArray[Any]] = {
        "logits": np.ascontiguousarray(logits, dtype=np.float32),
        "rows": _rows(held, prefix),
    }
    with appearing(directory / FILE) as file:
        file.write(save(tensors))
    return directory / FILE


def read(directory: Path, held: Examples, prefix: str = "") -> Logits:
    """The logits (rows, labels) that the stage in `directory` kept of these very texts.

    Raises StageError.
    """
    path = directory / FILE
    try:
        tensors = load_file(path)
        logits, rows = tensors["logits"], tensors["rows"]
    except FileNotFoundError:
        raise StageError(f"{directory}: has no {FILE}: make it again, in a new directory") from None
    except (OSError, SafetensorError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise StageError(f"{path}: cannot be read: {reason}") from error
    shape = (len(held.texts), len(held.label_ids))
    if logits.shape != shape or not np.array_equal(rows, _rows(held, prefix)):
        raise StageError(f"{path}: is of other validation offers, or of other labels")
    return logits


def _rows(held: Examples, prefix: str) -> NDArray[np.uint8]:
    """A hash of texts and labels, without what an encoder wants before each text."""
    plain = Examples(
        [text.removeprefix(prefix) for text in held.texts],
        held.labels,
        held.languages,
        held.label_ids,
    )
    return np.frombuffer(bytes.fromhex(plain.sha256()), dtype=np.uint8)
