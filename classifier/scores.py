"""From logits to what is stored: calibrated scores, the best categories, certain or not."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

SCORE_DECIMALS = 6
"""Scores are stored with so many decimals; beyond lies the noise of floating point."""

Status = Literal["classified", "uncertain"]


class Prediction(NamedTuple):
    """The answer to one text. `score` is a calibrated probability, as are the alternatives'."""

    category_id: str
    score: float
    alternatives: tuple[tuple[str, float], ...]
    status: Status

    def alternative_documents(self) -> list[dict[str, str | float]]:
        """The alternatives as MongoDB and files hold them."""
        return [
            {"category_id": category_id, "score": score} for category_id, score in self.alternatives
        ]


class NotFiniteError(Exception):
    """An engine gave NaN or infinity, so that no score can be trusted."""


class Scorer:
    """Turns logits into predictions with an artefact's labels, temperature and thresholds."""

    def __init__(
        self,
        labels: list[str],
        temperature: float,
        thresholds: NDArray[np.float64],
        alternatives: int,
    ) -> None:
        """`labels` in logit order; `thresholds` (labels,) are the least score to be classified."""
        self._labels = labels
        self._temperature = np.float32(temperature)
        self._thresholds = thresholds
        self._kept = min(alternatives + 1, len(labels))

    def predictions(self, logits: NDArray[np.float32]) -> list[Prediction]:
        """Predictions of logits (rows, labels).

        The score is a softmax with the artefact's temperature (Guo et al. 2017, "On Calibration
        of Modern Neural Networks"). Equal logits are ranked by label order, so that a row's answer
        never depends on its neighbours. Raises NotFiniteError.
        """
        if not len(logits):
            return []
        with np.errstate(over="ignore"):  # what overflows is not finite, or has a score of zero
            scaled = logits / self._temperature
            finite = np.isfinite(scaled).all(axis=1)
            if not finite.all():
                raise NotFiniteError(f"{np.count_nonzero(~finite)} rows")
            exponents = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        scores = exponents / exponents.sum(axis=1, keepdims=True)
        best = self._best(logits)
        rows = np.arange(len(logits))[:, None]
        best_scores = np.round(scores[rows, best].astype(np.float64), SCORE_DECIMALS)
        certain = best_scores[:, 0] >= self._thresholds[best[:, 0]]
        labels = self._labels
        found: list[Prediction] = []
        for ids, values, sure in zip(
            best.tolist(), best_scores.tolist(), certain.tolist(), strict=True
        ):
            ranked = [(labels[label], value) for label, value in zip(ids, values, strict=True)]
            status: Status = "classified" if sure else "uncertain"
            found.append(Prediction(*ranked[0], tuple(ranked[1:]), status))
        return found

    def _best(self, logits: NDArray[np.float32]) -> NDArray[np.intp]:
        """The labels of the highest logits, (rows, kept), best first, ties by label order."""
        kept = self._kept
        if kept == logits.shape[1]:
            return np.argsort(-logits, axis=1, kind="stable")
        # A partition alone breaks ties at the border as it likes. All labels down to the border's
        # logit are candidates, in label order, and the stable sort keeps that order among equals.
        border = -np.partition(-logits, kept - 1, axis=1)[:, kept - 1]
        best = np.empty((len(logits), kept), dtype=np.intp)
        for row, least in enumerate(border):
            candidates = np.flatnonzero(logits[row] >= least)
            order = np.argsort(-logits[row, candidates], kind="stable")[:kept]
            best[row] = candidates[order]
        return best
