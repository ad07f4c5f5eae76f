"""Attempts: how long a stage took over all its runs, those that were killed included.

A run that was killed counts as far as the last part that it finished, since the next one goes on
from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from training.stage import PARTS, Record, read_record, write_json

FILE = "attempts.json"


class _Attempts(msgspec.Struct):
    started: float | None = None  # of the run that has not finished, in seconds since 1970
    spent: dict[str, float] = {}  # seconds of unfinished runs, by the name of their parts


def attempt(place: Path, out: Path, make: Callable[[], Record]) -> Record:
    """Runs the stage in `out`; `place`/attempts.json keeps the time."""
    file = place / FILE
    place.mkdir(parents=True, exist_ok=True)
    known = _read(file)
    if known.started is not None:
        for parts in _parts(out):
            last = max((path.stat().st_mtime for path in parts.rglob("*")), default=0.0)
            lost = max(0.0, last - known.started)
            known.spent[parts.name] = known.spent.get(parts.name, 0.0) + lost
    before = read_record(out)
    known.started = time.time()
    write_json(file, known)
    record = make()
    known.started = None
    if record != before:
        name = record.fingerprint[:16]
        known.spent = {name: known.spent[name]} if name in known.spent else {}
    write_json(file, known)
    return record


def seconds(place: Path, record: Record) -> float:
    """Of the stage with that record, over all its runs."""
    return _read(place / FILE).spent.get(record.fingerprint[:16], 0.0) + record.seconds


def _read(file: Path) -> _Attempts:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Attempts)
    except (FileNotFoundError, msgspec.DecodeError):
        return _Attempts()


def _parts(out: Path) -> list[Path]:
    return [path for path in (out / PARTS).glob("*") if path.is_dir()]
