"""The endpoint stage: every offer of a test set comes back with the service's own answer."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from classifier import __version__
from classifier.artifact import Artifact
from classifier.demo.stream import stream
from classifier.model import Model
from classifier.produce import Record
from classifier.settings import load_settings
from training import endpoint, stage
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


SENT = 2_000
"""Offers that the service has when the run is killed: as many as go to the broker at once."""

ENDLESS = """
import sys
from pathlib import Path
from rich.console import Console
from training import endpoint

values, calls = endpoint._values, []

def some(table):
    calls.append(table)
    for number, each in enumerate(values(table)):
        if len(calls) == 2 and number == int(sys.argv[4]):
            sys.stdin.read()  # until killed
        yield each

endpoint._values, endpoint.KEEP_SECONDS = some, 0.2
endpoint.answer(*map(Path, sys.argv[1:4]), Console(stderr=True))
"""


def kept(out: Path) -> int:
    """Answers that a run which is not done yet has kept."""
    return sum(file.read_bytes().count(b"\n") for file in out.glob("parts/*/*.jsonl"))


@pytest.mark.usefixtures("servers")
def test_killed_run_s_answers_are_kept_and_only_the_rest_is_asked(
    tmp_path: Path, artifact: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list(tiny_offers(seed=6, each=55))
    rows: list[dict[str, object]] = [
        {**msgspec.structs.asdict(offer), "offer_id": f"o-{number:05d}"}
        for number, (offer, _) in enumerate(made)
    ]
    rows[7] = {"offer_id": "o-00007", "title": "!!!"}  # set aside, so that it is asked again
    offers, out = write(tmp_path / "test.parquet", rows), tmp_path / "out"
    command = [sys.executable, "-c", ENDLESS, *map(str, (artifact, offers, out, SENT))]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        deadline = time.monotonic() + 90
        while kept(out) < SENT - 1:
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
    assert not (out / "stage.json").exists()

    asked: list[Record] = []

    def watched(records: Iterator[Record], *rest: Any) -> Any:
        asked.extend(records)
        return stream(iter(asked), *rest)

    monkeypatch.setattr(endpoint, "stream", watched)
    record = endpoint.answer(artifact, offers, out, console)
    ids = [str(row["offer_id"]) for row in rows]
    assert [each.key for each in asked] == [i.encode() for i in ("o-00007", *ids[SENT:])]
    answers = pq.read_table(out / "answers.parquet").to_pylist()
    assert [row["offer_id"] for row in answers] == ids
    assert answers[7]["error"]["reason"] == "no text"
    model = Model.load(artifact, threads=1)
    expected = model.predict([model.recipe.text(offer) for offer, _ in made])
    for number, (row, answer) in enumerate(zip(answers, expected, strict=True)):
        if number != 7:
            assert answer is not None
            assert (row["category_id"], row["status"]) == (answer.category_id, answer.status)
            assert row["score"] == pytest.approx(answer.score, abs=2e-4)
            assert len(row["alternatives"]) == len(answer.alternatives)
            assert row["model"] == artifact.name
    assert (record.summary["offers"], record.summary["dead_letters"]) == (len(rows), 1)
    assert not (out / "parts").exists()


def test_nothing_is_asked_where_every_answer_was_kept(
    tmp_path: Path, artifact: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers, out = write(tmp_path / "test.parquet", [{"offer_id": "a"}]), tmp_path / "out"
    monkeypatch.setattr(endpoint, "place", None)  # no server is wanted
    inputs = {
        "model": Artifact.load(artifact).manifest.id,
        **stage.hash_inputs({"offers": offers}),
        "service": __version__,
        "alternatives": str(load_settings().alternatives),
    }
    answer = {
        "offer_id": "a", "category_id": "tents", "score": 0.1 + 0.2, "status": "uncertain",
        "alternatives": [{"category_id": "kettles", "score": 0.25}], "model": "m",
    }  # fmt: skip
    parts = stage.Stage("endpoint", out, None, inputs, version=endpoint.VERSION).begin()
    (parts / "answers-000000.jsonl").write_bytes(msgspec.json.encode(answer) + b"\n")
    record = endpoint.answer(artifact, offers, out, console)
    assert pq.read_table(out / "answers.parquet").to_pylist() == [{**answer, "error": None}]
    assert record.summary == {"offers": 1, "dead_letters": 0, "uncertain": 1}


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
