"""Given sets come through as they are, in an order that the files' order has no part in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from training import given
from training.sampling import COLUMNS
from training.stage import StageError


def row(offer_id: str, **fields: object) -> str:
    return json.dumps({"offer_id": offer_id, "title": offer_id, "label": "kettles", **fields})


def files(folder: Path, **sets: list[str]) -> dict[str, Path]:
    paths = {}
    for name in given.SETS:
        paths[name] = folder / f"{name}.jsonl"
        rows = sets.get(name, [row(f"{name}-1")])
        paths[name].write_text("\n".join(rows) + "\n")
    return paths


def test_rows_come_through_sorted_with_what_evaluation_slices_by(tmp_path: Path) -> None:
    rows = [row("b", source="shop", cluster="c1", price=3), row("a", language="de", label="tents")]
    out = tmp_path / "out"
    record = given.make(files(tmp_path, test=rows), out)
    written = pq.read_table(out / "test.parquet")
    assert written.column_names == list(COLUMNS)
    first, second = written.to_pylist()
    assert (first["offer_id"], first["label"], first["language"]) == ("a", "tents", "de")
    assert (second["source"], second["cluster"], second["subcategory"]) == ("shop", "c1", None)
    assert record.summary == {
        "labels": 1,
        "labels_without_training": 1,
        "train": 1,
        "validation": 1,
        "test": 2,
    }


def test_order_and_packing_of_the_files_change_no_byte(tmp_path: Path) -> None:
    rows = [row(str(number)) for number in range(20)]
    given.make(files(tmp_path, train=rows), tmp_path / "one")
    paths = files(tmp_path)
    paths["train"] = tmp_path / "train.jsonl.gz"
    paths["train"].write_bytes(gzip.compress("\n".join(reversed(rows)).encode()))
    given.make(paths, tmp_path / "other")
    one, other = ((tmp_path / name / "train.parquet").read_bytes() for name in ("one", "other"))
    assert one == other


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"test": ['{"offer_id":"a"}']}, "test.jsonl, row 1: has no label"),
        ({"test": [row("a"), "{"]}, "test.jsonl, row 2: no offer"),
        ({"test": [row("a", title=3)]}, "test.jsonl, row 1: no offer"),
        ({"test": []}, "test.jsonl has no row"),
        ({"test": [row("a"), row("a")]}, "offer 'a' is twice in test"),
        ({"test": [row("train-1")]}, "offer 'train-1' is in train and in test"),
    ],
)
def test_sets_that_cannot_be_trusted_are_refused(
    tmp_path: Path, sets: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(StageError, match=said):
        given.make(files(tmp_path, **sets), tmp_path / "out")


def test_done_once(tmp_path: Path) -> None:
    paths = files(tmp_path)
    record = given.make(paths, tmp_path / "out")
    before = (tmp_path / "out" / "test.parquet").stat().st_mtime_ns
    assert given.make(paths, tmp_path / "out") == record
    assert (tmp_path / "out" / "test.parquet").stat().st_mtime_ns == before
