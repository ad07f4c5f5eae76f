"""The demonstration model: the one that is kept, or a new one, trained by a process of its own."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from classifier.artifact import Artifact, ArtifactError, current
from classifier.demo import DemoError
from classifier.demo.servers import tied

_COMMAND = (sys.executable, "-m", "training", "demo-model")
_ASKED = ("torch", "transformers", "onnx", "onnxruntime")


def model(train: Path | None, models: Path, say: Callable[[str], None]) -> Artifact:
    """The artefact trained on `train`, or on sample offers when that is None; kept in `models`.

    Raises:
        DemoError: the packages for training are missing, or the training failed.
    """
    directory = models / (_name(train) if train else "demo")
    kept = _kept(directory)
    if kept is not None:
        say(f"model {kept.manifest.id}, kept in {directory}")
        return kept
    missing = [name for name in _ASKED if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoError(
            f"training the model needs {', '.join(missing)}: pip install 'offer-classifier[demo]'"
        )
    say(f"training a model on {train or 'sample offers'}, once; it is kept in {directory}")
    _train(train, directory)
    trained = _kept(directory)
    if trained is None:
        raise DemoError(f"the training left no artefact in {directory}")
    return trained


def _name(train: Path) -> str:
    """The same content is the same model, whatever the file's name."""
    try:
        with train.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise DemoError(f"cannot read {train}: {error.strerror}") from error


def _kept(directory: Path) -> Artifact | None:
    """The artefact there; None when there is none, or none that this version can serve."""
    try:
        return Artifact.load(current(directory))
    except ArtifactError:
        return None


def _train(train: Path | None, directory: Path) -> None:
    command = [*tied("SIGTERM"), *_COMMAND, "--out", str(directory)]
    if train:
        command += ["--train", str(train)]
    # Its progress goes to the terminal; its answer, one line of JSON, is in the directory too.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=_offline()
    ) as process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    if code:
        raise DemoError(f"the training ended with exit code {code}; what it said stands above")


def _offline() -> dict[str, str]:
    """The model starts from nothing, and no hub is asked for anything."""
    return {**os.environ, "HF_HUB_OFFLINE": "1"}
