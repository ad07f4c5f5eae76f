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
    # An activation of 8 bits is off by up to 1/510 of its range, a weight by up to 1/254 of its
    # column's largest, each by about 1 % of what is usual; over a product's hundreds of terms the
    # signs cancel, and what is left of a layer's output is off by about 1 %, of logits that reach
    # 11 to 20 by 0.05 to 0.2. The bound is several times that. A range that was measured wrong, or
    # sums that overflow, move logits by whole units.
    "int8": 0.5,
}
"""Largest absolute difference of one uncalibrated logit, and so also of a text alone and the same
text in any batch. Two categories closer than the bound are a tie, which may fall either way."""

NEIGHBOUR_BOUND: Final[dict[str, float]] = LOGIT_BOUND | {
    # With constant scales a text's products in 8 bits are the same whatever is beside it. Only
    # attention in float32 differs, by some 1e-6, with the length that it is padded to; where that
    # falls onto the border between two of an activation's 255 steps, one of some hundred terms is
    # rounded to its other side, which moves a logit by some thousandths. Dynamic scales move every
    # row, and did so by up to 0.018 in a batch of 64.
    "int8": 0.01,
}
"""Largest difference of one uncalibrated logit of a text alone and of the same text in a batch."""

LEAST_AGREEMENT: Final[dict[str, float]] = {"int8": 0.99}
"""Least share of texts of real offers with the checkpoint's own winner, ties counting against it. A
winner that changes is most often a tie that the checkpoint itself is wrong about as often as right;
where one in a hundred changes, something else is wrong."""

MOST_ACCURACY_LOST: Final[dict[str, float]] = {"int8": 0.003}
"""Most accuracy that a precision may cost on labelled offers, as a share of them: no more than what
training again with another seed moves it by."""
