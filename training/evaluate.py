"""The stage that judges a model: from its answers to labelled offers to a report.

report.json    every figure
report.html    the same for people, in one file
history.jsonl  the categories' figures of every model that was judged here, one a line
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from training import predictions as answers
from training import report
from training.bootstrap import Bootstrap
from training.measures import measure
from training.parameters import EvaluateParameters
from training.predictions import Predictions
from training.stage import Record, Stage, StageError, hash_inputs, write_json

REPORT = "report.json"
PAGE = "report.html"
HISTORY = "history.jsonl"

VERSION = 1

OWN = ""  # the model that is judged, among the names of those that it is compared with


def make(
    parameters: EvaluateParameters,
    predictions: Path,
    against: Mapping[str, Path],
    taxonomy: Path | None,
    train: Path | None,
    out: Path,
    say: Callable[[str], None],
    at: datetime | None = None,
) -> Record:
    """Judge the answers in `predictions`, also against other models' to the same offers.

    `against` has a name for each of those. `taxonomy` gives the categories their names, `train`,
    what the model was trained on, their frequency. `at` is the date that the history shows.

    Raises StageError.
    """
    if not all(against):
        raise StageError("a model to compare with has no name")
    files = {"predictions": predictions, **{f"against {n}": p for n, p in sorted(against.items())}}
    others = {"taxonomy": taxonomy, "train": train}
    inputs = hash_inputs(files | {name: path for name, path in others.items() if path is not None})
    stage = Stage("evaluate", out, parameters, inputs, version=VERSION)
    if done := stage.done():
        say(f"{out}: is done already")
        return done
    stage.begin()
    given = answers.read({OWN: predictions, **dict(sorted(against.items()))})
    judged = judge(given[OWN], parameters)
    write_json(out / REPORT, judged)
    report.write(out / PAGE, judged)
    summary = {
        name: measured["figures"]["accuracy"]["value"]
        for name, measured in judged["overall"].items()
    }
    return stage.finish({"accuracy": summary}, {REPORT: out / REPORT, PAGE: out / PAGE})


def judge(given: Predictions, parameters: EvaluateParameters) -> dict[str, Any]:
    how = Bootstrap(parameters.resamples, parameters.confidence, parameters.seed)
    everything = np.arange(len(given))
    overall = {"unweighted": measure(given, everything, np.ones(len(given)), how)}
    if given.weights is not None:
        overall["production"] = measure(given, everything, given.weights, how)
    return {
        "model": given.model,
        "overall": msgspec.to_builtins(overall),
    }
