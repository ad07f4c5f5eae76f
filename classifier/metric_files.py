"""The files of one slot's metrics, in prometheus_client's multiprocess format.

They outlive the workers that write them, so a worker finds what the last one in its slot left, in
whatever state a crash or a full disk left it.
"""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path

# Space for the values, taken from the disk at the start: a page that the disk cannot back when it
# is first written kills the process (SIGBUS), a failed allocation is an error with a name.
_COUNTER_BYTES = 1 << 20
_HISTOGRAM_BYTES = 1 << 18


def mend(slot: int, directory: Path) -> dict[str, list[str]]:
    """Make the slot's files whole, with room; give the label values that are in use, by metric.

    Of a file that was cut or spoiled, what can still be read is kept. Metrics of one label alone
    are given. Raises OSError where the directory has no room for the files.
    """
    known: dict[str, list[str]] = {}
    for kind, size in (("counter", _COUNTER_BYTES), ("histogram", _HISTOGRAM_BYTES)):
        for key in _mend_file(directory / f"{kind}_{slot}.db", size):
            name, _, labels, _ = json.loads(key)
            if len(labels) == 1:
                known.setdefault(name, []).extend(labels.values())
    return known


def _mend_file(path: Path, size: int) -> list[str]:
    """Make the file whole and at least `size` bytes long; give the keys it holds.

    The format is prometheus_client's: how many bytes are used (4 bytes, native) and 4 of padding,
    then entries of a key's length (4 bytes), the key padded to 8, a value and a timestamp (two
    doubles). The walk ends before the first entry that makes no sense; what follows is given up.
    """
    keys: list[str] = []
    path.touch(mode=0o600)
    with path.open("r+b", buffering=0) as file:
        data = bytearray(file.read())
        said = struct.unpack_from("i", data)[0] if len(data) >= 8 else 0
        used, place = min(said, len(data)), 8
        while place + 4 <= used:
            length = struct.unpack_from("i", data, place)[0]
            value_at = place + 4 + length + (8 - (length + 4) % 8)
            if length <= 0 or value_at + 16 > used:
                break
            try:
                key = data[place + 4 : place + 4 + length].decode()
                name, _, labels, _ = json.loads(key)
                sound = isinstance(name, str) and isinstance(labels, dict)
            except ValueError:
                sound = False
            if not sound:
                break
            if not 0 <= struct.unpack_from("d", data, value_at)[0] < math.inf:
                file.seek(value_at)
                file.write(bytes(16))
            keys.append(key)
            place = value_at + 16
        if place != said:
            file.seek(0)
            file.write(struct.pack("ii", place, 0))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(size, len(data)))
        else:  # macOS: sparse
            os.truncate(file.fileno(), max(size, len(data)))
    return keys
