"""The trace: in which order writes, dead letters and commits passed between the workers and the
servers, as the proxies between them saw it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_PARTITION_SHIFT, _KIND_SHIFT = 44, 60
_OFFSET_MASK = (1 << _PARTITION_SHIFT) - 1
_PARTITION_MASK = (1 << (_KIND_SHIFT - _PARTITION_SHIFT)) - 1


class Kind(IntEnum):
    """What passed."""

    WRITTEN = 1
    """MongoDB's acknowledgement of the event at this place went to a worker."""
    SET_ASIDE = 2
    """Kafka's acknowledgement of the dead letter of the record at this place went to a worker."""
    COMMIT = 3
    """A worker's request to commit this offset went to Kafka."""


class Step(NamedTuple):
    kind: Kind
    partition: int
    offset: int


class Trace:
    """Appended to by one thread; eight bytes a step."""

    def __init__(self) -> None:
        self._steps = array("Q")
        self.committed: dict[int, int] = {}
        """What Kafka has acknowledged last, by partition."""

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        for packed in self._steps:
            yield Step(
                Kind(packed >> _KIND_SHIFT),
                packed >> _PARTITION_SHIFT & _PARTITION_MASK,
                packed & _OFFSET_MASK,
            )

    def add(self, kind: Kind, partition: int, offset: int) -> None:
        self._steps.append(kind << _KIND_SHIFT | partition << _PARTITION_SHIFT | offset)

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            self._steps.tofile(file)

    @classmethod
    def load(cls, path: Path) -> Trace:
        trace = cls()
        trace._steps.frombytes(path.read_bytes())
        return trace
