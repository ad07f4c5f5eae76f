"""Reading classified files: what is taken from them, and what is refused."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.answered import Row, both, chance, predictions, row, write
from training.predictions import NONE, label_counts, read
from training.stage import StageError


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, np.asarray(other), equal_nan=one.dtype.kind == "f")
    return one == other


def test_parquet_and_json_lines_in_any_order_read_alike(tmp_path: Path) -> None:
    rows = chance(1, 60)
    shuffled = random.Random(0).sample(rows, len(rows))
    one = read({"": write(tmp_path / "a.parquet", rows)})[""]
    other = read({"": write(tmp_path / "b.jsonl", shuffled)})[""]
    for field in dataclasses.fields(one):
        assert same(getattr(one, field.name), getattr(other, field.name)), field.name
    assert one.test_set() == other.test_set()


def test_what_is_read_by_hand(tmp_path: Path) -> None:
    given = predictions(
        tmp_path,
        [
            row(2, "b", cluster="k", weight=3.0, language="de", shop_id="s"),
            row(1, "a", "c", "a", "d", "b", score=0.3, weight=1.0, description="<b>long</b>"),
            row(3, "b", "b", cluster="k", weight=2.0, source="x", title=None),
        ],
    )
    assert given.category_ids == ["a", "b", "c", "d"]
    assert given.offer_ids == ["o00001", "o00002", "o00003"]
    assert given.truths.tolist() == [0, 1, 1]
    assert given.ranked.tolist() == [[2, 0, 3], [NONE] * 3, [1, NONE, NONE]]
    assert given.right.tolist() == [False, False, True]
    assert given.scores[[0, 2]].tolist() == [0.3, 0.9]
    assert np.isnan(given.scores[1])
    assert given.certain.tolist() == [False, False, True]
    assert given.errors == ["", "no text", ""]
    assert given.weights is not None
    assert given.weights.tolist() == [0.5, 1.5, 1.0]
    assert given.clusters[1] == given.clusters[2] != given.clusters[0]
    assert given.languages == ["", "de", ""]
    assert given.sources == ["", "", "x"]
    assert given.characters.tolist() == [len("offer 1 | long"), len("offer 2"), 0]
    assert given.model == "0123456789abcdef"


def test_offers_without_a_cluster_are_clusters_of_their_own(tmp_path: Path) -> None:
    rows = [row(1, "a", "a"), row(2, "a", "a"), row(3, "a", "a", cluster="o00001")]
    assert len(set(predictions(tmp_path, rows).clusters.tolist())) == 3


def test_answer_that_was_merged_into_another_counts_as_that_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [row(1, "new", "old", "other")])
    given = read({"": path}, {"old": "new"})[""]
    assert given.right.all()
    assert given.category_ids == ["new", "other"]


def changed(number: int, **more: Any) -> Callable[[list[Row]], None]:
    return lambda rows: rows[number].update(more)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda rows: rows.clear(), "has no offers"),
        (changed(1, label=None), "row 2: offer 'o00001' has no label"),
        (changed(1, label=" "), "row 2: offer 'o00001' has no label"),
        (changed(1, offer_id="o00000"), "offer 'o00000' stands there twice"),
        (changed(1, category_id=None), "must have a category_id or an error"),
        (changed(1, score=None), "has no score"),
        (changed(1, score=1.5), "score"),
        (changed(1, weight=None), "some offers have a weight and some have none"),
        (changed(1, weight=-1.0), "weight"),
        (changed(1, weight=1e308), "weight"),
        (changed(1, status="certain"), "status"),
        (lambda rows: [each.update(weight=0.0) for each in rows], "all weights are 0"),
        (changed(1, model="another"), "the answers of 2 models (0123456789abcdef, another)"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_bad_rows_are_refused_with_one_line(
    tmp_path: Path, name: str, change: Callable[[list[Row]], None], line: str
) -> None:
    rows = [row(number, "a", "a", weight=1.0) for number in range(3)]
    change(rows)
    with pytest.raises(StageError) as caught:
        read({"": write(tmp_path / name, rows)})
    assert line in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"\x1f\x8bno",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b"PAR1",
        b'{"offer_id":"a","x":' + b"[" * 20_000,
        b"",
    ],
)
def test_broken_files_are_refused_with_one_line(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    for reading in (lambda: read({"": path}), lambda: label_counts(path)):
        with pytest.raises(StageError) as caught:
            reading()
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_only_the_same_offers_with_the_same_labels_are_read_together(tmp_path: Path) -> None:
    rows = [row(1, "a", "a"), row(2, "b", "b")]
    with pytest.raises(StageError, match=r"not of the same offers: 1 are in only one.*o00002"):
        both(tmp_path, rows, rows[:1])
    with pytest.raises(StageError, match=r"'o00002' is labelled 'b' in one and 'a' in the other"):
        both(tmp_path, rows, [rows[0], row(2, "a", "b")])


def test_other_weights_make_another_test_set(tmp_path: Path) -> None:
    def test_set(*weights: float | None) -> str:
        rows = [row(i, "a", "a", weight=weight) for i, weight in enumerate(weights)]
        return predictions(tmp_path, rows).test_set()

    assert test_set(1.0, 3.0) == test_set(0.5, 1.5)
    assert len({test_set(1.0, 3.0), test_set(3.0, 1.0), test_set(None, None)}) == 3


def test_models_that_are_read_together_share_their_categories(tmp_path: Path) -> None:
    own, other = both(tmp_path, [row(1, "m", "z")], [row(1, "m", "b", "m")])
    assert own.category_ids == other.category_ids == ["b", "m", "z"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_labels_are_counted(tmp_path: Path, name: str) -> None:
    rows = [row(1, "a"), row(2, "b"), row(3, "a"), row(4, "a") | {"label": None}]
    assert label_counts(write(tmp_path / name, rows)) == {"a": 2, "b": 1}
