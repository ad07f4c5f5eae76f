"""How frequent labels are where a model answers, and were where it learnt.

A training set that gives every category its share teaches that all are about as likely. Where they
are not, the answers are moved to what is known there (Saerens, Latinne and Decaestecker 2002,
"Adjusting the Outputs of a Classifier to New a Priori Probabilities"):

    p'(label | text) ~ p(label | text) * share'(label) / share(label)

so each logit, over a temperature fitted before, by the logarithm of that ratio. The shares are
those of validation, which is drawn as production is; each label's has one offer of the average
label, dealt out as training has it, so that a label that validation happens to lack keeps a chance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from training import calibration

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]


def log_ratio(labels: Labels, learnt: Labels, count: int) -> NDArray[np.float32]:
    """The logarithm of each label's share (count,) among `labels` over that among `learnt`."""
    before = np.bincount(learnt, minlength=count) + 1.0
    before /= before.sum()
    now = np.bincount(labels, minlength=count) + count * before
    ratio: NDArray[np.float32] = np.log(now / now.sum() / before).astype(np.float32)
    return ratio


def adapted(
    logits: Logits, labels: Labels, learnt: Labels, served: Labels | None = None
) -> tuple[Logits, NDArray[np.float32]]:
    """Validation's logits (rows, labels) as `moved` says, and what moves those of offers to come.

    The latter (labels,) is added to the bias of a model that learnt `served`, where that is more
    than the `learnt` of the one which gave `logits`.
    """
    temperature = calibration.fit_temperature(logits, labels)
    shift = log_ratio(labels, learnt if served is None else served, logits.shape[1])
    return moved(logits, labels, learnt, temperature), temperature * shift


def moved(logits: Logits, labels: Labels, learnt: Labels, temperature: float) -> Logits:
    """Validation's logits (rows, labels), each half moved by the other half's labels.

    So no offer's own label has a part in how it is moved, whatever is then fitted on them.
    `learnt` are the labels of what was trained on.
    """
    count = logits.shape[1]
    half = np.arange(len(labels)) % 2 == 0
    found = logits.copy()
    for own, other in ((half, ~half), (~half, half)):
        found[own] += temperature * log_ratio(labels[other], learnt, count)
    return found
