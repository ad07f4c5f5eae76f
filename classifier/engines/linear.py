"""The linear engine: tf-idf weights times the model's, on the CPU.

model.safetensors of the artefact:

    idf.words     (n-grams of words,) float64, inverse document frequencies
    idf.letters   (n-grams of letters,) float64
    weights       (n-grams, labels) float32
    intercept     (labels,) float32
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from classifier.artifact import Artifact, ArtifactError
from classifier.engines import EngineError
from classifier.ngrams import VOCABULARY, read_vocabulary

try:
    from classifier.tensors import TensorError, map_tensors
    from classifier.tfidf import weigh
except ImportError as error:
    raise EngineError(
        f"the linear engine needs {error.name}: pip install 'offer-classifier[linear]'"
    ) from error

MODEL_FILE = "model.safetensors"


class LinearEngine:
    """One product of sparse texts with dense weights.

    The weights are mapped from their file, so that all workers of a machine share them, and only
    the rows of n-grams that occur are ever read.
    """

    def __init__(self, artifact: Artifact, threads: int) -> None:
        self.precision = artifact.manifest.precision
        self._labels = len(artifact.labels)
        file = artifact.path / MODEL_FILE
        try:
            tensors = map_tensors(file)
            sizes = read_vocabulary(artifact.path / VOCABULARY).sizes
        except (ArtifactError, TensorError) as error:
            raise EngineError(str(error)) from error
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "idf.words": ((sizes[0],), np.float64),
            "idf.letters": ((sizes[1],), np.float64),
            "weights": ((sum(sizes), self._labels), np.float32),
            "intercept": ((self._labels,), np.float32),
        }
        for name, (shape, dtype) in shapes.items():
            found = tensors.get(name)
            if found is None or found.shape != shape or found.dtype != dtype:
                was = "missing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise EngineError(
                    f"{file}: {name} is {was}; with {sum(sizes)} n-grams and {self._labels} labels"
                    f" it must be {np.dtype(dtype)} {list(shape)}"
                )
            if name != "weights" and not np.isfinite(found).all():
                raise EngineError(f"{file}: {name}: not all of it is finite")
        self._weights = tensors["weights"]
        self._intercept = np.array(tensors["intercept"])
        self._idf = np.concatenate([tensors["idf.words"], tensors["idf.letters"]])
        self._words = sizes[0]

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """See Engine."""
        if not len(ids):
            return np.empty((0, self._labels), dtype=np.float32)
        rows, columns = np.nonzero(ids < len(self._idf))
        texts = weigh(rows, ids[rows, columns], len(ids), self._idf, self._words, np.float32)
        logits: NDArray[np.float32] = texts @ self._weights
        logits += self._intercept
        return logits

    def close(self) -> None:
        """See Engine."""
        del self._weights
