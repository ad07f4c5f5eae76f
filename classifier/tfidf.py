"""Tf-idf: how much each n-gram of a text weighs, as scikit-learn's TfidfVectorizer weighs it.

Manning, Raghavan, Schütze 2008, "Introduction to Information Retrieval", chapter 6: sublinear term
frequency (6.4.1), inverse document frequency, Euclidean length one. N-grams of words and of letters
are weighed apart, each kind to length one, as in a FeatureUnion of two vectorizers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array  # type: ignore[import-untyped]


def inverse_frequencies(offers: int, frequencies: NDArray[np.int64]) -> NDArray[np.float64]:
    """Smoothed inverse document frequencies of n-grams that stand in so many of the offers."""
    inverse: NDArray[np.float64] = np.log((1 + offers) / (1 + frequencies)) + 1
    return inverse


def weigh(
    rows: NDArray[np.int64],
    ids: NDArray[np.int32],
    count: int,
    idf: NDArray[np.float64],
    words: int,
    dtype: type[np.float32 | np.float64],
) -> csr_array[Any]:
    """Weights (count, n-grams) of texts; text `rows[i]` has the n-gram `ids[i]`, in any order.

    `idf` (n-grams,); the first `words` of them are n-grams of words.
    """
    grams = len(idf)
    keys = rows * grams + ids
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    times = np.diff(first, append=len(keys))
    row, column = np.divmod(keys[first], grams)
    weights = (1 + np.log(times)) * idf[column]
    part = 2 * row + (column >= words)
    lengths = np.sqrt(np.bincount(part, weights * weights, 2 * count))
    weights /= lengths[part]
    starts = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(row, minlength=count), out=starts[1:])
    content = (weights.astype(dtype, copy=False), column.astype(np.int32), starts)
    return csr_array(content, shape=(count, grams))
