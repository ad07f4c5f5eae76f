"""`make benchmark-quality` says what the command takes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.quality.__main__ import app

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def asked(**variables: str) -> dict[str, Any]:
    """The values of the command that make would run."""
    command = ["make", "-n", "benchmark-quality", *(f"{k}={v}" for k, v in variables.items())]
    # Of the run of make that this test may be part of, nothing is taken over.
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    *_, words = (shlex.split(line) for line in done.stdout.replace("\\\n", " ").splitlines())
    assert words[1:4] == ["-m", "benchmarks.quality", "run"]
    parser: Any = typer.main.get_command(app)
    values: dict[str, Any] = parser.commands["run"].make_context("run", words[4:]).params
    return values


def test_every_variable_reaches_its_option() -> None:
    sets = {name: f"my {name}.jsonl.gz" for name in ("TRAIN", "VALIDATION", "TEST")}
    plain = asked(**sets)
    assert {name.upper(): str(plain[name.lower()]) for name in sets} == sets
    assert (plain["name"], plain["work"]) == ("all", Path("runs/quality"))
    assert plain["unlabelled"] is plain["encoder"] is plain["labels"] is None
    more = {"UNLABELLED": "u.jsonl", "ENCODER": "my/e5", "LABELS": "l.json", "WORK": "elsewhere"}
    found = asked(**sets, **more, ROW="six-transfer")
    assert {name: str(found[name.lower()]) for name in more} == more
    assert found["name"] == "six-transfer"
