"""Given sets: files that somebody else has split, brought into the form that every stage reads.

For a public benchmark, or a site's own frozen sets. The rows are taken as they are, only sorted, so
that nothing later depends on a file's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from classifier import jsonl
from classifier.offer import Offer
from classifier.whole_file import appearing
from training import stage
from training.lake import schema
from training.sampling import COLUMNS
from training.stage import Stage, StageError

SETS = ("train", "validation", "test")


class _Row(Offer, frozen=True, gc=False):
    label: str | None = None
    subcategory: str | None = None
    cluster: str | None = None
    source: str | None = None


def make(files: Mapping[str, Path], out: Path) -> stage.Record:
    """Writes train.parquet, validation.parquet and test.parquet of JSONL files, gzipped or not.

    Every row needs an `offer_id` and a `label`. Raises StageError when one lacks it, when an offer
    stands twice in a set or in two of them, and FileError.
    """
    run = Stage("given", out, None, stage.hash_inputs(files))
    if record := run.done():
        return record
    run.begin()
    seen: dict[str, str] = {}
    rows: dict[str, list[_Row]] = {}
    for name in SETS:
        rows[name] = sorted(_rows(files[name]), key=lambda row: row.offer_id)
        for row in rows[name]:
            if other := seen.get(row.offer_id):
                where = f"twice in {name}" if other == name else f"in {other} and in {name}"
                raise StageError(f"{files[name]}: offer {row.offer_id!r} is {where}")
            seen[row.offer_id] = name
    trained = {row.label for row in rows["train"]}
    results = {}
    for name in SETS:
        results[f"{name}.parquet"] = path = out / f"{name}.parquet"
        table = pa.Table.from_pylist([_columns(row) for row in rows[name]], schema=schema())
        with appearing(path) as file:
            pq.write_table(table, file, compression="zstd")
    summary = {
        "labels": len(trained),
        "labels_without_training": len(
            {row.label for name in SETS for row in rows[name]} - trained
        ),
        **{name: len(rows[name]) for name in SETS},
    }
    return run.finish(summary, results)


def _rows(path: Path) -> Iterator[_Row]:
    decoder = msgspec.json.Decoder(_Row)
    number = 0
    for number, line in enumerate(jsonl.read(path), start=1):
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StageError(f"{path}, row {number}: no offer: {error}") from error
        if row.label is None or not row.label.strip():
            raise StageError(f"{path}, row {number}: has no label")
        yield row
    if not number:
        raise StageError(f"{path} has no row")


def _columns(row: _Row) -> dict[str, str | None]:
    return {name: getattr(row, name) for name in COLUMNS}
