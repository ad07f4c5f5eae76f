"""Small lakes, and the sets that are drawn from them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from training import dataset
from training.lake import schema
from training.parameters import DatasetParameters
from training.production import Production
from training.stage import Record
from training.taxonomy import Category, Taxonomy, first, save

Row = Mapping[str, str | int | None]

LANGUAGES = ("de", "en", "fr", "es", "it")

SMALL = DatasetParameters(
    training_offers=60,
    floor=2,
    cap=40,
    validation_offers=20,
    test_offers=20,
    test_floor=2,
    experiment_offers={"s": 10, "m": 30},
    transfer_offers=20,
    plots=False,
    memory="1GB",
    threads=1,
)


def taxonomy(*labels: str) -> Taxonomy:
    return first(Category(label, dict.fromkeys(LANGUAGES, label), None) for label in labels)


def write(path: Path, rows: Iterable[Row]) -> Path:
    """The rows as Parquet or as JSON lines, by the path's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        made = [dict(row) for row in rows]
        fields = schema()
        if any("revision" in row for row in made):
            fields = fields.append(pa.field("revision", pa.int64()))
        pq.write_table(pa.Table.from_pylist(made, fields), path)
        return path
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


def draw(
    place: Path,
    lake: Path | str,
    known: Taxonomy,
    parameters: DatasetParameters = SMALL,
    production: Production | None = None,
    said: list[str] | None = None,
    **options: Any,
) -> Record:
    """Draws the sets of a lake into `place`/sets; what is said goes to `said`."""
    place.mkdir(parents=True, exist_ok=True)
    save(known, place / "taxonomy.json")
    say = print if said is None else said.append
    file = place / "taxonomy.json"
    return dataset.make(parameters, str(lake), file, production, place / "sets", say, **options)


def read(place: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a set, "train" or "experiments/s"."""
    rows: list[dict[str, Any]] = pq.read_table(path(place, name)).to_pylist()
    return rows


def path(place: Path, name: str) -> Path:
    """The file of a set, of the experiments' those that were drawn last."""
    folder, _, own = name.rpartition("/")
    file: str = figures(place)["experiments"][own] if folder else f"{name}.parquet"
    return place / "sets" / file


def files(place: Path) -> dict[str, bytes]:
    """All results by name; not the stage's mark and its record, which says how long it took."""
    sets = place / "sets"
    return {
        str(path.relative_to(sets)): path.read_bytes()
        for path in sorted(sets.rglob("*"))
        if path.is_file() and path.name not in (".stage", "stage.json")
    }


def figures(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "sets" / "dataset.json").read_bytes())
    return found


def rows(
    count: int,
    labels: Sequence[str] = ("a", "b", "c"),
    *,
    products: int = 3,
    unlabelled: int = 4,
) -> list[dict[str, str | None]]:
    """Offers that differ: every `unlabelled`th has no label, `products` in a row are of one."""
    return [
        {
            "offer_id": f"o{number}",
            "shop_id": f"shop{number % 5}",
            "language": LANGUAGES[number % 3],
            "title": f"thing number {number}",
            "category_path": f"path {number % 7}",
            "label": None if number % unlabelled == 0 else labels[number % len(labels)],
            "subcategory": None if number % 11 == 0 else f"kind{number % 2}",
            "cluster": None if number % 13 == 0 else f"p{number // products}",
            "source": "test",
        }
        for number in range(count)
    ]
