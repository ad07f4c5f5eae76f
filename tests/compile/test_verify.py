"""What verification must catch, and what it must let pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from classifier.artifact import Artifact, file_hash, write_golden, write_labels
from classifier.engines import load_engine
from classifier.precision import LOGIT_BOUND
from compile.checkpoint import Checkpoint
from compile.verify import (
    NOTHING,
    Verification,
    VerificationError,
    compare,
    engine_logits,
    probes,
    reference_logits,
    verify,
)

Logits = NDArray[np.float32]


class BentEngine:
    """An engine whose logits something is done to."""

    def __init__(self, artifact: Artifact, bend: Callable[[Logits, NDArray[np.int32]], Logits]):
        self._engine = load_engine(artifact, 1)
        self.precision = self._engine.precision
        self._bend = bend

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> Logits:
        return self._bend(self._engine.logits(ids, lengths), lengths)

    def close(self) -> None:
        self._engine.close()


@pytest.fixture(scope="module")
def loaded(artifact: Path) -> Artifact:
    return Artifact.load(artifact)


@pytest.fixture(scope="module")
def checkpoint(artifact: Path) -> Checkpoint:
    return Checkpoint.load(artifact.parent / "checkpoint")


def bent(
    checkpoint: Checkpoint,
    artifact: Artifact,
    bend: Callable[[Logits, NDArray[np.int32]], Logits],
) -> Verification:
    return verify(checkpoint, artifact, BentEngine(artifact, bend))


def test_exported_model_is_the_checkpoint_at_every_length(
    checkpoint: Checkpoint, loaded: Artifact
) -> None:
    result = bent(checkpoint, loaded, lambda logits, lengths: logits)
    assert result.lengths == loaded.manifest.max_tokens
    assert result.texts == len(loaded.golden) + 1 + len(NOTHING) + loaded.manifest.max_tokens
    assert result.top1_agreement == 1
    assert result.largest_difference < 1e-5
    assert result.largest_neighbour_difference < 1e-5
    assert result.bound == LOGIT_BOUND["fp32"]


@pytest.mark.parametrize(
    ("bend", "message"),
    [
        (lambda logits, lengths: logits[:, ::-1], "differs by"),
        (lambda logits, lengths: logits * np.float32(1.001), "differs by"),
        (lambda logits, lengths: np.where(lengths[:, None] == 17, np.nan, logits), "not finite"),
        (lambda logits, lengths: np.zeros_like(logits), "differs by"),
        (lambda logits, lengths: logits[:, :-1], "logits instead of"),
        (lambda logits, lengths: logits + (lengths[:, None] == 31) * 0.01, "differs by 0.01"),
        (lambda logits, lengths: logits + 0.01 * (len(logits) > 1), "in batches by length"),
        (
            lambda logits, lengths: logits + 0.01 * (lengths.min() < lengths.max() - 20),
            "in mixed batches",
        ),
    ],
    ids=[
        "swapped labels", "scaled", "nan at one length", "constant answer", "missing category",
        "one length wrong", "neighbours have a say", "longer neighbours have a say",
    ],
)  # fmt: skip
def test_wrong_answers_are_refused(
    checkpoint: Checkpoint,
    loaded: Artifact,
    bend: Callable[[Logits, NDArray[np.int32]], Logits],
    message: str,
) -> None:
    with pytest.raises(VerificationError, match=message) as caught:
        bent(checkpoint, loaded, bend)
    assert "\n" not in str(caught.value)


def test_differences_within_the_bound_pass_and_are_reported(
    checkpoint: Checkpoint, loaded: Artifact
) -> None:
    result = bent(checkpoint, loaded, lambda logits, lengths: logits + np.float32(1e-4))
    assert result.largest_difference == pytest.approx(1e-4, rel=0.1)


def test_tie_within_the_bound_may_fall_either_way() -> None:
    expected = np.array([[1.0, 1.0001, 0.0]], np.float32)
    found = np.array([[1.0001, 1.0, 0.0]], np.float32)
    assert compare("x", expected, found, 2e-4) == 1


def test_probes_hold_every_length(checkpoint: Checkpoint) -> None:
    rows = probes([[2, 5, 3], [2, 6, 7, 3]], max_tokens=12)
    assert rows[:2] == [[2, 5, 3], [2, 6, 7, 3]]
    assert [len(row) for row in rows[2:]] == list(range(1, 13))


def test_answers_come_back_in_the_rows_order(loaded: Artifact) -> None:
    engine = load_engine(loaded, 1)
    rows = [[2, 9, 3], [2, 8, 7, 6, 3], [2, 3]]
    one_by_one = engine_logits(engine, rows, [[0], [1], [2]], 0)
    shuffled = engine_logits(engine, rows, [[2, 0], [1]], 0)
    assert np.allclose(one_by_one, shuffled, atol=1e-5)
    assert not np.allclose(one_by_one[0], one_by_one[1], atol=1e-2)


def tampered(checkpoint: Checkpoint, to: Path, change: Callable[[Path], object]) -> Checkpoint:
    """A changed checkpoint whose hashes are right again: as if it had been trained that way."""
    path = Path(shutil.copytree(checkpoint.path, to / "tampered"))
    change(path)
    description = json.loads((path / "checkpoint.json").read_text())
    description["files"] = {name: file_hash(path / name) for name in description["files"]}
    labels = json.loads((path / "labels.json").read_text())
    from classifier.artifact import Label, labels_hash

    description["labels_sha256"] = labels_hash(msgspec.convert(labels, tuple[Label, ...]))
    (path / "checkpoint.json").write_text(json.dumps(description))
    return Checkpoint.load(path)


def test_labels_swapped_before_compiling_are_caught(checkpoint: Checkpoint, tmp_path: Path) -> None:
    from compile.build import CompileError, build

    def swap(path: Path) -> None:
        labels = list(checkpoint.labels)
        labels[0], labels[1] = labels[1], labels[0]
        write_labels(path / "labels.json", labels)

    wrong = tampered(checkpoint, tmp_path, swap)
    with pytest.raises(CompileError, match="otherwise than in training"):
        build(wrong.path, "onnx-cpu", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_other_tokeniser_settings_are_caught(checkpoint: Checkpoint, tmp_path: Path) -> None:
    from compile.build import CompileError, build

    def change(path: Path) -> None:
        from tokenizers import normalizers

        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        tokenizer.normalizer = normalizers.NFD()  # case and accents stay
        tokenizer.save(str(path / "tokenizer.json"))

    wrong = tampered(checkpoint, tmp_path, change)
    with pytest.raises(CompileError, match="otherwise than in training"):
        build(wrong.path, "onnx-cpu", tmp_path / "out")


def test_shorter_limit_than_in_training_is_caught(checkpoint: Checkpoint, tmp_path: Path) -> None:
    from compile.build import CompileError, build

    path = Path(shutil.copytree(checkpoint.path, tmp_path / "short"))
    description = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(description | {"max_tokens": 16}))
    with pytest.raises(CompileError, match="otherwise than in training"):
        build(path, "onnx-cpu", tmp_path / "out")


def test_longer_limit_than_the_encoder_has_positions_is_caught(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    from compile.build import CompileError, build

    path = Path(shutil.copytree(checkpoint.path, tmp_path / "long"))
    description = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(description | {"max_tokens": 64}))
    with pytest.raises(
        CompileError, match="max_tokens is 64, but its encoder has positions for 32"
    ):
        build(path, "onnx-cpu", tmp_path / "out")


def test_golden_answers_of_other_weights_are_caught(checkpoint: Checkpoint, tmp_path: Path) -> None:
    from compile.build import CompileError, build

    def change(path: Path) -> None:
        golden = [
            msgspec.structs.replace(
                question, logits={label: value + 0.01 for label, value in question.logits.items()}
            )
            for question in checkpoint.golden
        ]
        write_golden(path / "golden.jsonl", golden)

    wrong = tampered(checkpoint, tmp_path, change)
    with pytest.raises(CompileError, match="otherwise than in training"):
        build(wrong.path, "onnx-cpu", tmp_path / "out")


def test_reference_is_asked_in_evaluation_mode(checkpoint: Checkpoint) -> None:
    model = checkpoint.encoder()
    model.train()
    rows = [[2, 9, 8, 3]]
    assert np.array_equal(reference_logits(model, rows), reference_logits(model, rows))
    assert not model.training
