from __future__ import annotations

import gzip
import itertools
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from classifier import bulk
from classifier.artifact import Artifact, Description, Label, Manifest
from classifier.jsonl import FileError
from classifier.model import Model
from classifier.offer import Offer
from classifier.record import NO_TEXT_DETAIL
from classifier.text import DEFAULT_RECIPE

RECORD_BYTES = 10_000
LABELS = ("kettles", "toasters", "cables")
WORDS = {"[PAD]": 0, "[UNK]": 1, "kettle": 2, "toaster": 3, "cable": 4, "poison": 5}


class WordEngine:
    """Knows a category by its word; fails on poison."""

    precision = "fp32"

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        if (ids == WORDS["poison"]).any():
            raise RuntimeError("poison")
        del lengths
        return np.stack([(ids == word).sum(axis=1) * 3.0 for word in (2, 3, 4)], axis=1).astype(
            np.float32
        )

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("words")
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    description = Description(
        created_at="2026-01-01T00:00:00Z",
        kind="encoder",
        target="onnx-cpu",
        precision="fp32",
        checkpoint="c" * 16,
        data={},
        taxonomy="t1",
        text=DEFAULT_RECIPE,
        max_tokens=32,
        versions={},
        temperature=1.0,
        threshold=0.5,
    )
    manifest = Manifest(
        **msgspec.structs.asdict(description), id="a" * 16, labels_sha256="", files={}
    )
    artifact = Artifact(path, manifest, tuple(Label(name) for name in LABELS), ())
    return Model(artifact, WordEngine(), cache_offers=100, batch_tokens=512, alternatives=1)


Run = Callable[[bytes], list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, model: Model) -> Run:
    """Classify the content of a JSON lines file; gives the rows that come out."""

    def classify(content: bytes) -> list[dict[str, Any]]:
        source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_bytes(content)
        bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
        return [json.loads(line) for line in target.read_bytes().splitlines()]

    return classify


def lines(*rows: object) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def test_row_comes_out_with_its_category(run: Run) -> None:
    (row,) = run(lines({"offer_id": "a", "title": "steel kettle", "price": 9.5}))
    others = row.pop("alternatives")
    assert row == {
        "offer_id": "a",
        "title": "steel kettle",
        "price": 9.5,
        "category_id": "kettles",
        "score": pytest.approx(np.exp(3) / (np.exp(3) + 2), abs=1e-6),
        "status": "classified",
        "model": "a" * 16,
        "error": None,
    }
    assert [other["category_id"] for other in others] == ["toasters"]


def test_row_below_the_threshold_is_uncertain(run: Run) -> None:
    (row,) = run(lines({"offer_id": "a", "title": "thing"}))
    assert row["status"] == "uncertain"
    assert row["score"] == pytest.approx(1 / 3, abs=1e-6)


def test_rows_keep_their_order_and_none_is_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "ROWS", 7)
    words = ("kettle", "toaster", "cable and more words", "")
    offers = [{"offer_id": str(n), "title": words[n % 4]} for n in range(100)]
    rows = run(lines(*offers))
    assert [row["offer_id"] for row in rows] == [str(n) for n in range(100)]
    expected = itertools.cycle(["kettles", "toasters", "cables", None])
    assert [row["category_id"] for row in rows] == list(itertools.islice(expected, 100))


@pytest.mark.parametrize(
    ("line", "reason", "kept"),
    [
        (b'{"offer_id":"a"', "malformed JSON", {"line": '{"offer_id":"a"'}),
        (b"[1,2]", "not an offer", {"line": "[1,2]"}),
        (b'{"offer_id":7,"x":1}', "not an offer", {"offer_id": 7, "x": 1}),
        (b'{"title":"kettle"}', "not an offer", {"title": "kettle"}),
        (b'{"offer_id":"a","title":" - "}', "no text", {"offer_id": "a", "title": " - "}),
        (b'{"offer_id":"a","title":"\xff"}', "not UTF-8", {"title": "\ufffd"}),
        (b"[" * 100 + b"]" * 100, "nested too deep", {"line": "[" * 100 + "]" * 100}),
        (b'{"offer_id":"%s"}' % (b"x" * 20_000), "too large", {}),
        (b'{"offer_id":"a","title":"poison"}', "no answer from the model", {"offer_id": "a"}),
    ],
)
def test_bad_row_has_an_error_and_costs_no_other(
    run: Run, line: bytes, reason: str, kept: dict[str, Any]
) -> None:
    good = lines({"offer_id": "good", "title": "kettle"})
    rows = run(good + line + b"\n" + good)
    assert [row["category_id"] for row in rows] == ["kettles", None, "kettles"]
    assert rows[1]["error"]["reason"] == reason
    assert rows[1]["error"]["detail"]
    assert rows[1]["status"] is None
    assert kept.items() <= rows[1].items()
    assert len(rows[1].get("line", "")) <= 1_000


def test_values_come_out_as_the_bytes_they_were(tmp_path: Path, model: Model) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(
        b'{"offer_id":"a","gtin":123456789012345678901234567890,"p":1.10,"t":"\\u00fc"}'
    )
    bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    out = target.read_bytes()
    assert out.startswith(
        b'{"offer_id":"a","gtin":123456789012345678901234567890,"p":1.10,"t":"\\u00fc",'
    )


@pytest.mark.parametrize(
    "line",
    [
        b'\xef\xbb\xbf{"offer_id":"a","title":"kettle","more":[1]}\n',
        b'{"offer_id":"a","title":"kettle \\ud83d","more":[1]}\n',
    ],
)
def test_mended_offer_is_classified_and_given_back(run: Run, line: bytes) -> None:
    (row,) = run(line)
    assert (row["offer_id"], row["category_id"], row["more"]) == ("a", "kettles", [1])


def test_columns_that_are_there_already_are_replaced(run: Run) -> None:
    first = run(lines({"offer_id": "a", "title": "kettle", "score": 7, "error": "old"}))
    again = run(lines(*first))
    assert again == first
    assert (first[0]["score"] < 1, first[0]["error"]) == (True, None)


def test_counts_tell_how_rows_ended(tmp_path: Path, model: Model) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    offers = [{"offer_id": "a", "title": word} for word in ("kettle", "thing", "", "toaster")]
    source.write_bytes(lines(*offers) + b"\n\nno\n")
    told: list[tuple[int, float]] = []
    counts = bulk.classify_file(
        source,
        target,
        model,
        record_bytes=RECORD_BYTES,
        on_progress=lambda counts, share: told.append((counts.rows, share)),
    )
    assert (counts.rows, counts.classified, counts.uncertain, counts.errors) == (5, 2, 1, 2)
    assert told == [(5, 1.0)]
    assert bulk.say(counts) == "5 rows, 2 classified, 1 uncertain, 2 with an error"


def test_gzip_in_gzip_out(tmp_path: Path, model: Model) -> None:
    source = tmp_path / "offers.jsonl.gz"
    source.write_bytes(gzip.compress(lines({"offer_id": "a", "title": "cable"})))
    target = bulk.output_beside(source)
    assert target.name == "offers.classified.jsonl.gz"
    bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    assert json.loads(gzip.decompress(target.read_bytes()))["category_id"] == "cables"


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("a.jsonl", "a.classified.jsonl"),
        ("a.b.parquet", "a.b.classified.parquet"),
        ("a", "a.classified"),
        ("a.gz", "a.classified.gz"),
    ],
)
def test_output_goes_beside_the_input(name: str, beside: str) -> None:
    assert bulk.output_beside(Path("/d") / name) == Path("/d") / beside


def parquet(path: Path, rows: int) -> None:
    words = ["kettle", "toaster", None]
    table = pa.table(
        {
            "offer_id": pa.array([str(n) for n in range(rows)]),
            "title": pa.array([words[n % 3] for n in range(rows)], pa.large_string()),
            "revision": pa.array([n if n % 2 else None for n in range(rows)], pa.int32()),
            "seen": pa.array([n * 1_000 for n in range(rows)], pa.timestamp("ms", tz="UTC")),
            "tags": pa.array([["x", str(n)] for n in range(rows)]),
            "score": pa.array(["old"] * rows).dictionary_encode(),
        },
    ).replace_schema_metadata({"owner": "us"})
    pq.write_table(table, path, row_group_size=100)


def test_parquet_in_parquet_out(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "ROWS", 64)
    monkeypatch.setattr(bulk, "ROW_GROUP", 128)
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet(source, 300)
    counts = bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    assert (counts.rows, counts.classified, counts.errors) == (300, 200, 100)
    before, after = pq.read_table(source), pq.read_table(target)
    kept = ["offer_id", "title", "revision", "seen", "tags"]
    assert after.select(kept).equals(before.select(kept))
    assert after.schema.metadata[b"owner"] == b"us"
    assert after.schema.field("score").type == pa.float64()
    assert pq.ParquetFile(target).num_row_groups == 3
    rows = after.to_pylist()
    assert [row["category_id"] for row in rows[:3]] == ["kettles", "toasters", None]
    assert rows[2]["error"] == {
        "reason": "no text",
        "detail": NO_TEXT_DETAIL,
    }
    assert rows[0]["alternatives"][0]["category_id"] == "toasters"


def test_lines_and_tables_get_the_same_answers(tmp_path: Path, model: Model, run: Run) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet(source, 30)
    bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    names = ["category_id", "score", "status", "model", "error", "alternatives"]
    wanted = ["offer_id", "title", "revision"]
    by_lines = run(lines(*pq.read_table(source).select(wanted).to_pylist()))
    for line, row in zip(by_lines, pq.read_table(target).to_pylist(), strict=True):
        assert {name: line[name] for name in names} == {name: row[name] for name in names}


def test_table_without_offer_id_is_one_line(tmp_path: Path, model: Model) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"id": ["a"], "title": ["kettle"]}), source)
    with pytest.raises(FileError, match="no column offer_id; it has id, title"):
        bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    assert not target.exists()


def test_table_with_numbers_for_ids_has_errors_that_say_so(tmp_path: Path, model: Model) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"offer_id": [1, 2], "title": ["kettle"] * 2}), source)
    counts = bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    assert counts.errors == 2
    assert "offer_id" in pq.read_table(target).to_pylist()[0]["error"]["detail"]


@pytest.mark.parametrize("content", [b"no parquet", b"PAR1" + bytes(20) + b"PAR1", b""])
def test_file_that_is_no_parquet_is_one_line(tmp_path: Path, model: Model, content: bytes) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    source.write_bytes(content)
    with pytest.raises(FileError, match="is no Parquet file that can be read") as caught:
        bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [source]


def test_failure_leaves_the_old_output_and_nothing_else(tmp_path: Path, model: Model) -> None:
    source, target = tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl.gz"
    target.write_bytes(b"old")
    source.write_bytes(gzip.compress(lines(*[{"offer_id": "a", "title": "kettle"}] * 9_999))[:-4])
    with pytest.raises(FileError, match="cut short"):
        bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    assert target.read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl.gz", "out.jsonl.gz"}


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("in.jsonl", "out.parquet", "both must be Parquet, or neither"),
        ("in.jsonl", "in.jsonl", "is the input itself"),
        ("missing.jsonl", "out.jsonl", "no such file"),
        ("in.jsonl", "missing/out.jsonl", "cannot write .*No such file"),
    ],
)
def test_wrong_files_are_one_line(
    tmp_path: Path, model: Model, source: str, target: str, said: str
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"{}")
    with pytest.raises(FileError, match=said):
        bulk.classify_file(tmp_path / source, tmp_path / target, model, record_bytes=RECORD_BYTES)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, model: Model) -> None:
    def peak(rows: int) -> int:
        source = tmp_path / f"{rows}.jsonl"
        with source.open("wb") as file:
            for n in range(rows):
                file.write(b'{"offer_id":"%d","title":"kettle %d %s"}\n' % (n, n, b"x" * 200))
        tracemalloc.start()
        bulk.classify_file(source, tmp_path / "out.jsonl", model, record_bytes=RECORD_BYTES)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(4_096)
    assert peak(16_384) < 1.2 * peak(4_096)


def test_arrow_holds_no_more_of_a_larger_parquet_file(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "ROW_GROUP", bulk.ROWS)

    def most(groups: int) -> int:
        source = tmp_path / f"{groups}.parquet"
        noise = random.Random(0)
        with pq.ParquetWriter(source, pa.schema([("offer_id", pa.string())])) as file:
            for _ in range(groups):
                ids = [noise.randbytes(300).hex() for _ in range(1_000)]
                file.write_table(pa.table({"offer_id": ids}))
        held: list[int] = []
        bulk.classify_file(
            source,
            tmp_path / "out.parquet",
            model,
            record_bytes=RECORD_BYTES,
            on_progress=lambda counts, share: held.append(pa.total_allocated_bytes()),
        )
        return max(held)

    assert most(24) < 1.3 * most(6)


texts = st.one_of(st.none(), st.text(max_size=30))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40).filter(
                lambda line: line.strip(b"\r\n \t") and b"\n" not in line
            ),
            st.builds(Offer, st.text(min_size=1, max_size=5), title=texts).map(msgspec.json.encode),
        ),
        max_size=20,
    )
)
def test_any_line_comes_out_as_one_row(
    tmp_path_factory: pytest.TempPathFactory, model: Model, content: list[bytes]
) -> None:
    # A file that begins as gzip does is read as gzip, and that is another test's affair.
    assume(not content or not content[0].startswith(b"\x1f\x8b"))
    directory = tmp_path_factory.mktemp("any")
    source, target = directory / "in.jsonl", directory / "out.jsonl"
    source.write_bytes(b"\n".join(content))
    counts = bulk.classify_file(source, target, model, record_bytes=RECORD_BYTES)
    rows = [msgspec.json.decode(line) for line in target.read_bytes().split(b"\n")[:-1]]
    assert counts.rows == len(rows) == len(content)
    assert counts.classified + counts.uncertain + counts.errors == counts.rows
    assert all((row["category_id"] is None) == (row["error"] is not None) for row in rows)
