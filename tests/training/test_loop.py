"""The loop: it learns, repeats itself, and goes on after a kill as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from classifier.encoder import OfferEncoder
from compile.verify import one_thread
from training import loop
from training.distillation import UNLABELLED, Learner
from training.fit import collate
from training.loop import Batches, Data, fit, groups, log_prior
from training.parameters import LoopParameters
from training.scratch import Shape

SHAPE = Shape(pieces=40, hidden=16, layers=2, heads=2, inner=16, max_tokens=12, dropout=0.1)
QUICK = LoopParameters(
    epochs=6, batch=16, rate=1e-2, head_rate=2e-2, label_smoothing=0.0, precision="fp32"
)


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def rows_of(batches: Batches) -> list[list[int]]:
    return [[drawn.row for drawn in batch] for batch in batches]


def data(count: int = 200, seed: int = 0) -> Data:
    """Rows of pieces 5..39; the label is which of the pieces 5, 6, 7 is among them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    rows = []
    for label in labels:
        body = rng.integers(8, 40, int(rng.integers(1, 8)))
        body[rng.integers(0, len(body))] = 5 + label
        rows.append(np.array([2, *body, 3], dtype=np.int64))
    return Data(rows, labels.astype(np.int64))


def learner(teacher_width: int | None = None) -> Learner:
    torch.manual_seed(0)
    return Learner(OfferEncoder.new(SHAPE.config(40, 0), 3), teacher_width)


def learner_of(max_tokens: int) -> Learner:
    torch.manual_seed(0)
    shape = Shape(pieces=40, hidden=16, layers=1, heads=2, inner=16, max_tokens=max_tokens)
    return Learner(OfferEncoder.new(shape.config(40, 0), 3))


def flat(trained: Learner) -> torch.Tensor:
    return torch.cat([weights.flatten() for weights in trained.state_dict().values()])


def test_learns_what_the_labels_say(tmp_path: Path) -> None:
    given = data()
    trained = learner()
    fit(trained, given, QUICK, 0, tmp_path)
    assert not trained.training
    logits = np.concatenate(
        [
            trained.model(torch.from_numpy(row)[None], torch.ones(1, len(row))).detach().numpy()
            for row in given.rows
        ]
    )
    assert (logits.argmax(axis=1) == given.labels).mean() > 0.95


def test_dropout_is_as_asked_while_training_and_as_it_was_afterwards(tmp_path: Path) -> None:
    """Nothing random is left without it, so that another seed of PyTorch's changes nothing."""
    parameters = QUICK.model_copy(update={"dropout": 0.0, "epochs": 1})
    seen: list[tuple[set[float], str]] = []
    trained = learner()
    encoder = trained.model.encoder

    def look(*arguments: object) -> None:
        shares = {each.p for each in encoder.modules() if isinstance(each, torch.nn.Dropout)}
        seen.append((shares, encoder.config._attn_implementation))

    encoder.register_forward_hook(look)
    before = encoder.config._attn_implementation
    fit(trained, data(), parameters, 0, tmp_path / "without")
    assert seen[0] == ({0.0}, "eager" if not torch.cuda.is_available() else before)
    shares = {each.p for each in encoder.modules() if isinstance(each, torch.nn.Dropout)}
    assert (shares, encoder.config._attn_implementation) == ({0.1}, before)
    seen.clear()
    fit(trained, data(), parameters.model_copy(update={"dropout": None}), 0, tmp_path / "own")
    assert seen[0][0] == {0.1}


def test_bf16_is_taken_where_the_processor_multiplies_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for has in (True, False):
        monkeypatch.setattr("torch.cpu.get_capabilities", lambda has=has: {"amx_bf16": has})
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        assert loop.usual(0, "auto")["bf16"] == has
        assert loop.usual(0, "bf16")["bf16"]
        assert not loop.usual(0, "fp32")["bf16"]


def test_bf16_learns_too(tmp_path: Path) -> None:
    given = data()
    trained = learner()
    fit(trained, given, QUICK.model_copy(update={"precision": "bf16"}), 0, tmp_path)
    assert {weights.dtype for weights in trained.parameters()} == {torch.float32}
    ids, mask = collate(given.rows, 0)
    with torch.no_grad():
        logits, _ = trained(ids, mask)
    assert (logits.argmax(dim=1).numpy() == given.labels).mean() > 0.95


def test_unlabelled_rows_are_drawn_to_the_teacher(tmp_path: Path) -> None:
    given = data()
    targets = np.random.default_rng(1).normal(size=(3, 24)).astype(np.float16)[given.labels]
    unlabelled = Data(given.rows, np.full(200, UNLABELLED), targets)
    trained = learner(24)

    def distance() -> float:
        with torch.no_grad():
            embedded = [
                trained(torch.from_numpy(row)[None], torch.ones(1, len(row)))[1]
                for row in given.rows
            ]
        found = torch.cat(embedded).numpy() - targets.astype(np.float32)
        return float((found**2).sum(axis=1).mean())

    before, head = distance(), trained.model.head.weight.clone()
    fit(trained, unlabelled, QUICK, 0, tmp_path, loss_weight=1.0)
    assert distance() < 0.2 * before
    # Nothing but decay moved the head: without a label it has no gradient.
    assert torch.allclose(trained.model.head.weight, head, rtol=0.05, atol=1e-6)


def test_equal_arguments_give_equal_weights(tmp_path: Path) -> None:
    trained = []
    for number, seed in enumerate((7, 7, 8)):
        one = learner()
        parameters = QUICK.model_copy(update={"seed": seed, "epochs": 1})
        fit(one, data(64), parameters, 0, tmp_path / str(number))
        trained.append(flat(one))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_accumulated_batches_are_one_larger_batch(tmp_path: Path) -> None:
    trained = []
    # Every step is made of all 16 rows, in one batch or in four; the first one's rate is 0.
    rows = [np.array([2, 5 + i % 3, 8 + i % 30, 3]) for i in range(16)]
    given = Data(rows, np.arange(16) % 3)
    for batch, accumulation in ((16, 1), (4, 4)):
        one = still()
        parameters = QUICK.model_copy(
            update={"batch": batch, "accumulation": accumulation, "epochs": 4}
        )
        fit(one, given, parameters, 0, tmp_path / str(batch))
        trained.append(flat(one))
    assert torch.allclose(trained[0], trained[1], atol=1e-5)
    assert not torch.allclose(trained[0], flat(still()), atol=1e-3)


KILLED = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from tests.training.test_loop import QUICK, data, learner
from training.loop import fit

out = Path(sys.argv[1])
torch.set_num_threads(1)
trained = learner()
parameters = QUICK.model_copy(update={"checkpoint_minutes": float(sys.argv[2])})
fit(trained, data(), parameters, 0, out / "checkpoints")
save_file(trained.state_dict(), out / "weights.safetensors")
"""


def test_killed_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [sys.executable, str(script), str(tmp_path), "0"]
    with subprocess.Popen(arguments, env=environment, start_new_session=True) as run:
        while not list(tmp_path.glob("checkpoints/checkpoint-1?/whole")):
            assert run.poll() is None, "it ended before it was killed"
            time.sleep(0.005)
        os.kill(run.pid, signal.SIGKILL)
    assert not (tmp_path / "weights.safetensors").exists()
    steps = QUICK.epochs * -(-200 // QUICK.batch)
    last = loop.last(tmp_path / "checkpoints")
    assert last is not None
    assert 10 <= int(last.rpartition("-")[2]) < steps

    resumed, undisturbed = learner(), learner()
    shown: list[int] = []
    fit(
        resumed, data(), QUICK, 0, tmp_path / "checkpoints",
        show=lambda share, rows, note: shown.append(rows),
    )  # fmt: skip
    assert len(shown) == steps - int(last.rpartition("-")[2])  # the rest alone was trained
    fit(undisturbed, data(), QUICK, 0, tmp_path / "undisturbed")
    assert torch.equal(flat(resumed), flat(undisturbed))


def still() -> Learner:
    """Without dropout, which a batch draws as a whole."""
    torch.manual_seed(0)
    shape = Shape(pieces=40, hidden=16, layers=2, heads=2, inner=16, max_tokens=12, dropout=0.0)
    return Learner(OfferEncoder.new(shape.config(40, 0), 3))


def test_checkpoint_without_its_end_is_not_resumed_from(tmp_path: Path) -> None:
    for name in ("checkpoint-9", "checkpoint-10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "whole").touch()
    (tmp_path / "checkpoint-11").mkdir()
    assert loop.last(tmp_path) == str(tmp_path / "checkpoint-10")
    assert not (tmp_path / "checkpoint-11").exists()
    assert loop.last(tmp_path / "nowhere") is None


def test_pieces_are_left_out_anew_in_every_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same ones in the same pass, whoever asks."""
    read: list[list[tuple[int, ...]]] = []

    def noted(rows: Sequence[np.ndarray], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        read[-1] += [tuple(row.tolist()) for row in rows]
        return collate(rows, pad_id)

    monkeypatch.setattr(loop, "collate", noted)
    rows = [np.array([2, *range(8, 38), 3])] * 16
    given = Data(rows, np.arange(16) % 3)
    for number, dropout in enumerate((0.3, 0.3, 0.0)):
        read.append([])
        parameters = QUICK.model_copy(update={"epochs": 2, "piece_dropout": dropout})
        fit(learner_of(32), given, parameters, 0, tmp_path / str(number))
    assert read[0] == read[1]
    assert len(set(read[0])) == 32  # every row and pass another
    assert all((row[0], row[-1]) == (2, 3) for row in read[0])
    assert np.mean([len(row) for row in read[0]]) == pytest.approx(2 + 0.7 * 30, abs=1.5)
    assert set(read[2]) == {tuple(rows[0].tolist())}


def test_batches_are_full_hold_every_row_and_like_lengths() -> None:
    given = data(1000)
    batches = rows_of(Batches(given, QUICK))
    assert len(batches) == len(Batches(given, QUICK)) == 6 * 63
    assert {len(batch) for batch in batches} == {16}
    for epoch in range(6):
        seen = np.bincount(np.concatenate(batches[63 * epoch : 63 * (epoch + 1)]))
        assert seen.min() == 1
        assert (seen == 2).sum() == 8
    assert batches[:63] != batches[63:126]
    spread = [np.ptp([len(given.rows[i]) for i in batch]) for batch in batches]
    assert np.mean(spread) < 1


def test_fewer_rows_than_a_batch_fill_it() -> None:
    (batch,) = rows_of(Batches(data(3), QUICK.model_copy(update={"epochs": 1})))
    assert len(batch) == 16
    assert set(batch) == {0, 1, 2}


def test_balanced_sampling_draws_by_the_root_of_frequency() -> None:
    labels = np.repeat([0, 1, UNLABELLED], [9000, 1000, 100])
    given = Data([np.zeros(3, np.int64)] * len(labels), labels)
    parameters = QUICK.model_copy(update={"balance": "sampling", "epochs": 1, "batch": 100})
    drawn = np.concatenate(rows_of(Batches(given, parameters)))
    found = labels[drawn]
    # 9000 and 1000 in the root: 3 to 1.
    assert (found == 0).sum() / (found == 1).sum() == pytest.approx(3.0, rel=0.1)
    assert sorted(drawn[found == UNLABELLED]) == list(range(10_000, 10_100))


def test_prior_is_the_labels_share() -> None:
    labels = np.array([0, 0, 0, 1, UNLABELLED])
    assert np.exp(log_prior(labels, 3)) == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_every_weight_is_in_one_group_and_tables_do_not_decay() -> None:
    one = learner(24)
    decaying, others, new = groups(one, QUICK)
    names = {id(weights): name for name, weights in one.named_parameters()}
    found = [
        [names[id(weights)] for weights in group["params"]] for group in (decaying, others, new)
    ]
    assert sorted(name for group in found for name in group) == sorted(names.values())
    assert all(name.endswith(".weight") and "LayerNorm" not in name for name in found[0])
    assert "model.encoder.embeddings.word_embeddings.weight" in found[1]
    assert sorted(found[2]) == ["model.head.bias", "model.head.weight", "projection.weight"]
    assert (others["weight_decay"], new["lr"], decaying["lr"]) == (0.0, 2e-2, 1e-2)


def test_diverged_training_is_an_error(tmp_path: Path) -> None:
    one = learner()
    with torch.no_grad():
        one.model.head.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite"):
        fit(one, data(32), QUICK.model_copy(update={"epochs": 1}), 0, tmp_path)
