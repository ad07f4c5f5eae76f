"""Tensors are those that safetensors wrote, and what is no file of tensors is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from classifier.tensors import TensorError, map_tensors

ARRAYS = {
    "wide": np.array([1.5, -2.0, 0.1]),
    "none": np.empty((0, 3)),
    "table": np.arange(6, dtype=np.float32).reshape(2, 3),
    "counts": np.array([7, -1], dtype=np.int32),
}


def written(file: Path) -> Path:
    file.write_bytes(save(ARRAYS, {"a": "word"}))
    return file


def refusal(file: Path) -> str:
    with pytest.raises(TensorError) as refused:
        map_tensors(file)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_mapped_is_what_safetensors_wrote(tmp_path: Path) -> None:
    mapped = map_tensors(written(tmp_path / "a.safetensors"))
    assert mapped.keys() == ARRAYS.keys()
    for name, array in mapped.items():
        np.testing.assert_array_equal(array, ARRAYS[name], strict=True)
        assert array.flags.aligned
    assert isinstance(mapped["table"], np.memmap)
    assert not mapped["table"].flags.writeable


def test_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "a.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    assert "is no safetensors file" in refusal(file)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02" + bytes(7) + b"{]"])
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    assert "is no safetensors file" in refusal(file)


def test_types_that_no_model_has_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(save({"a": np.array([1], dtype=np.uint8)}))
    assert "a is of type U8" in refusal(file)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "a.safetensors")
