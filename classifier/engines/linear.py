"""The linear engine: tf-idf weights times the model's, on the CPU.

model.safetensors of the artefact:

    idf.words       (n-grams of words,) float64, inverse document frequencies
    idf.letters     (n-grams of letters,) float64
    intercept       (labels,) float32
    dense.ngrams    (rows,) int32, the n-grams that have something to say about many labels
    dense.weights   (rows, labels) float32
    sparse.starts   (n-grams + 1,) int32, where the weights of each of the others begin
    sparse.labels   (weights,) int32
    sparse.weights  (weights,) float32

Nearly all n-grams are rare and have a weight for a few labels alone, nearly all that a text is made
of are frequent and have one for many. Stored like this a model of two thousand labels is a tenth of
the whole table, and a text costs less than by either way alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classifier.artifact import Artifact, ArtifactError
from classifier.engines import EngineError
from classifier.exit_codes import BAD_SETTINGS
from classifier.ngrams import VOCABULARY, read_vocabulary

try:
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

    from classifier.tensors import TensorError, map_tensors
    from classifier.tfidf import weigh
except ImportError as error:
    raise EngineError(
        f"the linear engine needs {error.name}: pip install 'offer-classifier[linear]'",
        code=BAD_SETTINGS,
    ) from error

MODEL_FILE = "model.safetensors"


class LinearEngine:
    """Products of sparse texts with weights that are mapped from their file.

    So the workers of a machine share them, and only what is used is ever read.
    """

    def __init__(self, artifact: Artifact, threads: int, name: str = MODEL_FILE) -> None:
        self.precision = artifact.manifest.precision
        self._labels = len(artifact.labels)
        file = artifact.path / name
        try:
            tensors = map_tensors(file)
            self._words, letters = read_vocabulary(artifact.path / VOCABULARY).sizes
        except (ArtifactError, TensorError) as error:
            raise EngineError(str(error)) from error
        grams = self._words + letters
        _check(file, tensors, self._words, letters, self._labels)
        self._idf = np.concatenate([tensors["idf.words"], tensors["idf.letters"]])
        self._intercept = np.array(tensors["intercept"])
        self._dense = tensors["dense.weights"]
        self._row = np.full(grams, -1, dtype=np.int32)  # of an n-gram in `dense`
        self._row[tensors["dense.ngrams"]] = np.arange(len(self._dense), dtype=np.int32)
        content = (tensors["sparse.weights"], tensors["sparse.labels"], tensors["sparse.starts"])
        self._sparse = csr_array(content, shape=(grams, self._labels))

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """See Engine."""
        count = len(ids)
        if not count:
            return np.empty((0, self._labels), dtype=np.float32)
        rows, columns = np.nonzero(ids < len(self._idf))
        texts = weigh(rows, ids[rows, columns], count, self._idf, self._words, np.float32)
        dense_rows = self._row[texts.indices]
        dense = dense_rows >= 0
        often = _only(texts, dense, dense_rows, len(self._dense))
        rarely = _only(texts, ~dense, texts.indices, len(self._idf))
        # By columns: a row of weights, once in the processor's cache, goes to all texts with it.
        # Each text still adds its n-grams up in their order, whatever its neighbours are.
        logits: NDArray[np.float32] = often.tocsc() @ self._dense
        logits += (rarely @ self._sparse).toarray()
        logits += self._intercept
        return logits

    def close(self) -> None:
        """See Engine."""
        del self._dense, self._sparse


def _only(
    texts: csr_array[Any], kept: NDArray[np.bool_], columns: NDArray[np.int32], width: int
) -> csr_array[Any]:
    """The kept entries of `texts`, in other columns."""
    before = np.zeros(len(kept) + 1, dtype=np.int32)
    np.cumsum(kept, out=before[1:])
    content = (texts.data[kept], columns[kept], before[texts.indptr])
    return csr_array(content, shape=(texts.shape[0], width))


def _check(
    file: Path, tensors: dict[str, NDArray[Any]], words: int, letters: int, labels: int
) -> None:
    """Whether the tensors fit each other, the vocabulary and the labels. Raises EngineError.

    What computes with them looks no further than here, and would read and write anywhere.
    """
    grams = words + letters
    rows = _size(tensors, "dense.ngrams")
    weights = _size(tensors, "sparse.weights")
    expected: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "idf.words": (np.float64, (words,)),
        "idf.letters": (np.float64, (letters,)),
        "intercept": (np.float32, (labels,)),
        "dense.ngrams": (np.int32, (rows,)),
        "dense.weights": (np.float32, (rows, labels)),
        "sparse.starts": (np.int32, (grams + 1,)),
        "sparse.labels": (np.int32, (weights,)),
        "sparse.weights": (np.float32, (weights,)),
    }
    for name, (dtype, shape) in expected.items():
        found = tensors.get(name)
        if found is None or found.shape != shape or found.dtype != dtype:
            was = "missing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise EngineError(
                f"{file}: {name} is {was}; with {grams} n-grams and {labels} labels it must be"
                f" {np.dtype(dtype)} {list(shape)}"
            )
        if dtype is not np.int32 and not np.isfinite(found).all():
            raise EngineError(f"{file}: {name}: not all of it is finite")
    starts = tensors["sparse.starts"]
    if starts[0] != 0 or starts[-1] != weights or (np.diff(starts) < 0).any():
        raise EngineError(f"{file}: sparse.starts does not divide {weights} weights")
    for name, end in (("dense.ngrams", grams), ("sparse.labels", labels)):
        found = tensors[name]
        if len(found) and (found.min() < 0 or found.max() >= end):
            raise EngineError(f"{file}: {name} names one that is not there; there are {end}")


def _size(tensors: dict[str, NDArray[Any]], name: str) -> int:
    return len(tensors[name]) if name in tensors and tensors[name].ndim else 0
