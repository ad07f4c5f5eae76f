"""A checkpoint is read whole or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from classifier.artifact import Label, write_labels
from compile.checkpoint import FILES, Checkpoint, CheckpointError, write


@pytest.fixture
def copy(artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact.parent / "checkpoint", tmp_path / "checkpoint"))


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_loaded_is_what_was_written(copy: Path, tmp_path: Path) -> None:
    first = Checkpoint.load(copy)
    again = write(
        tmp_path / "again",
        first.encoder(),
        first.tokeniser()._tokenizer,
        first.labels,
        first.golden,
        first.description,
    )
    assert again.labels == first.labels
    assert again.golden == first.golden
    assert (again.path / "model.safetensors").read_bytes() == (
        first.path / "model.safetensors"
    ).read_bytes()
    assert again.description.thresholds == first.description.thresholds
    assert sorted(file.name for file in again.path.iterdir()) == sorted(
        [*FILES["encoder"], "checkpoint.json"]
    )
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_labels_are_in_logit_order_by_id(copy: Path) -> None:
    labels = [label.id for label in Checkpoint.load(copy).labels]
    assert labels == sorted(labels)
    assert labels[0] == "bicycles"


def test_hash_names_the_content(copy: Path) -> None:
    before = Checkpoint.load(copy).hash
    description = json.loads((copy / "checkpoint.json").read_text())
    description["temperature"] += 0.5
    (copy / "checkpoint.json").write_text(json.dumps(description))
    assert Checkpoint.load(copy).hash != before


@pytest.mark.parametrize("name", FILES["encoder"])
def test_every_changed_file_is_found(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[-2] ^= 1
    (copy / name).write_bytes(content)
    assert f"{name} was changed" in refusal(copy)


@pytest.mark.parametrize("name", FILES["encoder"])
def test_every_missing_file_is_found(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert name in refusal(copy)


def test_directory_without_a_description_is_no_checkpoint(tmp_path: Path) -> None:
    assert "has no checkpoint.json" in refusal(tmp_path)


def test_other_format_is_refused(copy: Path) -> None:
    description = json.loads((copy / "checkpoint.json").read_text())
    (copy / "checkpoint.json").write_text(json.dumps(description | {"format": 9}))
    assert "format 9" in refusal(copy)


def test_unknown_field_is_refused(copy: Path) -> None:
    description = json.loads((copy / "checkpoint.json").read_text())
    (copy / "checkpoint.json").write_text(json.dumps(description | {"tempreature": 1}))
    assert "tempreature" in refusal(copy)


def test_labels_in_another_order_are_refused(copy: Path) -> None:
    from classifier.artifact import file_hash

    labels = Checkpoint.load(copy).labels
    swapped: tuple[Label, ...] = (labels[1], labels[0], *labels[2:])
    write_labels(copy / "labels.json", swapped)
    description = json.loads((copy / "checkpoint.json").read_text())
    description["files"]["labels.json"] = file_hash(copy / "labels.json")
    (copy / "checkpoint.json").write_text(json.dumps(description))
    assert "not the label map that was trained" in refusal(copy)
