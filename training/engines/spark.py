"""Spark: the sampling plan for a lake that outgrows one machine."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.lake import Lake
from training.sampling import FIELDS, Dialect
from training.stage import StageError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 16_384


class SparkEngine:
    """One directory of Parquet files a table, in `parts`; a table is there when it is whole.

    Takes the Spark session that is there, as `spark-submit` makes one, or starts one here with
    `threads` cores and `memory`. On a cluster, `parts` must be where all of its machines see it.
    """

    dialect: Dialect = "spark"

    def __init__(self, lake: Lake, parts: Path, memory: str, threads: int) -> None:
        try:
            sql = importlib.import_module("pyspark.sql")
        except ModuleNotFoundError as error:
            raise StageError(
                f"Spark needs {error.name}: pip install 'offer-classifier[spark]'"
            ) from None
        self._errors: tuple[type[Exception], ...] = (
            importlib.import_module("pyspark.errors").PySparkException,
            importlib.import_module("py4j.protocol").Py4JError,
        )
        self._parts = parts
        builder = (
            sql.SparkSession.builder.appName("offer-classifier")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
        )
        if sql.SparkSession.getActiveSession() is None:
            builder = (
                builder.master(f"local[{threads}]")
                .config("spark.driver.memory", memory.upper().removesuffix("B"))
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.sql.shuffle.partitions", str(2 * threads))
            )
        try:
            self._session: Any = builder.getOrCreate()
            self._open_lake(lake)
            for table in sorted(parts.glob("*.spark")):
                if (table / "_SUCCESS").exists():
                    self._show(table.stem)
        except (*self._errors, RuntimeError, OSError) as error:
            raise StageError(f"{lake.where}: {_first_line(error)}") from error

    def _open_lake(self, lake: Lake) -> None:
        functions = importlib.import_module("pyspark.sql.functions")
        reader = self._session.read
        files = [unmagic(name) for name in lake_files(lake)]
        if lake.format == "parquet":
            frame = reader.option("mergeSchema", "true").parquet(*files)
        else:
            fields = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
            frame = reader.schema(fields).option("mode", "FAILFAST").json(files)
        if "offer_id" not in frame.columns:
            raise StageError(f"{lake.where}: has no column offer_id")
        frame.select(
            [
                (functions.col(name) if name in frame.columns else functions.lit(None))
                .cast(kind.lower())
                .alias(name)
                for name, kind in FIELDS.items()
            ]
        ).createOrReplaceTempView("files")

    def show(self, view: str, select: str) -> None:
        try:
            self._session.sql(select).createOrReplaceTempView(view)
        except self._errors as error:
            raise StageError(f"sampling, {view}: {_first_line(error)}") from error

    def _show(self, table: str) -> None:
        place = unmagic(local(self._parts / f"{table}.spark"))
        self._session.read.parquet(place).createOrReplaceTempView(table)

    def has(self, table: str) -> bool:
        return (self._parts / f"{table}.spark" / "_SUCCESS").exists()

    def put(self, table: str, rows: pa.Table) -> None:
        import pyarrow.parquet as pq

        place = self._parts / f"{table}.spark"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        pq.write_table(rows, place / "rows.parquet")
        (place / "_SUCCESS").touch()
        self._show(table)

    def make(self, table: str, select: str) -> None:
        place = self._parts / f"{table}.spark"
        try:
            self._session.sql(select).write.mode("overwrite").parquet(local(place))
            self._show(table)
        except self._errors as error:
            raise StageError(f"sampling, {table}: {_first_line(error)}") from error

    def rows(self, select: str) -> list[tuple[object, ...]]:
        try:
            return [tuple(row) for row in self._session.sql(select).collect()]
        except self._errors as error:
            raise StageError(f"sampling: {_first_line(error)}") from error

    def batches(self, select: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:

        try:
            rows: list[Any] = []
            # A partition at a time, so that the driver need not hold the set.
            for row in self._session.sql(select).toLocalIterator():
                rows.append(row)
                if len(rows) == BATCH:
                    yield _batch(rows, columns)
                    rows = []
            if rows:
                yield _batch(rows, columns)
        except self._errors as error:
            raise StageError(f"sampling: {_first_line(error)}") from error

    def close(self) -> None:
        # The session stays: it may be another's, and to start one takes seconds.
        for view in ("files", "lake"):
            self._session.catalog.dropTempView(view)


def local(path: Path) -> str:
    """A file of this machine as Hadoop names it: without a scheme it is one of the cluster's own
    file system, HDFS for one.
    """
    return f"file://{path.absolute()}"


def lake_files(lake: Lake) -> list[str]:
    """The lake's files as Hadoop names them, by the scheme that the lake was given by.

    To fsspec s3:// and s3a:// are one; Hadoop has a connector for the second alone.
    """
    if lake.protocol == "file":
        return [local(Path(name)) for name in lake.files]
    scheme = lake.where.partition("://")[0]
    return [f"{scheme}://{name.partition('://')[2]}" for name in lake.files]


def unmagic(name: str) -> str:
    """The name as a glob that no other file has: what means something in one is escaped."""
    return re.sub(r"[*?\[\]{}]", r"\\\g<0>", name)


def _first_line(error: Exception) -> str:
    """What went wrong, without the calls that led there."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # An error of Java's own: the first line names a call, the second begins with a colon.
    return lines[1].lstrip(": ") if lines[1:] and lines[1].startswith(":") else lines[0]


def _batch(rows: list[Any], columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [pa.array([row[i] for row in rows]) for i in range(len(columns))], names=list(columns)
    )
