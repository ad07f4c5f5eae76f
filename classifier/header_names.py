"""Header names that are not UTF-8: Kafka carries them, and the client stops for good at the first.

aiokafka decodes the names of record headers strictly, deep in its compiled reader. One such name in
one record would keep a whole partition from being read. Its reader in Python can be taught better;
that costs some microseconds a record, so it is used only once such a name was met.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy

MAGIC_VERSION = 2
"""The message format since Kafka 0.11; older ones have no headers."""


def tolerate() -> None:
    """From now on, in this process, replacement characters stand for what is not UTF-8."""
    fetcher.MemoryRecords = _Records


def is_to_blame(error: BaseException) -> bool:
    """Whether a fetch failed by such a name."""
    return isinstance(error, UnicodeDecodeError) or isinstance(error.__cause__, UnicodeDecodeError)


class _Buffer(bytearray):
    """Bytes whose pieces are decoded without an error."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        return _Buffer(found) if isinstance(index, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, errors)


class _Batch(_DefaultRecordBatchPy):  # type: ignore[misc]  # untyped base
    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer: bytearray = _Buffer(self._buffer)


class _Records(_MemoryRecordsPy):  # type: ignore[misc]  # untyped base
    def next_batch(self) -> Any:
        piece = self._next_slice
        if piece is None or len(piece) < self.MIN_SLICE or piece[self.MAGIC_OFFSET] < MAGIC_VERSION:
            return super().next_batch()
        self._cache_next()
        return _Batch(piece)
