"""Spark, with the plan that sqlglot translates, chooses the very offers that DuckDB chooses."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import fsspec  # type: ignore[import-untyped, unused-ignore]
import pytest

from tests.training import lakes
from training.engines.spark import lake_files, local, unmagic
from training.lake import Lake, open_lake
from training.production import Production
from training.stage import StageError

HAS_SPARK = importlib.util.find_spec("pyspark") is not None
needs_spark = pytest.mark.skipif(
    not (HAS_SPARK and shutil.which("java")), reason="needs pyspark ([spark]) and a Java"
)


def made() -> list[dict[str, str | None]]:
    """Offers with all that the two engines might see differently."""
    rows = lakes.rows(500)
    dirty = [
        "Größe 42 für Mädchen",
        "GR&Ouml;SSE 42 f&uuml;r M&auml;dchen",
        "Gr&amp;ouml;&amp;szlig;e 42 &lt;b&gt;neu&lt;/b&gt;",
        "İSTANBUL Çay 500 g",
        "ΟΔΥΣΣΕΥΣ οδυσσεύς",
        "Ключ гаечный № 5",
        "鍵 キー",
        "a 'quoted' \\ back\\slashed \"title\"",
        "line\nbreak\ttab\u00a0space",
        "😀 smile",
        "e\u0301clair éclair",
        "",
        None,
    ]
    for number, title in enumerate(dirty * 3):
        rows.append(
            {
                "offer_id": f"d{number}",
                "title": title,
                "description": f"Die Beschreibung {number % 5}" if number % 2 else None,
                "label": "abc"[number % 3] if number % 4 else None,
                "shop_id": f"shop {number % 4}",
                "language": "de",
                "category_path": "A > 'B' \\ C",
            }
        )
    # Some texts of two labels.
    rows += [{**row, "offer_id": f"x{i}", "label": "a"} for i, row in enumerate(rows[1:40])]
    return rows


def far(where: str, *files: str) -> Lake:
    """A lake of a store that nothing here reaches."""
    protocol = files[0].partition("://")[0]
    return Lake(where, protocol, files, "parquet", "", None, where.partition("://")[2])


def test_lake_s_files_keep_the_scheme_that_they_were_given_by() -> None:
    # To fsspec both are s3://, and Hadoop has a connector for s3a:// alone.
    found = ("s3://bucket/offers/1.parquet", "s3://bucket/offers/2.parquet")
    given_s3a = lake_files(far("s3a://bucket/offers", *found))
    assert given_s3a == ["s3a://bucket/offers/1.parquet", "s3a://bucket/offers/2.parquet"]
    assert lake_files(far("s3://bucket/offers", *found)) == list(found)
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe("/lake/1.parquet", b"")
        assert lake_files(open_lake("memory://lake")) == ["memory:///lake/1.parquet"]
    finally:
        memory.rm("/lake", recursive=True)


@pytest.mark.parametrize("prefix", ["", "file://", "local://"])
def test_files_of_this_machine_are_none_of_the_cluster_s(tmp_path: Path, prefix: str) -> None:
    lakes.write(tmp_path / "lake" / "offers[1].parquet", lakes.rows(3))
    lake = open_lake(f"{prefix}{tmp_path}/lake")
    assert lake_files(lake) == [f"file://{tmp_path}/lake/offers[1].parquet"]
    assert unmagic(lake_files(lake)[0]).endswith(r"/offers\[1\].parquet")


def test_tables_of_a_run_lie_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert local(Path("sets/parts")) == f"file://{tmp_path}/sets/parts"


@needs_spark
@pytest.mark.timeout(600)
# Spark's own: sockets that it leaves to the end of the process, and its use of pandas' old names.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_spark_and_duckdb_draw_the_same_sets(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c", "d")
    production = Production({"a": 70, "b": 20, "c": 9, "d": 1}, {"gone": 3})
    parameters = lakes.SMALL.model_copy(update={"threads": 2})
    lake = lakes.write(tmp_path / "lake" / "offers[1]{a}.parquet", made()).parent
    newer = [{**row, "title": f"newer {row['title']}", "revision": 1} for row in made()[100:140]]
    lakes.write(lake / "offers1.parquet", newer)
    for engine in ("duckdb", "spark"):
        lakes.draw(tmp_path / engine, lake, known, parameters, production, engine=engine)
    duck, spark = (lakes.files(tmp_path / name) for name in ("duckdb", "spark"))
    assert duck.keys() == spark.keys()
    assert len(duck) == 8
    for name, content in duck.items():
        assert content == spark[name], name
    drawn = json.loads(duck["dataset.json"])["sets"]
    assert all(each["drawn"] >= 10 for each in drawn.values())
    for name in ("broken.parquet", "broken.jsonl"):
        (tmp_path / name).write_bytes(b"PAR1 but not really")
        with pytest.raises(StageError, match=name) as caught:
            lakes.draw(tmp_path / "broken", tmp_path / name, known, parameters, engine="spark")
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(HAS_SPARK, reason="pyspark is installed")
def test_missing_spark_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    lake = lakes.write(tmp_path / "lake.parquet", lakes.rows(10))
    with pytest.raises(StageError, match=r"Spark needs pyspark: pip install .*\[spark\]"):
        lakes.draw(tmp_path, lake, lakes.taxonomy("a", "b", "c"), engine="spark")
