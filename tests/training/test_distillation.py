"""The distillation loss, by hand; the learner, in its widths."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from classifier.encoder import OfferEncoder
from training.distillation import UNLABELLED, Learner, loss
from training.scratch import Shape

SHAPE = Shape(pieces=20, hidden=16, layers=1, heads=2, inner=16, max_tokens=8)

# Logits of log 3 and 0 are probabilities of 3/4 and 1/4.
LOGITS = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0]])
EMBEDDED = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
TARGETS = torch.tensor([[0.0, 0.0], [3.0, 4.0]])


def value(
    labels: list[int],
    targets: Tensor | None = TARGETS,
    weight: float = 0.0,
    label_smoothing: float = 0.0,
) -> float:
    given = torch.tensor(labels)
    found = loss(LOGITS, given, EMBEDDED, targets, weight=weight, label_smoothing=label_smoothing)
    return found.item()


def test_labels_alone_are_cross_entropy() -> None:
    assert value([0, 1], None) == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)


def test_distance_is_squared_weighted_and_added() -> None:
    cross_entropy = (math.log(4 / 3) + math.log(4)) / 2
    # Squared distances of 1 + 4 and 9 + 16.
    assert value([0, 1], weight=0.1) == pytest.approx(cross_entropy + 0.1 * (5 + 25) / 2)
    assert value([0, 1], weight=0.0) == pytest.approx(cross_entropy)


def test_unlabelled_row_has_the_distance_alone() -> None:
    expected = (math.log(4 / 3) + 0.1 * 5 + 0.1 * 25) / 2
    assert value([0, UNLABELLED], weight=0.1) == pytest.approx(expected)
    assert value([UNLABELLED, UNLABELLED], weight=0.1) == pytest.approx(0.1 * (5 + 25) / 2)


def test_smoothing_gives_each_label_its_share() -> None:
    # 0.2 smoothed over two labels: 0.9 of the right one, 0.1 of the other.
    expected = 0.9 * math.log(4 / 3) + 0.1 * math.log(4)
    assert value([0, 0], None, label_smoothing=0.2) == pytest.approx(expected)


def test_adjusted_logits_count_a_frequent_label_less() -> None:
    # Probabilities of 3/4 and 1/4, times a prior of 1/4 and 3/4, are even.
    prior = torch.log(torch.tensor([0.25, 0.75]))
    found = loss(LOGITS, torch.tensor([0, 0]), EMBEDDED, None, log_prior=prior)
    assert found.item() == pytest.approx(math.log(2))


def test_halves_of_a_batch_have_its_loss_on_average() -> None:
    labels = torch.tensor([0, UNLABELLED])
    halves = [
        loss(
            LOGITS[i : i + 1], labels[i : i + 1], EMBEDDED[i : i + 1], TARGETS[i : i + 1], weight=1
        )
        for i in range(2)
    ]
    whole = loss(LOGITS, labels, EMBEDDED, TARGETS, weight=1)
    assert torch.stack(halves).mean().item() == pytest.approx(whole.item())


def test_projection_is_there_only_where_widths_differ() -> None:
    ids, mask = torch.tensor([[2, 7, 3]]), torch.ones(1, 3, dtype=torch.int64)
    for teacher_width, projected in ((None, False), (16, False), (24, True)):
        learner = Learner(OfferEncoder.new(SHAPE.config(20, 0), 5), teacher_width)
        logits, embedded = learner(ids, mask)
        assert (learner.projection is not None) == projected
        assert logits.shape == (1, 5)
        assert embedded.shape == (1, 24 if projected else 16)
    assert learner.projection is not None
    expected = learner.model.embed(ids, mask) @ learner.projection.weight.T
    assert torch.allclose(embedded, expected, atol=1e-6)
