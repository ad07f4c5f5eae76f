"""The training loop: repeatable, the whole model trained, every row in every pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from classifier.encoder import OfferEncoder
from compile.verify import one_thread
from training import fit
from training.fit import Schedule
from training.scratch import Shape

SHAPE = Shape(pieces=40, hidden=16, layers=1, heads=2, inner=16, max_tokens=12)
SCHEDULE = Schedule(
    table_passes=4, passes=4, batch=8, table_rate=2e-2, head_rate=2e-2, label_smoothing=0.0
)

Rows = list[NDArray[np.int64]]


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def data() -> tuple[Rows, NDArray[np.int64]]:
    """Rows of pieces 5..39; the label is which of the pieces 5, 6, 7 is among them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 240)
    rows = []
    for label in labels:
        body = rng.integers(8, 40, int(rng.integers(1, 8)))
        body[rng.integers(0, len(body))] = 5 + label
        rows.append(np.array([2, *body, 3], dtype=np.int64))
    return rows, labels.astype(np.int64)


def model() -> OfferEncoder:
    torch.manual_seed(0)
    return OfferEncoder.new(SHAPE.config(40, 0), 3)


def test_learns_what_the_data_say(data: tuple[Rows, NDArray[np.int64]]) -> None:
    rows, labels = data
    trained = model()
    fit.fit(trained, rows, labels, SCHEDULE, 0, seed=0)
    assert not trained.training
    assert (fit.logits(trained, rows, 0).argmax(axis=1) == labels).mean() > 0.95


def test_equal_arguments_give_equal_weights(data: tuple[Rows, NDArray[np.int64]]) -> None:
    trained = []
    for seed in (7, 7, 8):
        one = model()
        fit.fit(one, *data, SCHEDULE, 0, seed=seed)
        trained.append(torch.cat([weights.flatten() for weights in one.state_dict().values()]))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_table_passes_leave_the_layers_alone(data: tuple[Rows, NDArray[np.int64]]) -> None:
    one = model()
    before = {name: weights.clone() for name, weights in one.state_dict().items()}
    fit.fit(one, *data, replace(SCHEDULE, passes=0), 0, seed=0)
    changed = {n for n, weights in one.state_dict().items() if not torch.equal(weights, before[n])}
    assert "encoder.embeddings.word_embeddings.weight" in changed
    assert "head.weight" in changed
    assert not [name for name in changed if "encoder.encoder.layer" in name]
    fit.fit(one, *data, replace(SCHEDULE, table_passes=0, passes=1), 0, seed=0)
    changed = {n for n, weights in one.state_dict().items() if not torch.equal(weights, before[n])}
    assert changed == set(before)


def test_diverged_training_is_an_error(data: tuple[Rows, NDArray[np.int64]]) -> None:
    one = model()
    with torch.no_grad():
        one.head.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite"):
        fit.fit(one, *data, SCHEDULE, 0, seed=0)


def test_rates_rise_and_fall_in_lines() -> None:
    rates = [fit._rate(step, 100, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(1 / 90)


def test_batches_hold_every_row_once_and_like_lengths_together() -> None:
    rng = np.random.default_rng(0)
    rows = [np.zeros(int(n), np.int64) for n in rng.integers(3, 40, 1000)]
    batches = fit._batches(rows, 32, rng)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    spread = [np.ptp([len(rows[i]) for i in batch]) for batch in batches]
    assert np.mean(spread) < 3


def test_thinned_rows_keep_their_specials() -> None:
    rng = np.random.default_rng(0)
    row = np.array([2, *range(10, 40), 3])
    thinned = fit.thin(row, 0.5, rng)
    assert thinned[0] == 2
    assert thinned[-1] == 3
    assert 5 < len(thinned) < 28
    assert fit.thin(row, 0.0, rng) is row
    short = np.array([2, 9, 3])
    assert fit.thin(short, 0.9, rng) is short


def test_collate_masks_what_is_padding() -> None:
    ids, mask = fit.collate([np.array([2, 3]), np.array([2, 8, 9, 3])], 7)
    assert ids.tolist() == [[2, 3, 7, 7], [2, 8, 9, 3]]
    assert mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
