"""Ablation: what a parameter of the student is worth, judged on validation, one varied at a time.

Each value has a student stage in a directory of its own, so a killed sweep goes on where it was,
and more values later cost only themselves:

    ablation.json    the figures of every run
    ablation.md      the same as tables
    ablation.svg     accuracy and macro F1 by value
    runs/<name>      the student stage of one value; as-given: with nothing varied
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure

from classifier.whole_file import appearing
from compile import strict_yaml
from training import parameters, student
from training.parameters import ParameterError, StudentParameters
from training.sets import Say
from training.stage import StageError, write_json

RUNS = "runs"
AS_GIVEN = "as-given"
TABLE, PAGE, PICTURE = "ablation.json", "ablation.md", "ablation.svg"

STAGE = "student."
FIGURES: Mapping[str, str] = {"accuracy": "accuracy", "macro_f1": "macro F1"}
"""What is compared, as the student's stage measures it on validation."""


class Sweep(NamedTuple):
    """One parameter and the values that it is given."""

    key: str
    values: tuple[Any, ...]
    students: tuple[StudentParameters, ...]  # one a value


class Run(msgspec.Struct, frozen=True):
    """What came of one value."""

    value: Any
    run: str  # name of its directory
    figures: dict[str, float | None]  # by FIGURES; of a run that failed there are none
    weights: int | None = None
    minutes: float | None = None  # of the run that finished it
    error: str | None = None


class Ablation(msgspec.Struct, frozen=True):
    """ablation.json."""

    sweeps: dict[str, list[Run]]  # by the parameter that was varied


def sweeps(pipeline: Path, overrides: Sequence[str], varied: Sequence[str]) -> list[Sweep]:
    """What `varied` asks for: each of it is "student.key=[value, ...]" in YAML.

    All else is as `pipeline` and `overrides` say. Raises ParameterError.
    """
    made: dict[str, Sweep] = {}
    for each in varied:
        place, _, listed = each.partition("=")
        place = place.strip()
        try:
            values = strict_yaml.load(listed)
        except (yaml.YAMLError, RecursionError, UnicodeError) as error:
            line = " ".join(str(error).split())
            raise ParameterError(f"--vary {each}: is no YAML: {line}") from error
        if not place.startswith(STAGE) or not isinstance(values, list) or not values:
            raise ParameterError(f"--vary {each}: must be student.key=[value, ...]")
        key = place.removeprefix(STAGE)
        if key in made:
            raise ParameterError(f"--vary {each}: {place} is varied twice")
        others = [other for other in overrides if other.partition("=")[0].strip() != place]
        students = [_student(pipeline, others, each, place, value) for value in values]
        made[key] = Sweep(key, tuple(values), tuple(students))
    return list(made.values())


def make(
    given: StudentParameters,
    varied: Sequence[Sweep],
    train: Path,
    validation: Path,
    transfer: Path | None,
    teacher: Path | None,
    taxonomy: Path | None,
    out: Path,
    say: Say,
) -> Ablation:
    """Train a student for each value that is not trained yet, and write what came of all.

    A value that no student can be trained with is named in the table, and the others go on. Raises
    StageError when that is every one of them, DataError, FileError.
    """
    runs: dict[str, Run] = {}
    failed: StageError | None = None
    found: dict[str, list[Run]] = {}
    for sweep in varied:
        found[sweep.key] = []
        for value, parameters_of_it in zip(sweep.values, sweep.students, strict=True):
            name = AS_GIVEN if parameters_of_it == given else _name(sweep.key, value)
            if name not in runs:
                say(f"{sweep.key} = {_shown(value)}: {out / RUNS / name}")
                try:
                    record = student.make(
                        parameters_of_it,
                        train,
                        validation,
                        transfer,
                        teacher,
                        taxonomy,
                        out / RUNS / name,
                        say,
                    )
                except StageError as error:
                    say(f"{sweep.key} = {_shown(value)}: {error}")
                    failed = failed or error
                    runs[name] = Run(value, name, dict.fromkeys(FIGURES), error=str(error))
                else:
                    measured = record.summary["validation"]
                    runs[name] = Run(
                        value,
                        name,
                        {figure: measured.get(figure) for figure in FIGURES},
                        record.summary["weights"],
                        round(record.seconds / 60, 1),
                    )
            found[sweep.key].append(msgspec.structs.replace(runs[name], value=value))
    if failed is not None and all(run.error is not None for run in runs.values()):
        raise failed
    ablation = Ablation(found)
    write(ablation, out)
    return ablation


def write(ablation: Ablation, out: Path) -> None:
    """The table, the page and the picture, each whole. Raises FileError."""
    write_json(out / TABLE, ablation)
    for name, content in ((PICTURE, picture(ablation)), (PAGE, page(ablation))):
        with appearing(out / name) as file:
            file.write(content.encode())


def page(ablation: Ablation) -> str:
    """The tables in Markdown, and the picture."""
    lines = [
        "# What a student's parameters are worth",
        "",
        "On validation, one parameter varied at a time. Minutes are of the run that finished it.",
        "",
        f"![accuracy and macro F1 by value]({PICTURE})",
    ]
    for key, runs in ablation.sweeps.items():
        heads = [key, *FIGURES.values(), "weights, millions", "minutes"]
        lines += ["", f"## {key}", "", _row(heads), _row(["---"] * len(heads))]
        lines += [_row(_cells(run)) for run in runs]
    return "\n".join(lines) + "\n"


def picture(ablation: Ablation) -> str:
    """A plot a parameter, as a file of SVG: values in the order they were given in."""
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "offer-classifier", "axes.grid": True}
    with rc_context(settings):
        count = max(1, len(ablation.sweeps))
        figure = Figure(figsize=(4.2 * count, 3.4), layout="constrained")
        plots = figure.subplots(1, count, squeeze=False)[0]
        for axes, (key, runs) in zip(plots, ablation.sweeps.items(), strict=False):
            for (name, label), style in zip(FIGURES.items(), ("o-", "s--"), strict=True):
                points = [run.figures[name] for run in runs]
                axes.plot(
                    range(len(runs)),
                    [float("nan") if point is None else 100 * point for point in points],
                    style,
                    label=label,
                )
            axes.set_xticks(range(len(runs)), [_short(run.value) for run in runs])
            axes.set(xlabel=key, ylabel="%, on validation")
            axes.legend(loc="best", frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return file.getvalue()


def _student(
    pipeline: Path, overrides: Sequence[str], asked: str, place: str, value: Any
) -> StudentParameters:
    try:
        override = f"{place}={_shown(value)}"
        return parameters.load(pipeline, [*overrides, override]).student
    except TypeError as error:
        raise ParameterError(f"--vary {asked}: {error}") from error
    except ParameterError as error:
        told = str(error).replace(f"--set {override}", f"--vary {place}: {_shown(value)}")
        raise ParameterError(told) from None


def _name(key: str, value: Any) -> str:
    """What a directory can be called, and no other value's can."""
    shown = _shown(value)
    plain = re.sub(r"[^A-Za-z0-9.+-]+", "_", shown.strip('"'))[:40]
    if plain != shown.strip('"'):
        plain += "-" + hashlib.sha256(shown.encode()).hexdigest()[:8]
    return f"{key}-{plain}"


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _short(value: Any) -> str:
    shown = _shown(value).strip('"')
    if isinstance(value, dict):
        shown = ", ".join(map(str, value))
    shown = shown if len(shown) <= 24 else shown[:23] + "…"
    return shown.replace("$", r"\$")


def _cells(run: Run) -> list[str]:
    name = f"`{_shown(run.value)}`" + (", as given" if run.run == AS_GIVEN else "")
    if run.error is not None:
        return [name, run.error.replace("|", "\\|"), "", "", ""]
    shares = ["" if each is None else f"{100 * each:.2f}" for each in run.figures.values()]
    weights = "" if run.weights is None else f"{run.weights / 1e6:.1f}"
    return [name, *shares, weights, f"{run.minutes}"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
