"""How far an answer may lie from the checkpoint's, by precision: the one place for it."""

from __future__ import annotations

from typing import Final

LOGIT_BOUND: Final[dict[str, float]] = {
    # A softmax probability moves by at most half of what its logits move, so 2e-4 keeps every
    # (temperature 1) probability within 1e-4 of the checkpoint's. Sums in another order and fused
    # kernels move the logits of a three-layer encoder by some 1e-5, and of a deep one by no more
    # than a few times that: what exceeds the bound is a wrong graph, not rounding.
    "fp32": 2e-4,
    # An SVM's logits are divided by a temperature of 0.1 to 0.2, so less keeps its probabilities
    # as close. A sum of some hundred products of about 0.1 is off by some 1e-7.
    "fp32-linear": 3e-5,
    # bfloat16 keeps 8 bits, so each product is off by up to 2**-9 of itself, and logits, which
    # reach about 20, by some hundredths. The bound is several times that; a dropped layer or an
    # active dropout moves logits by whole units.
    "bf16": 0.25,
}
"""Largest absolute difference of one uncalibrated logit, and so also of a text alone and the same
text in any batch. Two categories closer than the bound are a tie, which may fall either way."""
