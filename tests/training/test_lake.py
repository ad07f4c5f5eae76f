"""The sample lake has what a lake has, the same for a seed; any lake is found and told apart."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from classifier.sample import offers
from tests.training import lakes
from training import taxonomy
from training.lake import make_sample, open_lake
from training.parameters import LakeParameters
from training.production import read
from training.sampling import COLUMNS
from training.stage import StageError

SMALL = LakeParameters(offers=4_000, seed=2)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lake")
    make_sample(SMALL, out, print)
    return out


def rows(lake: Path) -> list[dict[str, str | None]]:
    found: list[dict[str, str | None]] = pq.read_table(sorted(lake.glob("*.parquet"))).to_pylist()
    return found


def test_sample_lake_holds_the_catalogue_s_offers(sample: Path) -> None:
    made = rows(sample)
    assert list(made[0]) == list(COLUMNS)
    expected = [offer for offer, _ in offers(2, 4_000)]
    for field in ("offer_id", "shop_id", "language", "title", "description", "brand"):
        assert [row[field] for row in made] == [getattr(offer, field) for offer in expected]


def test_sample_lake_is_labelled_by_shop_and_category(sample: Path) -> None:
    made = rows(sample)
    truth = [label for _, label in offers(2, 4_000)]
    labelled = [row["label"] is not None for row in made]
    assert sum(labelled) / len(made) == pytest.approx(SMALL.labelled_share, abs=0.05)
    mapped: dict[tuple[str | None, str], set[bool]] = defaultdict(set)
    for row, label in zip(made, truth, strict=True):
        assert row["label"] in (None, label)
        mapped[row["shop_id"], label].add(row["label"] is not None)
    assert all(len(found) == 1 for found in mapped.values())


def test_sample_lake_knows_most_subcategories_and_products(sample: Path) -> None:
    made = rows(sample)
    labelled = [row for row in made if row["label"]]
    told = [row for row in labelled if row["subcategory"]]
    assert len(told) / len(labelled) == pytest.approx(0.85, abs=0.03)
    assert all(str(row["subcategory"]).startswith(f"{row['label']}/") for row in told)
    assert not any(row["subcategory"] for row in made if not row["label"])
    clusters = [row["cluster"] for row in made if row["cluster"]]
    assert len(clusters) / len(made) == pytest.approx(0.8, abs=0.03)
    assert 100 < len(clusters) - len(set(clusters)) < len(clusters) / 2


def test_sample_lake_has_its_taxonomy_and_production_s_counts(sample: Path) -> None:
    known = taxonomy.load(sample / "taxonomy.json")
    assert known == taxonomy.from_sample()
    production = read(sample / "production.json", known)
    assert not production.lost
    assert production.counts.keys() == set(taxonomy.label_ids(known))


def test_sample_lake_is_the_same_for_a_seed_and_made_once(sample: Path, tmp_path: Path) -> None:
    said: list[str] = []
    record = make_sample(SMALL, sample, said.append)
    assert said == [f"{sample}: is there already"]
    assert make_sample(SMALL, tmp_path, said.append).files == record.files
    few = LakeParameters(offers=500, seed=3)
    other = make_sample(few, tmp_path, said.append)
    assert other.files["offers-00000.parquet"] != record.files["offers-00000.parquet"]


def test_lake_is_a_file_a_directory_or_a_glob(tmp_path: Path) -> None:
    names = ["a.parquet", "deep/b.parquet", ".hidden.parquet", "_temporary/c.parquet"]
    for name in names:
        lakes.write(tmp_path / name, lakes.rows(3))
    (tmp_path / "taxonomy.json").write_text("{}")
    assert [Path(name).name for name in open_lake(str(tmp_path)).files] == [
        "a.parquet",
        "b.parquet",
    ]
    assert [Path(name).name for name in open_lake(f"{tmp_path}/*.parquet").files] == ["a.parquet"]
    assert len(open_lake(f"{tmp_path}/**/*.parquet").files) == 2
    assert open_lake(str(tmp_path / ".hidden.parquet")).format == "parquet"
    lakes.write(tmp_path / "lines" / "d.jsonl.gz", lakes.rows(3))
    assert open_lake(str(tmp_path / "lines")).format == "jsonl"


def test_lake_would_hold_what_is_written_below_it(tmp_path: Path) -> None:
    lakes.write(tmp_path / "lake" / "a.parquet", lakes.rows(3))
    lakes.write(tmp_path / "lake" / "deep" / "b.parquet", lakes.rows(3))

    def held(where: str) -> list[bool]:
        lake = open_lake(str(tmp_path / where))
        return [
            lake.would_hold(tmp_path / name)
            for name in ("lake/x.parquet", "lake/d/x.parquet", "lake/_d/x.parquet", "x.parquet")
        ]

    assert held("lake") == [True, True, False, False]
    assert held("lake/*.parquet") == [True, False, False, False]
    assert held("lake/a.parquet") == [False, False, False, False]


def test_lake_s_fingerprint_is_its_content_s(tmp_path: Path) -> None:
    for name in ("1/x.parquet", "2/y.parquet"):
        lakes.write(tmp_path / name, lakes.rows(5))
    os.utime(tmp_path / "2" / "y.parquet", (1, 1))
    first, second = (open_lake(str(tmp_path / name)) for name in "12")
    assert first.fingerprint == second.fingerprint
    lakes.write(tmp_path / "2" / "y.parquet", lakes.rows(6))
    assert open_lake(str(tmp_path / "2")).fingerprint != first.fingerprint


def test_unknown_file_system_is_refused_with_a_line() -> None:
    with pytest.raises(StageError, match="nosuch://lake: cannot be opened") as caught:
        open_lake("nosuch://lake")
    assert "\n" not in str(caught.value)


def test_counts_of_the_sample_are_json_for_people(sample: Path) -> None:
    content = json.loads((sample / "production.json").read_bytes())
    assert list(content) == ["counts", "taxonomy"]
    assert list(content["counts"]) == sorted(content["counts"])
