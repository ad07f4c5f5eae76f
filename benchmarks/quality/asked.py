"""What is asked of a student that is small enough to serve, and whether it holds."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.quality.recipes import Recipes
from benchmarks.quality.table import Figures, Quality

MOST_LAYERS = 6
MOST_ERRORS = 0.7
"""In the SVM's, as the mean over the sources; and no source may be worse than the SVM."""
MOST_BEHIND = 0.5
"""Points behind its teacher, which counts if it beats the SVM on validation."""


def lines(quality: Quality, recipes: Recipes) -> list[str]:
    """A line for each distilled student that was run and has at most MOST_LAYERS layers."""
    return [
        f"`{name}`: {'; '.join(_parts(name, figures, quality.rows, recipes))}"
        for name, figures in quality.rows.items()
        if figures is not None and _concerns(name, recipes)
    ]


def _concerns(name: str, recipes: Recipes) -> bool:
    if recipes.teacher(name) is None:
        return False
    layers = recipes.parameters(recipes.rows[name].student or name, None).student.layers
    return layers is not None and layers <= MOST_LAYERS


def _parts(
    name: str, own: Figures, rows: Mapping[str, Figures | None], recipes: Recipes
) -> list[str]:
    against, teacher = recipes.against, recipes.teacher(name)
    parts = []
    if rows[against] is None:
        parts.append(f"`{against}` was not run")
    elif own.errors is None:
        parts.append(f"`{against}` makes no errors that this one's could be compared with")
    else:
        met = _met(own.errors <= MOST_ERRORS)
        parts.append(f"{own.errors:.2f} of the errors of `{against}`, asked {MOST_ERRORS}: {met}")
        worse = ", ".join(own.worse) or "no source"
        parts.append(f"worse than it in {worse}, asked none: {_met(not own.worse)}")
    if own.behind_teacher is None:
        parts.append("its teacher was not run")
    else:
        met = _met(own.behind_teacher <= MOST_BEHIND)
        parts.append(
            f"{own.behind_teacher:.2f} points behind its teacher, asked {MOST_BEHIND}: {met}"
        )
        parts.append(_counts(rows[teacher or ""], rows, recipes))
    return parts


def _counts(teacher: Figures | None, rows: Mapping[str, Figures | None], recipes: Recipes) -> str:
    beaten = None if recipes.decides is None else rows[recipes.decides]
    ours = None if teacher is None else teacher.validation
    theirs = None if beaten is None else beaten.validation
    if ours is None or theirs is None:
        return "whether the teacher beats the SVM on validation is not known"
    verb = "beats" if ours > theirs else "does not beat"
    return (
        f"the teacher {verb} `{recipes.decides}` on validation,"
        f" {100 * ours:.2f} and {100 * theirs:.2f}"
    )


def _met(met: bool) -> str:
    return "met" if met else "missed"
