"""Answers where labels are as frequent as in production, of a model that learnt them evenly."""

from __future__ import annotations

import numpy as np
import pytest

from training.priors import log_ratio, moved


def test_ratio_is_the_hand_computed_one() -> None:
    """Training has 4 : 4, so 5 : 5 with one more of each. Validation has 3 : 0, and one offer a
    label besides, dealt out evenly: 4 : 1.
    """
    found = log_ratio(np.zeros(3, np.int64), np.array([0, 1] * 4), 2)
    assert found == pytest.approx(np.log([0.8 / 0.5, 0.2 / 0.5]), abs=1e-6)


def test_nothing_moves_where_the_shares_are_the_same() -> None:
    labels = np.repeat(np.arange(3), [100, 300, 600])
    assert log_ratio(labels, labels, 3) == pytest.approx(np.zeros(3), abs=0.01)
    assert log_ratio(np.array([], np.int64), labels, 3) == pytest.approx(np.zeros(3), abs=1e-6)


def test_label_that_neither_has_stays_finite() -> None:
    assert np.isfinite(log_ratio(np.array([0]), np.array([1]), 4)).all()


def test_moved_answers_are_those_of_bayes() -> None:
    """Of texts that say nothing, a temperature of 2 and shares of 9 : 1, both halves' own."""
    labels = np.array([0] * 18 + [1] * 2)
    even = np.tile(np.array([0, 1]), 500)
    logits = moved(np.zeros((20, 2), np.float32), labels, even, temperature=2.0)
    shares = np.exp(logits / 2.0)
    shares /= shares.sum(axis=1, keepdims=True)
    # Nine of ten offers in each half, and one a label besides.
    assert shares[:, 0] == pytest.approx(np.full(20, (9 + 1) / 12), abs=1e-3)


def test_no_offer_of_validation_gives_its_own_label_away() -> None:
    labels = np.array([0, 1, 0, 1, 2, 1])
    changed = labels.copy()
    changed[0] = 2
    logits, learnt = np.zeros((6, 3), np.float32), np.array([0, 1, 2])
    before, after = (moved(logits, each, learnt, 1.0) for each in (labels, changed))
    assert np.array_equal(before[0::2], after[0::2])
    assert not np.array_equal(before[1::2], after[1::2])
