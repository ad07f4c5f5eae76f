"""Tensors: arrays in a safetensors file, mapped into memory.

The package safetensors reads them into memory of one process. A linear model of two thousand
categories is some hundred megabytes, which the workers of one machine should share.

Format: https://huggingface.co/docs/safetensors, the size of the head in 8 bytes, the head in JSON,
the arrays one behind the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I32": np.dtype("<i4"),
}


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
