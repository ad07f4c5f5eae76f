"""Tensors: arrays in a safetensors file, mapped into memory or written piece by piece.

The package safetensors itself holds a whole file in memory, twice when it writes. A linear model of
two thousand categories is gigabytes, which workers of one machine should share.

Format: https://huggingface.co/docs/safetensors, the size of the head in 8 bytes, the head in JSON,
the arrays one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open

_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I32": np.dtype("<i4"),
}
_NAMES: Final = {dtype: name for name, dtype in _TYPES.items()}


class TensorError(Exception):
    """The file holds no tensors that can be used. The message is one line."""


def map_tensors(file: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file by name, as arrays that are read from the disk when they are used.

    Raises TensorError.
    """
    try:
        # This checks that names, types, shapes and offsets fit each other and the file.
        with safe_open(file, framework="numpy"):
            pass
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            head = msgspec.json.decode(opened.read(size))
    except SafetensorError as error:
        raise TensorError(f"{file}: is no safetensors file: {error}") from error
    except OSError as error:
        raise TensorError(f"{file}: cannot be read: {error.strerror or error}") from error
    head.pop("__metadata__", None)
    tensors: dict[str, NDArray[Any]] = {}
    for name, entry in head.items():
        dtype = _TYPES.get(entry["dtype"])
        if dtype is None:
            raise TensorError(f"{file}: {name} is of type {entry['dtype']}, unknown here")
        shape = tuple(entry["shape"])
        if 0 in shape:  # there is nothing to map
            tensors[name] = np.empty(shape, dtype)
        else:
            start = 8 + size + entry["data_offsets"][0]
            tensors[name] = np.memmap(file, dtype, "r", start, shape)
    return tensors


def head(tensors: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]) -> bytes:
    """What a file of such arrays begins with; their bytes follow in this order.

    Types of more bytes have to stand before those of fewer, so that each lies where a processor
    likes to read it.
    """
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + int(np.prod(shape)) * np.dtype(dtype).itemsize
        entries[name] = {
            "dtype": _NAMES[np.dtype(dtype)],
            "shape": shape,
            "data_offsets": (start, end),
        }
    encoded = msgspec.json.encode(entries)
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded
