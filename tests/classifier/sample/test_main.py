"""The command writes labelled offers, and says how fast."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from classifier.sample import labelled
from classifier.sample.__main__ import main

app = typer.Typer()
app.command()(main)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


@pytest.mark.parametrize("name", ["offers.jsonl", "offers.jsonl.gz"])
def test_the_file_holds_the_labelled_offers(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    code, said = run("--count", "300", "--out", str(path), "--split", "test", "--seed", "4")
    assert code == 0
    assert said.startswith(f"300 offers written to {path}, ")
    raw = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    assert raw.splitlines() == list(labelled(4, 300, "test"))
    assert msgspec.json.decode(raw.splitlines()[0])["label"]


def test_the_same_offers_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    for path in (first, second):
        run("--count", "50", "--out", str(path))
    assert first.read_bytes() == second.read_bytes()


def test_without_a_file_events_are_made_for_the_rate() -> None:
    code, said = run("--count", "500")
    assert code == 0
    assert said.startswith("500 events, ")
    assert said.rstrip().endswith(" a CPU second")


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    code, said = run("--count", "5", "--out", str(tmp_path / "absent" / "offers.jsonl"))
    assert code == 2
    assert said == f"{tmp_path}/absent/offers.jsonl: No such file or directory\n"
