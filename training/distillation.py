"""Distillation: a student learns its labels and, beside them, to lie where its teacher's texts lie.

A row's loss is

    CE(logits, label) + weight * |P e - t|²

with the student's embedding e, the teacher's embedding t of the same offer, and P a linear map
where their widths differ (Reimers and Gurevych 2020, "Making Monolingual Sentence Embeddings
Multilingual", without their two languages). An unlabelled row has the second term only. The loss
of a batch is the mean over its rows, so that neither splitting it over processes nor accumulating
it changes what a row counts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from classifier.encoder import OfferEncoder

UNLABELLED = -100
"""The label of a row that has none."""


class Learner(nn.Module):
    """A model that is trained and what it needs for that alone.

    `teacher_width` is the width of the teacher's embeddings; None where there is no teacher.
    """

    def __init__(self, model: OfferEncoder, teacher_width: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.projection: nn.Linear | None = None
        width = model.head.in_features
        if teacher_width is not None and teacher_width != width:
            self.projection = nn.Linear(width, teacher_width, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, labels) and embeddings in the teacher's width (B, T), both float32."""
        embedded = self.model.embed(input_ids, attention_mask)
        logits: Tensor = self.model.head(embedded)
        projected = embedded if self.projection is None else self.projection(embedded)
        return logits.float(), projected.float()


def loss(
    logits: Tensor,
    labels: Tensor,
    embedded: Tensor,
    targets: Tensor | None,
    *,
    weight: float = 0.0,
    label_smoothing: float = 0.0,
    log_prior: Tensor | None = None,
) -> Tensor:
    """The mean loss of the rows, a scalar.

    Of `logits` (B, labels), `labels` (B,) int64 or UNLABELLED, `embedded` (B, T) and the teacher's
    `targets` (B, T), None where there is no teacher. `log_prior` (labels,) is added to the logits
    in training alone, so that a rare label is not answered rarely only because it is rare (Menon et
    al. 2021, "Long-tail learning via logit adjustment").
    """
    if log_prior is not None:
        logits = logits + log_prior
    rows = functional.cross_entropy(
        logits,
        labels,
        ignore_index=UNLABELLED,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    if targets is not None:
        rows = rows + weight * (embedded - targets).square().sum(dim=1)
    return torch.mean(rows)
