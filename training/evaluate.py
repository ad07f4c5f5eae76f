"""The stage that judges a model: from its answers to labelled offers to a report.

report.json    every figure: a training.judgement.Judgement
report.html    the same for people, in one file
history.jsonl  what became of the categories with every model that was judged here, one a line
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from classifier.jsonl import FileError
from training import history, report
from training.judgement import Judgement, judge, successors
from training.measures import Measured
from training.parameters import EvaluateParameters
from training.predictions import label_counts, read
from training.stage import Record, Stage, StageError, hash_inputs, write_json
from training.taxonomy import load as load_taxonomy

REPORT = "report.json"
PAGE = "report.html"
HISTORY = "history.jsonl"

VERSION = 1

_OWN = ""  # the model that is judged, among the names of those that it is compared with


def make(
    parameters: EvaluateParameters,
    predictions: Path,
    against: Mapping[str, Path],
    taxonomy: Path | None,
    train: Path | None,
    out: Path,
    say: Callable[[str], None],
    *,
    at: datetime | None = None,
) -> Record:
    """Judge a model by a file of its answers, also against others by theirs to the same offers.

    `predictions` is the file, and `against` has one by a name for each of the others. `taxonomy`
    gives the categories their names, and `train`, what the model was trained on, their frequency.
    `at` is when, in the history; now, if None.

    Raises StageError.
    """
    if _OWN in against:
        raise StageError("a model to compare with has no name")
    files = {_OWN: predictions, **dict(sorted(against.items()))}
    inputs = {f"against {name}" if name else "predictions": path for name, path in files.items()}
    if taxonomy is not None:
        inputs["taxonomy"] = taxonomy
    if train is not None:
        inputs["train"] = train
    stage = Stage("evaluate", out, parameters, hash_inputs(inputs), version=VERSION)
    past = history.read(out / HISTORY)
    done = stage.done()
    if done and history.has(past, done.summary["model"], done.summary["test_set"]):
        say(f"{out}: is done already")
        return done
    stage.begin()
    known = None if taxonomy is None else load_taxonomy(taxonomy)
    given = read(files, None if known is None else successors(known))
    judged = judge(
        given.pop(_OWN),
        given,
        known,
        None if train is None else label_counts(train),
        parameters,
        lambda step: say(f"figures: {step}"),
    )
    past = history.add(past, history.entry(judged, at or datetime.now(UTC)))
    try:
        write_json(out / REPORT, judged)
        report.write(out / PAGE, judged, past)
        history.write(out / HISTORY, past)
    except FileError as error:
        raise StageError(str(error)) from error
    for line in headline(judged):
        say(line)
    return stage.finish(_summary(judged), {REPORT: out / REPORT, PAGE: out / PAGE})


def headline(judged: Judgement) -> list[str]:
    """The judgement in a few lines."""
    lines = [
        f"{weighting}: {_line(measured)} (of {measured.offers:,} offers)"
        for weighting, measured in judged.overall.items()
    ]
    for name, compared in judged.against.items():
        accuracy = compared.unweighted["accuracy"].difference
        lines.append(
            f"against {name}: accuracy {_signed(accuracy.value)} "
            f"[{_signed(accuracy.low)}, {_signed(accuracy.high)}], p = {compared.p_value:.2g}"
        )
    return lines


def _line(measured: Measured) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {figure.value:.4f}"
        for name, figure in measured.figures.items()
        if figure.value is not None
    )


def _signed(value: float | None) -> str:
    return "?" if value is None else f"{value:+.4f}"


def _summary(judged: Judgement) -> dict[str, Any]:
    """What a tracker is told."""
    return {
        "model": judged.model,
        "test_set": judged.test_set.sha256,
        "offers": judged.test_set.offers,
        "errors": sum(judged.test_set.errors.values()),
        **{
            weighting: {name: figure.value for name, figure in measured.figures.items()}
            for weighting, measured in judged.overall.items()
        },
        "against": {
            name: {
                "accuracy": compared.unweighted["accuracy"].difference.value,
                "p_value": compared.p_value,
            }
            for name, compared in judged.against.items()
        },
    }
