from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from classifier.demo import DemoError, training

# Stands in for `python -m training`: copies an artefact to where it is told to train one.
STAND_IN = """
import pathlib, shutil, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
shutil.copytree({trained!r}, out, dirs_exist_ok=True)
(out / "arguments").write_text(" ".join(sys.argv[1:]))
print("never seen")
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stand_in(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "training.py"
    script.write_text(STAND_IN.format(trained=str(artifact.parent)))
    monkeypatch.setattr(training, "_COMMAND", (sys.executable, str(script)))
    return script


def test_model_is_trained_once_and_kept(
    tmp_path: Path, stand_in: Path, artifact: Path, said: list[str]
) -> None:
    models = tmp_path / "models"
    first = training.model(None, models, said.append)
    assert first.manifest.id == artifact.name
    assert first.path == models / "demo" / artifact.name
    stand_in.unlink()
    assert training.model(None, models, said.append) == first
    assert "training a model on sample offers" in said[0]
    assert f"model {artifact.name}, kept in" in said[1]


@pytest.mark.usefixtures("stand_in")
def test_model_of_a_file_is_kept_by_the_files_content(tmp_path: Path, said: list[str]) -> None:
    models = tmp_path / "models"
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    one.write_text("a")
    same.write_text("a")
    other.write_text("b")
    first = training.model(one, models, said.append)
    arguments = (first.path.parent / "arguments").read_text()
    assert arguments == f"--out {first.path.parent} --train {one}"
    assert training.model(same, models, said.append).path == first.path
    assert training.model(other, models, said.append).path.parent != first.path.parent
    assert first.path.parent.name != "demo"


@pytest.mark.usefixtures("stand_in")
def test_spoiled_model_is_trained_anew(tmp_path: Path, said: list[str]) -> None:
    models = tmp_path / "models"
    kept = training.model(None, models, said.append).path
    (kept / "labels.json").write_text("[]")
    assert training.model(None, models, said.append).path == kept
    assert [line.split()[0] for line in said] == ["training", "training"]


def test_training_that_fails_is_one_line(
    tmp_path: Path, stand_in: Path, said: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in.write_text("import sys; sys.exit('no memory')")
    with pytest.raises(DemoError, match="the training ended with exit code 1"):
        training.model(None, tmp_path / "models", said.append)
    assert "no memory" in capfd.readouterr().err


def test_training_that_leaves_nothing_is_one_line(
    tmp_path: Path, stand_in: Path, said: list[str]
) -> None:
    stand_in.write_text("")
    with pytest.raises(DemoError, match="left no artefact"):
        training.model(None, tmp_path / "models", said.append)


def test_missing_packages_are_named(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_ASKED", ("json", "no_such_package", "nor_this_one"))
    with pytest.raises(DemoError, match=r"needs no_such_package, nor_this_one: pip install"):
        training.model(None, tmp_path / "models", said.append)


def test_missing_packages_do_not_matter_where_a_model_is_kept(
    tmp_path: Path, artifact: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(artifact.parent, tmp_path / "demo")
    monkeypatch.setattr(training, "_ASKED", ("no_such_package",))
    assert training.model(None, tmp_path, said.append).manifest.id == artifact.name


def test_missing_training_file_is_one_line(tmp_path: Path, said: list[str]) -> None:
    with pytest.raises(DemoError, match=r"cannot read .*missing"):
        training.model(tmp_path / "missing", tmp_path / "models", said.append)
