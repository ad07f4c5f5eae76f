"""What runs the sampling plan: DuckDB on one machine, Spark on many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from training.lake import Lake
    from training.sampling import Dialect

Name = Literal["duckdb", "spark"]


class SqlEngine(Protocol):
    """Runs statements over tables, and keeps the tables over a kill."""

    dialect: Dialect

    def has(self, table: str) -> bool:
        """Whether an earlier run made the table, whole."""

    def put(self, table: str, rows: pa.Table) -> None:
        """Makes a small table of rows."""

    def show(self, view: str, select: str) -> None:
        """Makes a view, which is gone with the run. Raises StageError."""

    def make(self, table: str, select: str) -> None:
        """Makes the table that the SELECT gives, whole or not at all. Raises StageError."""

    def rows(self, select: str) -> list[tuple[object, ...]]:
        """The rows of a small answer. Raises StageError."""

    def batches(self, select: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """A large answer in its order, in batches of any size. Raises StageError."""

    def close(self) -> None:
        """Lets go of everything."""


def start(engine: Name, lake: Lake, parts: Path, memory: str, threads: int) -> SqlEngine:
    """The engine, with the lake's rows as `files`, of sampling.FIELDS. Raises StageError."""
    if engine == "duckdb":
        from training.engines.duck import DuckEngine

        return DuckEngine(lake, parts, memory, threads)
    from training.engines.spark import SparkEngine

    return SparkEngine(lake, parts, memory, threads)
