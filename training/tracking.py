"""Tracking: a finished stage as a run in MLflow, where MLflow is installed.

It goes to MLFLOW_TRACKING_URI, or else into mlflow.db in the current directory. A stage never
fails because of it: what cannot be logged is said in one line.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from training.stage import Record

EXPERIMENT = "offer-classifier"

REPORTS = frozenset(
    {"dataset.json", "plots.png", "report.json", "report.html", "verdict.json", "verdict.html"}
)
"""Results that are kept with the run, of whatever stage: what a person reads. Models and sets are
not: their hashes are in stage.json."""


def log(record: Record, out: Path, say: Callable[[str], None] = print) -> bool:
    """Log a stage's parameters, the figures of its summary and its reports, which lie in `out`.

    Gives whether it did.
    """
    if importlib.util.find_spec("mlflow") is None:
        return False
    # It asks no one's leave to send usage data.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Its own seven tries at a server that is away take minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        mlflow.set_experiment(EXPERIMENT)
        with mlflow.start_run(run_name=record.stage):
            mlflow.set_tags({"stage": record.stage, "fingerprint": record.fingerprint})
            mlflow.log_params(dict(_flat(record.parameters, str)) | record.inputs)
            mlflow.log_metrics({"seconds": record.seconds, **dict(_flat(record.summary, _number))})
            for file in reports(record, out):
                mlflow.log_artifact(str(file))
    except Exception as error:  # noqa: BLE001 a tracker that is away must not cost a night's training
        say(f"MLflow does not take this run: {' '.join(str(error).split())[:200]}")
        return False
    return True


def reports(record: Record, out: Path) -> list[Path]:
    """Those of a stage's results that are REPORTS, wherever in `out` they lie."""
    return [out / name for name in record.files if Path(name).name in REPORTS]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _flat(
    tree: Mapping[str, Any], leaf: Callable[[object], Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Leaves by their path, a.b.c; those that `leaf` gives None for are left out."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, leaf, f"{name}.")
        elif (made := leaf(value)) is not None:
            yield name, made
