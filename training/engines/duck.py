"""DuckDB: the sampling plan on one machine, out of core."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from classifier.progress import bar
from training.lake import Lake
from training.sampling import FIELDS, Dialect
from training.stage import StageError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH: Final = 16_384

# A line of JSON that is longer is no offer.
LINE_BYTES: Final = 8 * 1024 * 1024

LOOK_SECONDS: Final = 0.2  # between two looks at how far a statement is


class DuckEngine:
    """One database file in `parts`, in which every finished table survives a kill."""

    dialect: Dialect = "duckdb"

    def __init__(self, lake: Lake, parts: Path, memory: str, threads: int) -> None:
        path = parts / "sampling.duckdb"
        try:
            self._connection = _open(path)
            self._connection.execute(f"SET memory_limit = '{memory}'")
        except duckdb.Error as error:
            raise StageError(f"{path}: {_one_line(error)}") from error
        self._connection.execute(f"SET threads = {threads}")
        self._connection.execute("SET preserve_insertion_order = false")
        # It counts how far it is, and shows nothing by itself.
        self._connection.execute("SET enable_progress_bar = true")
        self._connection.execute("SET enable_progress_bar_print = false")
        if lake.protocol != "file":
            self._connection.register_filesystem(lake.system)
        try:
            self._open_lake(lake)
        except duckdb.Error as error:
            raise StageError(f"{lake.where}: {_one_line(error)}") from error

    def _open_lake(self, lake: Lake) -> None:
        files = ", ".join(_quoted(_unmagic(name)) for name in lake.files)
        if lake.format == "parquet":
            source = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
            there = {
                str(row[0])
                for row in self._connection.execute(f"DESCRIBE FROM {source}").fetchall()
            }
        else:
            columns = ", ".join(f"{name}: '{kind}'" for name, kind in FIELDS.items())
            source = (
                f"read_json([{files}], format = 'newline_delimited', columns = {{{columns}}},"
                f" maximum_object_size = {LINE_BYTES}, hive_partitioning = false)"
            )
            there = set(FIELDS)
        if "offer_id" not in there:
            raise StageError(f"{lake.where}: has no column offer_id")
        select = ", ".join(
            f"CAST({name if name in there else 'NULL'} AS {kind}) AS {name}"
            for name, kind in FIELDS.items()
        )
        self._connection.execute(
            f"CREATE OR REPLACE TEMP VIEW files AS SELECT {select} FROM {source}"  # noqa: S608
        )

    def has(self, table: str) -> bool:
        return bool(self.rows(f"SELECT 1 FROM duckdb_tables() WHERE table_name = '{table}'"))  # noqa: S608

    def put(self, table: str, rows: pa.Table) -> None:
        self._connection.register("given", rows)
        self._connection.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM given")  # noqa: S608
        self._connection.unregister("given")

    def show(self, view: str, select: str) -> None:
        try:
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {select}")
        except duckdb.Error as error:
            raise StageError(f"sampling, {view}: {_one_line(error)}") from error

    def make(self, table: str, select: str) -> None:
        try:
            with self._progress(table):
                self._connection.execute(f"CREATE OR REPLACE TABLE {table} AS {select}")
        except duckdb.Error as error:
            raise StageError(f"sampling, {table}: {_one_line(error)}") from error

    def rows(self, select: str) -> list[tuple[object, ...]]:
        try:
            return self._connection.execute(select).fetchall()
        except duckdb.Error as error:
            raise StageError(f"sampling: {_one_line(error)}") from error

    def batches(self, select: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._connection.sql(select).to_arrow_reader(BATCH)
        except duckdb.Error as error:
            raise StageError(f"sampling: {_one_line(error)}") from error

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _progress(self, table: str) -> Iterator[None]:
        """A bar, for a person at a terminal, as far as DuckDB can tell."""
        ended = threading.Event()
        with bar(table) as show:

            def look() -> None:
                while not ended.wait(LOOK_SECONDS):
                    percent = self._connection.query_progress()
                    if percent > 0:  # -1 where it cannot tell
                        show(percent / 100, 0, "")

            looking = threading.Thread(target=look, daemon=True)
            looking.start()
            try:
                yield
            finally:
                ended.set()
                looking.join()


def _open(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        return duckdb.connect(path)
    except duckdb.Error as error:
        if "could not set lock" in str(error).lower():
            raise StageError(f"{path}: another run is at work there") from None
        # Torn by whatever ended the run before this one; nothing in it cannot be made again.
        for torn in (path, path.with_name(f"{path.name}.wal")):
            torn.unlink(missing_ok=True)
        return duckdb.connect(path)


def _unmagic(name: str) -> str:
    """The file's name as a glob that no other has: each letter that means something in brackets."""
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _one_line(error: Exception) -> str:
    """What was wrong, without DuckDB's hints at options of its own, which nobody can set here."""
    return re.split(r"\s(?:Try|LINE \d+:)\s?", " ".join(str(error).split()), maxsplit=1)[0]
