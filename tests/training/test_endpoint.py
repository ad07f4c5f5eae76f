"""The endpoint stage: every offer of a test set comes back with the service's own answer."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from classifier.model import Model
from training import endpoint
from training.stage import StageError
from training.tiny import tiny_offers


@pytest.fixture
def servers(kafka: str, mongodb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
    monkeypatch.setenv("MONGODB_URI", mongodb)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO())


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.usefixtures("servers")
def test_every_offer_comes_back_with_the_answer_of_the_artefact(
    tmp_path: Path, artifact: Path, console: Console
) -> None:
    rows: list[dict[str, object]] = [
        {**msgspec.structs.asdict(offer), "offer_id": f"o-{number}", "label": label}
        for number, (offer, label) in enumerate(tiny_offers(seed=5))
    ]
    rows[3] = {"offer_id": "o-3", "title": "!!!", "language": "de", "label": "kettles"}
    long_id = "o-4" * 2_000  # no offer, and its key is cut in the dead letter
    rows[4] = {"offer_id": long_id, "title": "kettle", "language": "de", "label": "kettles"}
    rows[5] = {"offer_id": "o-5", "title": "x y " * 500_000, "language": "de", "label": "kettles"}
    set_aside = {3: "no text", 4: "not an offer", 5: "too large"}
    offers = write(tmp_path / "test.parquet", rows)
    record = endpoint.answer(artifact.parent, offers, tmp_path / "out", console)
    answers = pq.read_table(tmp_path / "out" / "answers.parquet").to_pylist()
    assert [row["offer_id"] for row in answers] == [row["offer_id"] for row in rows]
    assert [row["label"] for row in answers] == [row["label"] for row in rows]

    model = Model.load(artifact, threads=1)
    texts = [model.recipe.text(offer) for offer, _ in tiny_offers(seed=5)]
    for number, (row, expected) in enumerate(zip(answers, model.predict(texts), strict=True)):
        if number in set_aside:
            assert row["error"]["reason"] == set_aside[number]
            assert row["category_id"] is None
            continue
        assert expected is not None
        assert row["category_id"] == expected.category_id
        assert row["status"] == expected.status
        assert row["score"] == pytest.approx(expected.score, abs=2e-4)
        assert [other["category_id"] for other in row["alternatives"]] == [
            category_id for category_id, _ in expected.alternatives
        ]
        assert row["model"] == artifact.name
        assert row["error"] is None
    assert record.summary["offers"] == len(rows)
    assert record.summary["dead_letters"] == 3

    # The same again is done already: nothing is started, whatever the servers.
    assert endpoint.answer(artifact.parent, offers, tmp_path / "out", console) == record


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"title": "a"}], "has no column offer_id"),
        ([{"offer_id": "a"}, {"offer_id": "a"}], "stands there twice"),
        ([{"offer_id": "a"}, {"offer_id": None}], "is missing"),
    ],
)
def test_set_that_cannot_be_sent_is_one_line(
    tmp_path: Path,
    artifact: Path,
    console: Console,
    rows: list[dict[str, object]],
    said: str,
) -> None:
    offers = write(tmp_path / "test.parquet", rows)
    with pytest.raises(StageError, match=said):
        endpoint.answer(artifact, offers, tmp_path / "out", console)


def test_set_that_is_no_parquet_is_one_line(
    tmp_path: Path, artifact: Path, console: Console
) -> None:
    offers = tmp_path / "test.parquet"
    offers.write_bytes(b"PAR1")
    with pytest.raises(StageError, match="is no Parquet file that can be read"):
        endpoint.answer(artifact, offers, tmp_path / "out", console)


def test_set_of_a_stage_that_has_not_finished_is_refused(
    tmp_path: Path, artifact: Path, console: Console
) -> None:
    offers = write(tmp_path / "test.parquet", [{"offer_id": "a", "title": "kettle"}])
    (tmp_path / ".stage").write_text("dataset\n")
    with pytest.raises(StageError, match="has not finished; run it again"):
        endpoint.answer(artifact, offers, tmp_path / "out", console)
