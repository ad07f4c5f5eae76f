"""Examples do not depend on the order of rows, and held-out texts are never trained on."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.offer import Offer
from classifier.text import DEFAULT_RECIPE
from compile.labelled import DataError, read_labelled, read_offers
from training.examples import LEAST_TO_HOLD_OUT, Examples, examples, hold_out, limit


def made(*rows: tuple[str | None, str]) -> Examples:
    offers = [
        (Offer(offer_id=str(number), title=title, language="en"), label)
        for number, (title, label) in enumerate(rows)
    ]
    return examples(offers, DEFAULT_RECIPE)


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_labels_are_sorted_whatever_the_order_of_rows() -> None:
    rows = [("sofa", "b"), ("kettle", "a"), ("tent", "c"), ("sofa bed", "b")]
    forwards, backwards = made(*rows), made(*reversed(rows))
    assert forwards.label_ids == backwards.label_ids == ["a", "b", "c"]
    assert forwards.texts == backwards.texts == ["kettle", "sofa", "sofa bed", "tent"]
    assert forwards.labels.tolist() == backwards.labels.tolist() == [0, 1, 1, 2]
    assert forwards.sha256() == backwards.sha256()


def test_hash_tells_labels_and_texts_apart() -> None:
    first = made(("ab", "x"), ("c", "y"))
    assert first.sha256() != made(("ab", "y"), ("c", "x")).sha256()
    assert first.sha256() != made(("a", "x"), ("bc", "y")).sha256()


def test_offers_without_text_are_left_out_and_counted() -> None:
    kept = made(("kettle", "a"), (None, "a"), (":)", "b"), ("sofa", "b"))
    assert kept.texts == ["kettle", "sofa"]
    assert kept.without_text == 2


def test_one_label_is_too_few() -> None:
    with pytest.raises(DataError, match="1 labels: too few"):
        made(("kettle", "a"), ("steel kettle", "a"))


def test_rows_are_read_plain_and_gzipped(tmp_path: Path) -> None:
    row = {"offer_id": "1", "title": "kettle", "label": "a", "price": 3}
    plain = write(tmp_path / "rows.jsonl", row)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        ((offer, label),) = read_labelled(path)
        assert (offer.offer_id, offer.title, label) == ("1", "kettle", "a")


def test_rows_are_read_from_parquet(tmp_path: Path) -> None:
    rows = [
        {"offer_id": str(n), "title": f"kettle {n}", "brand": None, "label": "a", "weight": 0.5}
        for n in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found = list(read_labelled(tmp_path / "rows.parquet"))
    assert found == list(read_labelled(write(tmp_path / "rows.jsonl", *rows)))
    assert [(offer.title, label) for offer, label in found][2] == ("kettle 2", "a")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"offer_id": ["1", "2"], "label": ["a", None]}, "row 2: has no label"),
        ({"offer_id": ["1", "2"]}, "row 1: has no label"),
        ({"offer_id": ["1", "2"], "label": [1, 2]}, "row 1: no offer: Expected `str | null`"),
        ({"offer_id": ["1", ""], "label": ["a", "b"]}, "row 2: no offer"),
    ],
)
def test_parquet_row_without_label_is_refused_in_one_line(
    tmp_path: Path, columns: dict[str, list[Any]], message: str
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        list(read_labelled(path))
    assert "\n" not in str(caught.value)


def test_file_that_is_no_parquet_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match=r"rows\.parquet is no Parquet file that can be read") as no:
        list(read_labelled(path))
    assert "\n" not in str(no.value)
    with pytest.raises(DataError, match="is no Parquet file that can be read"):
        list(read_labelled(tmp_path / "none.parquet"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"offer_id": "2", "title": "x"}, "row 2: has no label"),
        ({"offer_id": "2", "title": "x", "label": None}, "row 2: has no label"),
        ({"offer_id": "2", "title": "x", "label": " "}, "row 2: has no label"),
        ({"offer_id": "2", "title": "x", "label": 7}, "row 2: no offer"),
        ({"title": "x", "label": "a"}, "row 2: no offer"),
    ],
)
def test_row_without_label_is_refused_in_one_line(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "rows.jsonl", {"offer_id": "1", "title": "x", "label": "a"}, row)
    with pytest.raises(DataError, match=message) as caught:
        list(read_labelled(path))
    assert "\n" not in str(caught.value)


def test_offers_are_read_without_labels_too(tmp_path: Path) -> None:
    path = tmp_path / "offers.jsonl"
    path.write_text('{"offer_id": "1", "title": "tent"}\n{"offer_id": "2", "label": "sofas"}\n')
    found = [(offer.offer_id, offer.title, offer.label) for offer in read_offers(path)]
    assert found == [("1", "tent", None), ("2", None, "sofas")]
    path.write_text('{"offer_id": "1"}\n{"offer_id": 2}\n')
    with pytest.raises(DataError, match=r"offers.jsonl, row 2: no offer"):
        list(read_offers(path))


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nothing\.jsonl"):
        list(read_labelled(tmp_path / "nothing.jsonl"))


# A few labels, a few texts, so that texts repeat and labels differ in size.
tables = st.lists(
    st.tuples(st.integers(0, 30).map("text {}".format), st.sampled_from("abcd")), min_size=8
).filter(lambda rows: len({label for _, label in rows}) > 1)


@given(tables, st.integers(0, 5), st.floats(0.05, 0.9))
def test_held_out_texts_are_never_trained_on(
    rows: list[tuple[str, str]], seed: int, share: float
) -> None:
    whole = made(*rows)
    training, validation = hold_out(whole, share, 10, np.random.default_rng(seed))
    assert not set(training.texts) & set(validation.texts)
    assert sorted(training.texts + validation.texts) == whole.texts
    assert len(set(validation.texts)) <= 10
    assert training.label_ids == validation.label_ids == whole.label_ids
    for label, label_id in enumerate(whole.label_ids):
        mine = {text for text, its in rows if its == label_id}
        left = set(np.array(training.texts)[training.labels == label].tolist())
        if len(mine) < LEAST_TO_HOLD_OUT:
            assert left == mine


def test_held_out_share_is_about_what_was_asked_for() -> None:
    whole = made(*((f"text {i}", "ab"[i % 2]) for i in range(1000)))
    training, validation = hold_out(whole, 0.05, 4000, np.random.default_rng(0))
    assert len(validation.texts) == 50
    assert len(training.texts) == 950
    assert len(hold_out(whole, 0.5, 20, np.random.default_rng(0))[1].texts) == 20


def test_limit_keeps_every_label_alive() -> None:
    rows = [(f"common {i}", "a") for i in range(500)] + [("rare 1", "b"), ("rare 2", "b")]
    kept = limit(made(*rows), 50, np.random.default_rng(0))
    assert len(kept.texts) == 50
    assert kept.labels.tolist().count(1) == 2
    assert kept.texts == sorted(kept.texts)


def test_limit_leaves_few_as_they_are() -> None:
    whole = made(("a", "x"), ("b", "y"))
    assert limit(whole, 2, np.random.default_rng(0)) is whole
