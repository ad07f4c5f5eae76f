"""A head on embeddings that stand still: multinomial logistic regression, fitted to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from classifier.encoder import OfferEncoder
from training.calibration import probabilities
from training.loop import log_prior

CELLS = 2**23
"""So many logits are held at a time: 32 MB, whatever the number of labels."""
PAST_STEPS = 10
"""By which L-BFGS knows the curvature."""

Balance = Literal["none", "sampling", "logits"]
Floats = NDArray[np.float32]


class Head(NamedTuple):
    """What makes logits of embeddings."""

    weight: Floats  # (labels, width)
    bias: Floats  # (labels,)

    @classmethod
    def of(cls, model: OfferEncoder) -> Head:
        """The head that a model has."""
        weight, bias = model.head.weight.detach(), model.head.bias.detach()
        return cls(weight.cpu().numpy().copy(), bias.cpu().numpy().copy())

    def __call__(self, embedded: NDArray[Any]) -> Floats:
        """The logits (rows, labels) of embeddings (rows, width)."""
        logits: Floats = embedded.astype(np.float32) @ self.weight.T + self.bias
        return logits

    def on(self, model: OfferEncoder) -> OfferEncoder:
        """The model's encoder under this head, in evaluation mode."""
        under = OfferEncoder(model.encoder, len(self.bias))
        with torch.no_grad():
            under.head.weight.copy_(torch.from_numpy(self.weight))
            under.head.bias.copy_(torch.from_numpy(self.bias))
        return under.eval()


def starting(
    old: Head,
    old_ids: Sequence[str],
    label_ids: Sequence[str],
    embedded: NDArray[Any],
    labels: NDArray[np.int64],
) -> Head:
    """Where a fit for `label_ids` starts: labels that stay have their old rows.

    A new one has the mix of old rows by which the old head answers its texts: of a split the row of
    what was split. `labels` (rows,) are those of `embedded` (rows, width).
    """
    place = {label: i for i, label in enumerate(old_ids)}
    weight = np.zeros((len(label_ids), old.weight.shape[1]), dtype=np.float32)
    bias = np.zeros(len(label_ids), dtype=np.float32)
    for i, label in enumerate(label_ids):
        mix = np.zeros(len(old_ids), dtype=np.float32)
        if label in place:
            mix[place[label]] = 1
        else:
            mix += probabilities(old(embedded[labels == i]), 1.0).mean(axis=0)
        weight[i], bias[i] = mix @ old.weight, mix @ old.bias
    return Head(weight, bias)


def fit(
    embedded: NDArray[Any],
    labels: NDArray[np.int64],
    start: Head,
    *,
    decay: float,
    iterations: int,
    label_smoothing: float = 0.0,
    balance: Balance = "none",
) -> Head:
    """The head with the least mean cross-entropy of the rows plus `decay` / 2 times the sum of its
    squared weights, found by L-BFGS from `start`.

    Of embeddings (rows, width) and labels (rows,). Those weights are of embeddings that are centred
    and divided by the root of their mean variance, one number for all, so that a decay means the
    same in every space. With "sampling" a row weighs as often as the training loop would draw it;
    with "logits" the logarithm of the labels' shares is added in training alone. Equal arguments
    give equal heads on equally many threads.
    """
    # A bias costs nothing, so centring leaves the best head where it is, and the way there shorter.
    centre = embedded.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred = embedded.astype(np.float32) - centre
    scale = np.float32(np.sqrt(np.mean(np.square(centred), dtype=np.float64)) or 1.0)
    given, asked = torch.from_numpy(centred / scale), torch.from_numpy(labels)
    weight = torch.from_numpy(start.weight * scale).requires_grad_()
    bias = torch.from_numpy(start.bias + start.weight @ centre).requires_grad_()
    shares = torch.from_numpy(_shares(labels, balance))
    prior = torch.zeros(())
    if balance == "logits":
        prior = torch.from_numpy(log_prior(labels, len(start.bias)))
    rows_at_once = max(1, CELLS // len(start.bias))
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        history_size=PAST_STEPS,
        tolerance_grad=1e-7,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        optimiser.zero_grad()
        penalty = decay / 2 * weight.square().sum()
        penalty.backward()  # type: ignore[no-untyped-call]
        total = penalty.item()
        for at in range(0, len(given), rows_at_once):
            some = slice(at, at + rows_at_once)
            logits = given[some] @ weight.T + bias + prior
            rows = functional.cross_entropy(
                logits, asked[some], label_smoothing=label_smoothing, reduction="none"
            )
            part = rows @ shares[some]
            part.backward()  # type: ignore[no-untyped-call]
            total += part.item()
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    found: Floats = (weight.detach() / float(scale)).numpy()
    return Head(found, bias.detach().numpy() - found @ centre)


def _shares(labels: NDArray[np.int64], balance: Balance) -> Floats:
    """What part of the loss each row (rows,) has; they add up to 1."""
    weights = np.ones(len(labels))
    if balance == "sampling":
        weights = 1 / np.sqrt(np.bincount(labels))[labels]
    shares: Floats = (weights / weights.sum()).astype(np.float32)
    return shares
