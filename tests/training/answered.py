"""Classified files for the tests: offers, their labels, and what a model answered to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.bootstrap import Bootstrap
from training.predictions import Predictions, read

Row = dict[str, Any]

QUICK = Bootstrap(resamples=60, confidence=0.95, seed=0)

_ALTERNATIVES = pa.list_(pa.struct([("category_id", pa.string()), ("score", pa.float64())]))
_SCHEMA = pa.schema(
    [
        *[
            (name, pa.string())
            for name in ("offer_id", "shop_id", "language", "title", "label", "cluster", "source")
        ],
        ("weight", pa.float64()),
        ("category_id", pa.string()),
        ("score", pa.float64()),
        ("alternatives", _ALTERNATIVES),
        ("status", pa.string()),
        ("model", pa.string()),
        ("error", pa.struct([("reason", pa.string()), ("detail", pa.string())])),
    ]
)


def row(number: int, label: str, *ranked: str, score: float = 0.9, **more: Any) -> Row:
    """An offer and its answer, the best category first; none at all make it an error."""
    made: Row = {
        "offer_id": f"o{number:05d}",
        "title": f"offer {number}",
        "label": label,
        "category_id": None,
        "score": None,
        "alternatives": None,
        "status": None,
        "model": None,
        "error": {"reason": "no text", "detail": "nothing to read"},
    }
    if ranked:
        made |= {
            "category_id": ranked[0],
            "score": score,
            "alternatives": [{"category_id": each, "score": 0.01} for each in ranked[1:]],
            "status": "classified" if score >= 0.5 else "uncertain",
            "model": "0123456789abcdef",
            "error": None,
        }
    return made | more


def chance(
    seed: int, offers: int, categories: int = 6, *, errors: float = 0.05, **more: Any
) -> list[Row]:
    """Rows of a model that is often right, with clusters of a few offers and weights."""
    rng = np.random.default_rng(seed)
    names = [f"c{number}" for number in range(categories)]
    rows = []
    for number in range(offers):
        label, *others = rng.permutation(names).tolist()
        ranked = [label, *others] if rng.random() < 0.6 else [*others[:2], label, *others[2:]]
        if rng.random() < 0.2:
            ranked = others
        if rng.random() < errors:
            ranked = []
        rows.append(
            row(
                number,
                label,
                *ranked,
                score=round(float(rng.random()), 3),
                cluster=f"k{rng.integers(offers // 2 + 1)}",
                language=str(rng.choice(["de", "fr"])),
                shop_id=f"s{rng.integers(4)}",
                weight=round(float(rng.gamma(1.0)), 3),
                **more,
            )
        )
    return rows


def write(path: Path, rows: Sequence[Row]) -> Path:
    """Rows as Parquet or JSON lines, by the name."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows), schema=_SCHEMA), path)
    else:
        path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rows))
    return path


def predictions(tmp_path: Path, rows: Sequence[Row]) -> Predictions:
    """Rows as they are read."""
    return read({"": write(tmp_path / "answers.jsonl", rows)})[""]


def both(
    tmp_path: Path, own: Sequence[Row], other: Sequence[Row]
) -> tuple[Predictions, Predictions]:
    """Two models' rows as they are read together."""
    files = {"own": tmp_path / "own.jsonl", "other": tmp_path / "other.jsonl"}
    write(files["own"], own)
    write(files["other"], other)
    given = read(files)
    return given["own"], given["other"]
