"""Training a small encoder from scratch, within a minute or two on two cores.

Nothing is pretrained, so nearly all that the model will know about words must get into its
embedding table, and a pass that skips the encoder's layers does that at a tenth of their price. So
the first passes train table and head on the mean of the embeddings alone, and the last ones the
whole model. The layers start close to the identity (small random weights beside a residual path
and a layer norm), so the whole model takes over where the table alone stood.

The loop is written out, and not transformers' Trainer: layers skipped by pass, a learning rate of
its own for each of three groups, and batches cut by length are most of these lines, and would be
overrides there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from classifier.encoder import OfferEncoder, mean_over_real

Rows = Sequence[NDArray[np.int64]]
Show = Callable[[float, int, str], None]


@dataclass(frozen=True)
class Schedule:
    """How to train. Counted in passes over the data, never in seconds, so that it repeats."""

    table_passes: int = 3  # table and head alone
    passes: int = 1  # the whole model, after those
    batch: int = 256
    # Adam moves each weight by about the learning rate a step whatever its gradient, and a rare
    # piece has few steps to go from 0.02 to somewhere: hence rates far above a pretrained model's.
    # Not too far, though: at 1e-2 the table knows 99.7 % of its own texts and two points fewer of
    # the others.
    table_rate: float = 2e-3
    head_rate: float = 4e-3
    layer_rate: float = 2e-3
    warm_up: float = 0.1  # share of the steps over which the rates rise; then they fall to 0
    # Labels of shops' catalogues are wrong now and then; also keeps the logits small.
    label_smoothing: float = 0.1
    weight_decay: float = 0.01
    # Pieces left out of a text at random, so that the model does not learn texts by heart.
    piece_dropout: float = 0.2


def fit(
    model: OfferEncoder,
    rows: Rows,
    labels: NDArray[np.int64],
    schedule: Schedule,
    pad_id: int,
    seed: int,
    show: Show = lambda share, rows, note: None,
) -> None:
    """Train the model in place on `rows` of token ids, specials included, and their `labels`.

    Equal arguments give equal weights on one machine, whatever else it is doing.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    optimiser = _optimiser(model, schedule)
    rates = [float(group["lr"]) for group in optimiser.param_groups]
    total = (schedule.table_passes + schedule.passes) * -(-len(rows) // schedule.batch)
    step = 0
    model.train()
    for number in range(schedule.table_passes + schedule.passes):
        for batch in _batches(rows, schedule.batch, rng):
            rate = _rate(step, total, schedule.warm_up)
            for group, full in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = full * rate
            chosen = [thin(rows[i], schedule.piece_dropout, rng) for i in batch]
            ids, mask = collate(chosen, pad_id)
            if number < schedule.table_passes:
                logits = _past_layers(model, ids, mask)
            else:
                logits = model(ids, mask)
            loss = functional.cross_entropy(
                logits, torch.from_numpy(labels[batch]), label_smoothing=schedule.label_smoothing
            )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            step += 1
            if step % 20 == 0:
                show(step / total, step * schedule.batch, f"loss {loss.item():.2f}")
    if not all(bool(torch.isfinite(weights).all()) for weights in model.parameters()):
        raise FloatingPointError("training ended with weights that are not finite")
    model.eval()


def logits(
    model: OfferEncoder, rows: Rows, pad_id: int, *, table_only: bool = False
) -> NDArray[np.float32]:
    """The model's logits (rows, labels), computed in batches of like length; past its layers, as
    in the first passes of training, where `table_only` says so.
    """
    model.eval()
    order = np.argsort([len(row) for row in rows], kind="stable")
    answers = np.empty((len(rows), model.head.out_features), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), 256):
            batch = order[start : start + 256]
            ids, mask = collate([rows[i] for i in batch], pad_id)
            given = _past_layers(model, ids, mask) if table_only else model(ids, mask)
            answers[batch] = given.numpy()
    return answers


def collate(rows: Rows, pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids and mask (rows, longest) int64 of rows of ids."""
    ids = np.full((len(rows), max(map(len, rows))), pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def _past_layers(model: OfferEncoder, ids: Tensor, mask: Tensor) -> Tensor:
    answered: Tensor = model.head(mean_over_real(_embeddings(model)(ids), mask))
    return answered


def _embeddings(model: OfferEncoder) -> nn.Module:
    embeddings = model.encoder.embeddings
    assert isinstance(embeddings, nn.Module)
    return embeddings


def _optimiser(model: OfferEncoder, schedule: Schedule) -> torch.optim.Optimizer:
    table = [_embeddings(model).get_parameter("word_embeddings.weight")]
    head = list(model.head.parameters())
    taken = {id(weights) for weights in table + head}
    layers = [weights for weights in model.parameters() if id(weights) not in taken]
    return torch.optim.AdamW(
        [
            # Decay would pull at every piece in every step, and most occur in few.
            {"params": table, "lr": schedule.table_rate, "weight_decay": 0.0},
            {"params": head, "lr": schedule.head_rate},
            {"params": layers, "lr": schedule.layer_rate},
        ],
        betas=(0.9, 0.98),
        weight_decay=schedule.weight_decay,
        fused=True,  # five times faster than one operation after another on this table
    )


def _rate(step: int, total: int, warm_up: float) -> float:
    """The share of the full learning rates in a step: up in a line, then down in one."""
    rise = warm_up * total
    return min((step + 1) / max(1.0, rise), (total - step) / max(1.0, total - rise))


def _batches(rows: Rows, size: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """All rows once, in batches of like length (little padding), in random order."""
    order = rng.permutation(len(rows))
    lengths = np.array([len(row) for row in rows])
    batches: list[NDArray[np.int64]] = []
    pool = 32 * size
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + size] for i in range(0, len(part), size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def thin(row: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The row without a random share of its pieces, but with its specials; short ones stay whole"""
    if not share or len(row) < 6:
        return row
    kept = rng.random(len(row)) >= share
    kept[[0, -1]] = True
    return row[kept]
