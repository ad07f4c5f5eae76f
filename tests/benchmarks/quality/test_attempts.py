"""How long a stage took, over runs that were killed and the one that was not."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from benchmarks.quality import attempts
from benchmarks.quality.attempts import attempt, seconds
from training.stage import Record, write_json


def record(fingerprint: str = "f" * 64, took: float = 60.0) -> Record:
    return Record("student", fingerprint, {}, {}, {}, {}, took)


def killed(place: Path, started: float, parts: str, last: float) -> None:
    """What a run leaves that began at `started` and was killed after its part of `last`."""
    write_json(
        place / attempts.FILE,
        msgspec.json.decode((place / attempts.FILE).read_bytes()) | {"started": started}
        if (place / attempts.FILE).exists()
        else {"started": started},
    )
    part = place / "model" / "parts" / parts / "checkpoint-1"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    os.utime(part, (last, last))


def finishing(place: Path, made: Record) -> Record:
    (place / "model").mkdir(parents=True, exist_ok=True)
    write_json(place / "model" / "stage.json", made)
    return made


def test_killed_runs_count_as_far_as_their_last_part(tmp_path: Path) -> None:
    name = "f" * 16
    killed(tmp_path, 1_000.0, name, 1_300.0)
    with pytest.raises(KeyboardInterrupt):
        attempt(tmp_path, tmp_path / "model", lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    killed(tmp_path, 5_000.0, name, 5_020.0)
    made = attempt(tmp_path, tmp_path / "model", lambda: finishing(tmp_path, record()))
    assert seconds(tmp_path, made) == pytest.approx(300 + 20 + 60)
    # Done already: nothing is added.
    assert attempt(tmp_path, tmp_path / "model", lambda: made) == made
    assert seconds(tmp_path, made) == pytest.approx(380)


def test_run_that_was_killed_before_its_first_part_counts_nothing(tmp_path: Path) -> None:
    killed(tmp_path, 9_000.0, "f" * 16, 100.0)
    made = attempt(tmp_path, tmp_path / "model", lambda: finishing(tmp_path, record()))
    assert seconds(tmp_path, made) == 60


def test_runs_of_other_inputs_do_not_count(tmp_path: Path) -> None:
    killed(tmp_path, 1_000.0, "a" * 16, 1_300.0)
    made = attempt(tmp_path, tmp_path / "model", lambda: finishing(tmp_path, record()))
    assert seconds(tmp_path, made) == 60
    again = attempt(
        tmp_path, tmp_path / "model", lambda: finishing(tmp_path, record("b" * 64, 30.0))
    )
    assert seconds(tmp_path, again) == 30
