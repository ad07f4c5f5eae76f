"""DuckDB says how far it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from classifier.progress import Show
from tests.training import lakes
from training.engines import duck
from training.lake import open_lake


def test_table_in_the_making_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def bar(what: str) -> Iterator[Show]:
        yield lambda share, rows, note: shown.append((what, share))

    monkeypatch.setattr(duck, "bar", bar)
    monkeypatch.setattr(duck, "LOOK_SECONDS", 0.01)
    lake = lakes.write(tmp_path / "lake.parquet", lakes.rows(10))
    engine = duck.DuckEngine(open_lake(str(lake)), tmp_path, "1GB", 1)
    engine.make(
        "hashes", "SELECT MD5(CAST(i AS VARCHAR)) AS h FROM range(500000) AS r(i) ORDER BY h"
    )
    engine.close()
    assert {what for what, _ in shown} == {"hashes"}
    shares = [share for _, share in shown]
    assert len(set(shares)) > 2
    assert 0 < min(shares) < max(shares) <= 1
