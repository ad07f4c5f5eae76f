"""Files in any state stop no start, and what can be read of them stays counted."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier import metrics
from tests.classifier.exposition import samples


def spoil(path: Path, place: int, bytes_: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes_)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, 500, 4_096, 70_001])
@pytest.mark.parametrize("kind", ["counter", "histogram"])
def test_a_file_that_was_cut_stops_no_start(tmp_path: Path, kind: str, size: int) -> None:
    metrics.for_worker(0, tmp_path).offers.inc("classified", 7)
    os.truncate(tmp_path / f"{kind}_0.db", size)
    counted = metrics.for_worker(0, tmp_path)
    kept = counted.offers.value("classified")
    # The first series of the file outlives a cut behind it.
    assert kept == 7 if kind == "histogram" or size >= 500 else kept in (0, 7)
    counted.offers.inc("classified", 1)
    counted.score.observe(0.5)
    shown = samples(metrics.scrape(tmp_path))
    assert shown["classifier_offers_total", "classified"] == kept + 1


@given(
    spoils=st.lists(
        st.tuples(st.integers(0, 3_000), st.binary(min_size=1, max_size=64)), max_size=8
    ),
    size=st.none() | st.integers(0, 5_000),
)
def test_no_bytes_in_the_files_stop_a_start_or_spoil_a_scrape(
    tmp_path_factory: pytest.TempPathFactory,
    spoils: list[tuple[int, bytes]],
    size: int | None,
) -> None:
    directory = tmp_path_factory.mktemp("run")
    counted = metrics.for_worker(0, directory)
    counted.offers.inc("classified", 7)
    for kind in ("counter", "histogram"):
        for place, bytes_ in spoils:
            spoil(directory / f"{kind}_0.db", place, bytes_)
        if size is not None:
            os.truncate(directory / f"{kind}_0.db", size)
    counted = metrics.for_worker(0, directory)
    before = counted.offers.value("removed")
    counted.offers.inc("removed", 5)
    counted.score.observe_many([0.5])
    assert 0 <= before < math.inf
    assert counted.offers.value("removed") == before + 5
    for value in samples(metrics.scrape(directory)).values():
        assert 0 <= value < math.inf


def test_a_value_that_is_no_count_starts_over_and_its_neighbours_stay(tmp_path: Path) -> None:
    counted = metrics.for_worker(0, tmp_path)
    counted.offers.inc("classified", 7)
    counted.offers.inc("removed", 3)
    data = (tmp_path / "counter_0.db").read_bytes()
    spoil(tmp_path / "counter_0.db", data.index(struct.pack("d", 7)), struct.pack("d", math.nan))
    counted = metrics.for_worker(0, tmp_path)
    assert counted.offers.value("classified") == 0
    assert counted.offers.value("removed") == 3


def test_a_full_disk_is_an_error_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        metrics.for_worker(0, tmp_path)


def test_the_files_have_their_room_from_the_start(tmp_path: Path) -> None:
    counted = metrics.for_worker(0, tmp_path)
    sizes = {path.name: path.stat() for path in tmp_path.iterdir()}
    assert all(stat.st_blocks * 512 >= stat.st_size for stat in sizes.values())
    counted.predictions.inc_many(f"category-{number}" for number in range(2_500))
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        name: stat.st_size for name, stat in sizes.items()
    }
