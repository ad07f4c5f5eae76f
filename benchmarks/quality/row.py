"""A row: a model trained, served and judged by its recipe, each stage done once.

Of a directory WORK:

    sets              the sets, as every stage reads them
    <row>/model       training baseline, teacher, student or wide
    <row>/artifact    what is served of a checkpoint
    <row>/answers     to the test set and to validation
    <row>/report      training evaluate on the test set
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
from pydantic import BaseModel

from benchmarks.quality import answers
from benchmarks.quality.attempts import attempt
from benchmarks.quality.recipes import Recipe, Recipes
from classifier import artifact
from classifier.artifact import resolve
from training import given
from training.judgement import Judgement
from training.parameters import Parameters
from training.sets import Say
from training.stage import Record, Stage, StageError, read_record

TARGET = "onnx-cpu"


class NotHereError(StageError):
    """This machine cannot make the row. The message is one line."""


@dataclass(frozen=True)
class Given:
    """What the rows are made of."""

    train: Path
    validation: Path
    test: Path
    unlabelled: Path | None = None
    encoder: Path | None = None  # what teacher and students start from, where not the recipes' own


class Finished(NamedTuple):
    """A row whose stages belong together: each is of what the one before it left."""

    place: Path
    model: Record
    answers: Record
    judged: Judgement


class _Target(BaseModel):
    target: str = TARGET


def run(name: str, recipes: Recipes, given_files: Given, work: Path, say: Say) -> Record:
    """Make the row `work`/`name`, or what is missing of it; the evaluation's record.

    Raises ParameterError, StageError, NotHereError and what the stages raise.
    """
    from training import evaluate

    sets = _sets(given_files, work)
    parameters = recipes.parameters(name, given_files.encoder)
    place = work / name
    say(f"{name}: {recipes.rows[name].what}")
    model = _model(name, recipes, given_files, sets, work, say)
    answers.make(_served(model, place), sets, place / "answers", say)
    other = work / recipes.against / "answers"
    against = {}
    if name != recipes.against and read_record(other) is not None:
        against[recipes.against] = other / "test.parquet"
    return evaluate.make(
        parameters.evaluate,
        place / "answers" / "test.parquet",
        against,
        None,
        sets["train"],
        place / "report",
        say,
    )


def finished(name: str, recipes: Recipes, work: Path) -> Finished | None:
    """The row as this very recipe made it of the sets; None where it did not, or not to the end."""
    place = work / name
    sets, model = read_record(work / "sets"), _trained(name, recipes, work)
    answered, reported = read_record(place / "answers"), read_record(place / "report")
    if sets is None or model is None or answered is None or reported is None:
        return None
    try:
        judged = msgspec.json.decode(
            (place / "report" / "report.json").read_bytes(), type=Judgement
        )
    except (OSError, msgspec.DecodeError):
        return None
    served = model.summary.get("artifact")
    if served is None:
        compiled = read_record(place / "artifact")
        if compiled is None or compiled.inputs["checkpoint"] != model.summary["checkpoint"]:
            return None
        served = compiled.summary["artifact"]
    follows = (
        answered.inputs["test"] == sets.files["test.parquet"]
        and answered.inputs["model"] == judged.model == served
        and reported.inputs["predictions"] == answered.files["test.parquet"]
    )
    return Finished(place, model, answered, judged) if follows else None


def _trained(name: str, recipes: Recipes, work: Path) -> Record | None:
    """The row's model, if it and all that it is made of are by today's recipes and sets."""
    sets, model = read_record(work / "sets"), read_record(work / name / "model")
    if sets is None or model is None:
        return None
    if _without_encoder(model.parameters) != _without_encoder(_expected(name, recipes)):
        return None
    for each in ("train", "validation"):
        if model.inputs.get(each, sets.files[f"{each}.parquet"]) != sets.files[f"{each}.parquet"]:
            return None
    for role, other in recipes.needs(name).items():
        part = _trained(other, recipes, work)
        if part is None or model.inputs[role] != part.summary[_HASH[role]]:
            return None
    return model


_HASH = {"teacher": "checkpoint", "student": "checkpoint", "linear": "artifact"}
"""By which of its summary a stage knows the model that it is made of."""


def _sets(files: Given, work: Path) -> dict[str, Path]:
    named = {"train": files.train, "validation": files.validation, "test": files.test}
    given.make(named, work / "sets")
    return {name: work / "sets" / f"{name}.parquet" for name in named}


def _model(
    name: str,
    recipes: Recipes,
    files: Given,
    sets: Mapping[str, Path],
    work: Path,
    say: Say,
) -> Record:
    """The row's own stage of training, after those that it needs."""
    recipe = recipes.rows[name]
    if recipe.gpu and not _has_gpu():
        raise NotHereError(f"{name}: needs a GPU, and there is none here")
    if recipe.transfer and files.unlabelled is None:
        raise StageError(f"{name}: needs unlabelled offers: UNLABELLED=FILE")
    needs = recipes.needs(name)
    for other in needs.values():
        _model(other, recipes, files, sets, work, say)
    models = {role: work / other / "model" for role, other in needs.items()}
    out = work / name / "model"
    make = _stage(recipe, recipes.parameters(name, files.encoder), files, sets, models, out, say)
    return attempt(work / name, out, make)


def _stage(
    recipe: Recipe,
    parameters: Parameters,
    files: Given,
    sets: Mapping[str, Path],
    models: Mapping[str, Path],
    out: Path,
    say: Say,
) -> Callable[[], Record]:
    """The stage as `python -m training` calls it; `models` are of the rows that it needs."""
    train, validation = sets["train"], sets["validation"]
    if recipe.stage == "baseline":
        from training import baseline

        return lambda: baseline.make(parameters.baseline, train, validation, None, out, say)
    if recipe.stage == "teacher":
        from training import teacher

        return lambda: teacher.make(parameters.teacher, train, validation, None, out, say)
    if recipe.stage == "wide":
        from training import wide

        return lambda: wide.make(
            parameters.wide, models["student"], models["linear"], validation, out, say
        )
    from training import student

    transfer = files.unlabelled if recipe.transfer else None
    by = models.get("teacher")
    return lambda: student.make(parameters.student, train, validation, transfer, by, None, out, say)


def _served(model: Record, place: Path) -> Path:
    """The artefact of the row's model, compiled where it is a checkpoint."""
    if "artifact" in model.summary:
        return resolve(place / "model")
    from compile.build import CompileError, build
    from training.finetuning import CHECKPOINT

    checkpoint, out = place / "model" / CHECKPOINT, place / "artifact"
    stage = Stage("artifact", out, _Target(), {"checkpoint": model.summary["checkpoint"]})
    if stage.done() is None:
        stage.begin()
        try:
            built = build(checkpoint, TARGET, out)
        except CompileError as error:
            raise StageError(f"{place.name}: {error}") from error
        artifact.set_current(out, built)
        results = {f"{built.name}/{path.name}": path for path in built.iterdir()}
        results[artifact.CURRENT] = out / artifact.CURRENT
        stage.finish({"artifact": built.name}, results)
    return resolve(out)


def _expected(name: str, recipes: Recipes) -> dict[str, object]:
    section = getattr(recipes.parameters(name, None), recipes.rows[name].stage)
    expected: dict[str, object] = section.model_dump(mode="json")
    return expected


def _without_encoder(parameters: Mapping[str, object]) -> dict[str, object]:
    """Which directory the encoder came from does not make a row another one."""
    return {key: value for key, value in parameters.items() if key != "encoder"}


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
