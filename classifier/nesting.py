"""How deep JSON nests, told without decoding it: before a decoder runs out of stack."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

# A string without an end runs to the end of the value: looking for the end from each of its escaped
# quotes anew would take hours for a megabyte.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_STEPS: Final = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def is_deeper(value: bytes, levels: int) -> bool:
    """Whether brackets outside strings nest deeper than `levels`; of any bytes whatever.

    In time that grows with the length alone.
    """
    if value.count(b"[") + value.count(b"{") <= levels:
        return False
    steps = _STEPS[np.frombuffer(_STRING.sub(b"", value), dtype=np.uint8)]
    return int(steps.cumsum(dtype=np.int32).max(initial=0)) > levels
