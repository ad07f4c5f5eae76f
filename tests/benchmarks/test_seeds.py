"""Several students against the SVM: each by itself, and all together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.seeds import judge, measure
from training.predictions import read

OFFERS = 400


def answered(path: Path, right: np.ndarray) -> Path:
    """A classified file; in production the odd offers are half as frequent as the even ones."""
    truths = ["tents" if i % 2 else "sofas" for i in range(OFFERS)]
    wrong = {"tents": "sofas", "sofas": "tents"}
    given = [t if r else wrong[t] for t, r in zip(truths, right, strict=True)]
    columns = {
        "offer_id": [f"{i:04}" for i in range(OFFERS)],
        "label": truths,
        "weight": [4 / 3 if i % 2 == 0 else 2 / 3 for i in range(OFFERS)],
        "category_id": given,
        "score": [0.9] * OFFERS,
        "alternatives": [[{"category_id": wrong[g], "score": 0.1}] for g in given],
        "status": ["classified"] * OFFERS,
        "model": [path.stem] * OFFERS,
        "error": [None] * OFFERS,
    }
    table = pa.table(
        {k: pa.array(v, pa.string()) if k == "error" else v for k, v in columns.items()}
    )
    pq.write_table(table, path)
    return path


def shares(*counts: int) -> np.ndarray:
    """Right answers: all but the first `counts` of the even and of the odd offers."""
    right = np.ones(OFFERS, bool)
    for start, count in enumerate(counts):
        right[start::2][:count] = False
    return right


def test_figures_are_the_hand_computed_ones(tmp_path: Path) -> None:
    """The SVM errs on 60 of 200 even offers, the students on 30 and on 20, and on no odd one."""
    paths = {
        "svm": answered(tmp_path / "svm.parquet", shares(60, 0)),
        "one": answered(tmp_path / "one.parquet", shares(30, 0)),
        "two": answered(tmp_path / "two.parquet", shares(20, 0)),
    }
    found = read(paths)
    svm = found.pop("svm")
    (one, two), pooled = judge(found, svm)
    assert pooled.svm == pytest.approx(1 - 60 * (4 / 3) / OFFERS)
    assert one.difference == pytest.approx(30 * (4 / 3) / OFFERS)
    assert (two.only_student, two.only_svm) == (40, 0)
    # Of two tests the smaller p-value counts twice: 2 * (2 * 0.5**40).
    assert two.p_value == pytest.approx(4 * 0.5**40)
    assert one.p_value == pytest.approx(2 * 0.5**30)
    assert pooled.difference == pytest.approx((one.difference + two.difference) / 2)
    assert 0 < pooled.low < pooled.difference < pooled.high


def test_students_that_are_no_better_fall_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svm = answered(tmp_path / "svm.parquet", shares(60, 10))
    better = answered(tmp_path / "better.parquet", shares(30, 10))
    other = answered(tmp_path / "other.parquet", shares(56, 12))
    assert measure([better, better], svm) == []
    assert "| 1 | 88.33% |" in capsys.readouterr().out
    assert measure([better, other], svm) == ["seed 1 does not beat the SVM by itself"]
    assert measure([svm, svm], better) == [
        "the mean of the seeds does not beat the SVM",
        "seed 0 does not beat the SVM by itself",
        "seed 1 does not beat the SVM by itself",
    ]
