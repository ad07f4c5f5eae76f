"""What a stage keeps of validation, and to which validation it belongs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training import held_out
from training.examples import Examples
from training.stage import StageError

LOGITS = np.array([[1.5, -2], [0, 3.25], [4, 4]], np.float32)


def examples(prefix: str = "", labels: tuple[int, ...] = (0, 1, 1)) -> Examples:
    texts = [f"{prefix}{text}" for text in ("kettle", "query: sofa", "tent")]
    return Examples(texts, np.array(labels), ["de", "", "fr"], ["a", "b"])


def test_what_was_kept_is_read_whatever_the_encoder_wants_before_a_text(tmp_path: Path) -> None:
    held_out.write(tmp_path, examples("query: "), LOGITS, "query: ")
    assert np.array_equal(held_out.read(tmp_path, examples("query: "), "query: "), LOGITS)
    held_out.write(tmp_path, examples(), LOGITS)
    assert np.array_equal(held_out.read(tmp_path, examples("query: "), "query: "), LOGITS)


@pytest.mark.parametrize(
    "other",
    [
        examples(labels=(0, 1, 0)),
        examples("x"),
        Examples(["kettle", "tent"], np.array([0, 1]), ["", ""], ["a", "b"]),
        Examples(examples().texts, np.array([0, 1, 1]), ["", "", ""], ["a", "c"]),
        Examples(examples().texts, np.array([0, 1, 1]), ["", "", ""], ["a", "b", "c"]),
    ],
    ids=["labels", "texts", "fewer", "other-ids", "more-ids"],
)
def test_other_validation_offers_are_refused(tmp_path: Path, other: Examples) -> None:
    held_out.write(tmp_path, examples(), LOGITS)
    with pytest.raises(StageError, match="of other validation offers, or of other labels"):
        held_out.read(tmp_path, other)


def test_missing_and_torn_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"has no held-out\.safetensors: make it again"):
        held_out.read(tmp_path, examples())
    held_out.write(tmp_path, examples(), LOGITS)
    file = tmp_path / held_out.FILE
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(StageError, match=r"held-out\.safetensors: cannot be read") as refused:
        held_out.read(tmp_path, examples())
    assert "\n" not in str(refused.value)
