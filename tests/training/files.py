"""What the stages are given in tests: files of offers, and somebody to talk to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from classifier.offer import Offer


def say(line: str) -> None:
    """Listens to a stage, which says one line at a time."""
    assert "\n" not in line


def write(path: Path, rows: Iterable[tuple[Offer, str | None]]) -> Path:
    """JSONL of offers and their labels."""
    lines = [
        msgspec.json.encode(msgspec.to_builtins(offer) | {"label": label}) for offer, label in rows
    ]
    path.write_bytes(b"\n".join(lines))
    return path
