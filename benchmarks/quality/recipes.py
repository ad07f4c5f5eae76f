"""Recipes: how each row of the table is made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from compile import strict_yaml
from training import parameters
from training.parameters import ParameterError, Parameters

ROWS = Path(__file__).with_name("rows.yaml")


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row."""

    what: str  # in a few words, for the table
    stage: Literal["baseline", "teacher", "student", "wide"]  # of `python -m training`
    teacher: str | None = None  # the row that teaches a student
    transfer: bool = False  # whether it learns from unlabelled offers too
    student: str | None = None  # the row whose encoder a wide model has
    linear: str | None = None  # and the one whose SVM
    gpu: bool = False  # whether it is out of a CPU's reach
    parameters: dict[str, dict[str, Any]] = {}


class Recipes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """rows.yaml."""

    against: str  # the row whose errors count as 1
    rows: dict[str, Recipe]
    decides: str | None = None  # the row that teachers have to beat on validation
    common: dict[str, dict[str, Any]] = {}  # parameters of every row

    def needs(self, name: str) -> dict[str, str]:
        """The rows whose models a row is made of, by what they are for it."""
        recipe = self.rows[name]
        found = {"teacher": recipe.teacher, "student": recipe.student, "linear": recipe.linear}
        return {role: other for role, other in found.items() if other is not None}

    def learns_validation(self, name: str) -> bool:
        """Whether a row's model is fitted on validation too, or one that it is made of is."""
        parameters, stage = self.parameters(name, None), self.rows[name].stage
        if stage == "wide":
            return any(map(self.learns_validation, self.needs(name).values()))
        if stage == "baseline":
            return parameters.baseline.refit
        return stage == "student" and parameters.student.refit_epochs > 0

    def teacher(self, name: str) -> str | None:
        """The row that taught a row's encoder."""
        return self.rows[self.rows[name].student or name].teacher

    def parameters(self, name: str, encoder: Path | None) -> Parameters:
        """All parameters of a row, with teacher and student made of `encoder` if it is given.

        Raises ParameterError.
        """
        own = self.rows[name].parameters
        merged = {
            section: {**self.common.get(section, {}), **own.get(section, {})}
            for section in {**self.common, **own}
        }
        if encoder is not None:
            for section in ("teacher", "student"):
                merged.setdefault(section, {})["encoder"] = str(encoder)
        return parameters.parse(merged, f"row {name}")


def load(path: Path = ROWS) -> Recipes:
    """The recipes in a file, checked. Raises ParameterError."""
    try:
        recipes = msgspec.convert(strict_yaml.load(path.read_bytes()), Recipes)
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError, UnicodeError) as error:
        raise ParameterError(f"{path}: is no YAML: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        raise ParameterError(f"{path}: {error}") from error
    for name in recipes.rows:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) or name in {"all", "sets"}:
            raise ParameterError(f"{path}: {name!r} cannot be a row's name")
        try:
            recipes.parameters(name, None)
            _check(name, recipes)
        except ParameterError as error:
            raise ParameterError(f"{path}: {error}") from None
    for pointed in (recipes.against, recipes.decides):
        if pointed is not None and pointed not in recipes.rows:
            raise ParameterError(f"{path}: there is no row {pointed!r}")
    return recipes


_STAGES = {"teacher": ("teacher",), "student": ("student", "teacher"), "linear": ("baseline",)}
"""The stages that a row can be of which another one needs, by what for."""


def _check(name: str, recipes: Recipes) -> None:
    recipe, needs = recipes.rows[name], recipes.needs(name)
    allowed = {"student": {"teacher"}, "wide": {"student", "linear"}}.get(recipe.stage, set())
    if needs.keys() - allowed or (recipe.stage == "wide" and needs.keys() != allowed):
        raise ParameterError(f"row {name}: a {recipe.stage} has {_listed(allowed)}")
    for role, other in needs.items():
        if other not in recipes.rows or recipes.rows[other].stage not in _STAGES[role]:
            raise ParameterError(f"row {name}: {role}: {other!r} is no row of that kind")
    if recipe.transfer and recipe.teacher is None:
        raise ParameterError(f"row {name}: without a teacher there is nothing to transfer")
    if recipe.stage == "wide":
        _check_wide(name, recipes)


def _check_wide(name: str, recipes: Recipes) -> None:
    """What `training wide` would find out after hours."""
    needs = recipes.needs(name)
    svm = recipes.parameters(needs["linear"], None).baseline
    kind = recipes.rows[needs["student"]].stage
    fields = getattr(recipes.parameters(needs["student"], None), kind).fields
    if list(svm.fields.items()) != list(fields.items()):
        raise ParameterError(
            f"row {name}: {needs['linear']} must read what {needs['student']} reads"
        )
    if recipes.learns_validation(needs["linear"]) != recipes.learns_validation(needs["student"]):
        raise ParameterError(
            f"row {name}: {needs['linear']} and {needs['student']} must both be fitted on"
            " validation in the end, or neither"
        )


def _listed(roles: set[str]) -> str:
    return " and ".join(f"a {role}" for role in sorted(roles)) or "neither teacher nor parts"
