"""`python -m training demo-model` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from classifier.artifact import Artifact, current
from training import demo
from training.cli import app
from training.fit import Schedule
from training.scratch import Shape
from training.tiny import tiny_offers

SHAPE = Shape(pieces=1000, hidden=16, layers=2, heads=2, inner=16, max_tokens=24)
SCHEDULE = Schedule(table_passes=3, passes=1, batch=16, table_rate=2e-2, head_rate=2e-2)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SHAPE", SHAPE)
    monkeypatch.setattr(demo, "SCHEDULE", SCHEDULE)
    monkeypatch.setattr(demo, "SAMPLE_OFFERS", 2000)
    monkeypatch.setattr(demo, "MOST_REPEATS", 1)
    monkeypatch.setattr(demo, "THREADS", 1)


def write_offers(path: Path) -> Path:
    rows = [
        {"offer_id": offer.offer_id, "title": offer.title, "label": label}
        for offer, label in tiny_offers(each=5)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.usefixtures("_small")
def test_own_offers_become_the_current_artefact(tmp_path: Path) -> None:
    offers = write_offers(tmp_path / "offers.jsonl")
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["demo-model", "--out", str(out), "--train", str(offers)])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout.splitlines()[-1])
    loaded = Artifact.load(summary["artifact"])
    assert current(out) == loaded.path
    assert loaded.manifest.id == summary["id"]
    assert loaded.manifest.data["name"] == "offers.jsonl"
    assert loaded.manifest.data["rows"] == 200
    assert loaded.manifest.taxonomy.startswith("labels-")
    assert [label.names for label in loaded.labels] == [{}] * 8
    assert set(summary["seconds"]) == {"import", "texts", "train", "compile", "all"}
    assert sorted(entry.name for entry in out.iterdir()) == sorted(
        ["checkpoint", "current", summary["id"]]
    )


@pytest.mark.usefixtures("_small")
def test_sample_catalogue_brings_its_taxonomy(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo-model", "--out", str(tmp_path), "--seed", "5"])
    assert done.exit_code == 0, done.output
    loaded = Artifact.load(current(tmp_path))
    assert loaded.manifest.data["name"] == "sample"
    assert loaded.manifest.data["seed"] == 5
    assert set(loaded.labels[0].names) == {"de", "en", "fr", "es", "it"}
    assert loaded.labels[0].parents


@pytest.mark.usefixtures("_small")
def test_offers_beyond_the_limit_are_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MOST_OFFERS", 150)
    offers = write_offers(tmp_path / "offers.jsonl")
    done = CliRunner().invoke(
        app, ["demo-model", "--out", str(tmp_path / "out"), "--train", str(offers)]
    )
    assert done.exit_code == 0, done.output
    assert "50 offers beyond 150 are left out" in done.stderr
    assert Artifact.load(current(tmp_path / "out")).manifest.data["rows"] == 150


@pytest.mark.parametrize(("texts", "times"), [(65_000, 1), (40_000, 1), (20_000, 3), (50, 8)])
def test_fewer_texts_get_more_passes_and_no_more_steps(texts: int, times: int) -> None:
    made = demo.repeated(Schedule(table_passes=3, passes=1), texts)
    assert (made.table_passes, made.passes) == (3 * times, times)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"offer_id":"1","title":"kettle"}\n', "row 1: has no label"),
        ('{"offer_id":"1","title":"kettle","label":"a"}\n', "1 labels: too few"),
        ('{"offer_id":"1","title":"kettle","label":"a"}\n{"offer_id":"2","title":"sofa","label":"b"}\n',
         "too few to hold some out"),
        ("not json\n", "row 1: no offer"),
        ("", "0 labels: too few"),
    ],
)  # fmt: skip
def test_unusable_offers_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    offers = tmp_path / "offers.jsonl"
    offers.write_text(content)
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["demo-model", "--out", str(out), "--train", str(offers)])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (out / "current").exists()
