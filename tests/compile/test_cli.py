"""`python -m compile` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from classifier.artifact import Artifact, resolve
from compile.cli import TargetName, app


def test_compiles_and_prints_the_path(artifact: Path, tmp_path: Path) -> None:
    checkpoint = artifact.parent / "checkpoint"
    done = CliRunner().invoke(
        app, [str(checkpoint), "--target", "torch-cpu", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    assert Artifact.load(Path(done.stdout.strip())).manifest.target == "torch-cpu"


def test_what_is_compiled_as_current_is_served(artifact: Path, tmp_path: Path) -> None:
    checkpoint = str(artifact.parent / "checkpoint")
    done = CliRunner().invoke(app, [checkpoint, "--out", str(tmp_path), "--current"])
    assert done.exit_code == 0, done.output
    assert resolve(tmp_path) == Path(done.stdout.strip())


def test_own_mistakes_are_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [str(tmp_path / "nothing"), "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "no checkpoint" in done.stderr


def test_every_target_can_be_named() -> None:
    from compile.build import TARGETS

    assert {target.value for target in TargetName} == set(TARGETS)


def test_build_may_be_named(artifact: Path, tmp_path: Path) -> None:
    checkpoint = str(artifact.parent / "checkpoint")
    done = CliRunner().invoke(
        app, ["build", checkpoint, "--target", "torch-cpu", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    assert Artifact.load(Path(done.stdout.strip())).manifest.target == "torch-cpu"


def test_verify_says_what_was_compared(artifact: Path) -> None:
    done = CliRunner().invoke(
        app, ["verify", str(artifact.parent / "checkpoint"), str(artifact.parent)]
    )
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["precision"] == "fp32"
    assert said["top1_agreement"] == 1.0
    assert said["largest_difference"] < said["bound"]


def test_verify_refuses_in_one_line(artifact: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(tmp_path), str(artifact)])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_dynamic_quantisation_is_refused_with_the_reason(artifact: Path, tmp_path: Path) -> None:
    checkpoint = str(artifact.parent / "checkpoint")
    arguments = ["build", checkpoint, "--out", str(tmp_path), "--precision", "dynamic"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert "dynamic quantisation is refused, because it scales activations" in done.stderr
    assert done.stderr.count("\n") == 1
