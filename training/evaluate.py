"""The stage that judges a model: from its answers to labelled offers to a report.

report.json    every figure: a training.judgement.Judgement
report.html    the same for people, in one file
history.jsonl  what became of the categories with every model that was judged here, one a line
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from classifier.jsonl import FileError
from training import history, report
from training.judgement import PRODUCTION, Judgement, judge, successors
from training.measures import Measured
from training.parameters import EvaluateParameters
from training.predictions import label_counts, read
from training.stage import Record, Stage, StageError, hash_inputs, write_json
from training.taxonomy import load as load_taxonomy

REPORT = "report.json"
PAGE = "report.html"
HISTORY = "history.jsonl"

STAGE = "evaluate"
VERSION = 3

_OWN = ""  # the model that is judged, among the names of those that it is compared with


class _Test(msgspec.Struct, frozen=True):
    offers: int
    uncovered_mass: Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Dataset(msgspec.Struct, frozen=True):
    """What dataset.json says of the test set."""

    test: _Test


def make(
    parameters: EvaluateParameters,
    predictions: Path,
    against: Mapping[str, Path],
    taxonomy: Path | None,
    train: Path | None,
    out: Path,
    say: Callable[[str], None],
    *,
    dataset: Path | None = None,
    at: datetime | None = None,
) -> Record:
    """Judge a model by a file of its answers, also against others by theirs to the same offers.

    `predictions` is the file, and `against` has one by a name for each of the others. `taxonomy`
    gives the categories their names, and `train`, what the model was trained on, their frequency.
    `dataset`, the dataset.json beside the test set, tells how much of production it stands for.
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
    if dataset is not None:
        inputs["dataset"] = dataset
    stage = Stage(STAGE, out, parameters, hash_inputs(inputs), version=VERSION)
    past = history.read(out / HISTORY)
    done = stage.done()
    if done and history.has(past, done.summary["model"], done.summary["test_set"]):
        say(f"{out}: is done already")
        return done
    stage.begin()
    known = None if taxonomy is None else load_taxonomy(taxonomy)
    drawn = None if dataset is None else _drawn(dataset)
    given = read(files, None if known is None else successors(known))
    own = given.pop(_OWN)
    if drawn is not None and drawn.offers != len(own):
        raise StageError(
            f"{dataset}: is of a test set of {drawn.offers:,} offers, and {predictions} has "
            f"{len(own):,}"
        )
    judged = judge(
        own,
        given,
        known,
        None if train is None else label_counts(train),
        parameters,
        lambda step: say(f"figures: {step}"),
        uncovered_mass=None if drawn is None else drawn.uncovered_mass,
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
    uncovered = judged.test_set.uncovered_mass
    part = (
        ""
        if uncovered is None
        else f", which stand for {100 * (1 - uncovered):.1f} % of production"
    )
    lines = [
        f"{weighting}: {_line(measured)} "
        f"(of {measured.offers:,} offers{part if weighting == PRODUCTION else ''})"
        for weighting, measured in judged.overall.items()
    ]
    for name, compared in judged.against.items():
        accuracy = compared.unweighted["accuracy"].difference
        lines.append(
            f"against {name}: accuracy {_signed(accuracy.value)} "
            f"[{_signed(accuracy.low)}, {_signed(accuracy.high)}], p = {compared.p_value:.2g}"
        )
    return lines


def _drawn(path: Path) -> _Test:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Dataset).test
    except OSError as error:
        raise StageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StageError(f"{path}: is not what the data-set stage wrote: {error}") from error


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
        "uncovered_mass": judged.test_set.uncovered_mass,
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
