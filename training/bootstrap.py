"""The bootstrap: how far a figure would move if other offers of the same kind had been asked.

Offers of one product resemble each other, so whole clusters are drawn, with replacement, and not
offers: Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 3.8. The draws
depend on the seed and on which clusters the offers are of, and on nothing else: two models that are
asked the same offers are compared on the same draws.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_CHUNK = 50  # draws at a time: some tens of megabytes at a hundred thousand offers
_LEAST_DEFINED = 0.5  # of the draws must have the figure at all, else it has no interval


@dataclass(frozen=True)
class Bootstrap:
    """How it is done."""

    resamples: int
    confidence: float
    seed: int


def resample(
    rows: sp.csr_array,
    clusters: NDArray[np.int64],
    figure: Callable[[Floats], Floats],
    how: Bootstrap,
) -> Floats:
    """(resamples, figures): `figure` of the sums (draws, columns) of `rows` (offers, columns)."""
    found, cluster = np.unique(clusters, return_inverse=True)
    count = len(found)
    grouping = sp.csr_array(
        (np.ones(len(cluster)), (cluster, np.arange(len(cluster)))), shape=(count, len(cluster))
    )
    columns = sp.csr_array((grouping @ rows).T)
    # Sets of offers beside each other, such as two languages, are drawn independently.
    rng = np.random.default_rng([how.seed, zlib.crc32(found.tobytes())])
    results = []
    for start in range(0, how.resamples, _CHUNK):
        draws = min(_CHUNK, how.resamples - start)
        drawn = rng.integers(0, count, size=(draws, count))
        drawn += np.arange(draws)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=draws * count).reshape(draws, count)
        results.append(figure((columns @ times.T.astype(np.float64)).T))
    return np.concatenate(results)


def interval(
    estimate: float, resampled: Floats, confidence: float, lowest: float = 0.0
) -> tuple[float, float]:
    """The interval of a figure from its resamples (resamples,); NaN where it has none.

    Quantiles of the resamples, moved so that their mean is the estimate. A mean over offers does
    not need that, but an F1 over categories does: a draw lacks the rarest ones, so that draws are
    biased against the figure itself. Davison and Hinkley 1997, section 2.1, on such a bias. What
    is left is the spread of such figures on sets of this size: the F1 of few offers is also
    another than that of many, which no resample tells.
    """
    defined = resampled[np.isfinite(resampled)]
    if not math.isfinite(estimate) or len(defined) < max(1, _LEAST_DEFINED * len(resampled)):
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    low, high = np.quantile(defined, [tail, 1 - tail]) - defined.mean() + estimate
    return max(lowest, float(low)), min(1.0, float(high))


def wilson(share: float, trials: float, confidence: float) -> tuple[float, float]:
    """The interval of a share of `trials`: Wilson 1927, "Probable Inference".

    For shares of few trials and for those of none or all, which every resample only repeats.
    """
    if not trials or not math.isfinite(share):
        return math.nan, math.nan
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = share + z * z / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    scale = 1 + z * z / trials
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)
