"""The ledger: every record that Kafka acknowledged, on disk, with what must become of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["offer", "tombstone", "bad", "empty"]


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One acknowledged record.

    `expected` is the category of an offer (empty where its text is not one that was asked before)
    and the reason of a bad record; `digest` is the SHA-256 of a bad record's value.
    """

    partition: int
    offset: int
    timestamp: int
    kind: Kind
    offer_id: str = ""
    revision: int | None = None
    expected: str = ""
    digest: str = ""

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Of two offers of one id the one with the higher order is newer."""
        revision = -1 if self.revision is None else self.revision
        return revision, self.timestamp, self.offset, self.partition


class Ledger:
    """Written as acknowledgements come, so that it says what was acknowledged, whatever dies."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()
        self.ends: dict[int, int] = {}
        """One past the last acknowledged record of each partition."""
        self.count = 0

    def acknowledged(self, entries: list[Entry]) -> None:
        if entries:
            self._file.write(self._encoder.encode_lines(entries))
        for entry in entries:
            self.ends[entry.partition] = max(self.ends.get(entry.partition, 0), entry.offset + 1)
        self.count += len(entries)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Entry]:
    """The entries of a ledger, in the order of their acknowledgements; a torn last line is none."""
    decoder = msgspec.json.Decoder(Entry)
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield decoder.decode(line)
