"""The table: every row's figures, from the records that its stages left.

A row that was not run, or not by the recipe that stands in rows.yaml today, has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.quality import attempts, errors, hierarchy, row
from benchmarks.quality.answers import mean_over_sources
from benchmarks.quality.hierarchy import Label
from benchmarks.quality.recipes import Recipes
from benchmarks.quality.row import Finished
from training.judgement import UNWEIGHTED, Judgement
from training.predictions import read

EVERYTHING = "all"
"""In place of the sources, where none is known."""


class Figures(msgspec.Struct, frozen=True):
    """One row that was run."""

    offers: int
    accuracy: float  # mean over sources, as macro_f1
    macro_f1: float  # over the labels that occur in a source
    sources: dict[str, float]  # accuracy
    languages: dict[str, float]
    errors: float | None  # in the SVM's, mean over sources
    errors_by_source: dict[str, float | None]
    errors_by_language: dict[str, float | None]
    worse: list[str]  # sources with more errors than the SVM
    behind_teacher: float | None  # points of accuracy, mean over sources; negative: ahead
    validation: float | None  # accuracy, mean over sources; None where it was fitted on that
    hierarchy: dict[str, float]  # weighted F1 averaged over the levels, by source
    weights: int | None
    minutes: float  # of training, over all runs
    offers_per_cpu_second: float


class Quality(msgspec.Struct, frozen=True):
    """quality.json."""

    rows: dict[str, Figures | None]  # None: not run


def make(recipes: Recipes, work: Path, labels: Path | None = None) -> Quality:
    """Reads the rows in `work`; `labels`, labels with their parents, adds figures by level.

    Raises StageError.
    """
    known = None if labels is None else hierarchy.load(labels)
    ran = {name: row.finished(name, recipes, work) for name in recipes.rows}
    against = ran[recipes.against]
    figures = {
        name: None if found is None else _figures(name, found, against, ran, recipes, known)
        for name, found in ran.items()
    }
    return Quality(figures)


def _figures(
    name: str,
    found: Finished,
    against: Finished | None,
    ran: Mapping[str, Finished | None],
    recipes: Recipes,
    labels: Mapping[str, Label] | None,
) -> Figures:
    sources = _sources(found.judged)
    languages = _accuracies(found.judged, "language")
    relative = by_language = None
    if against is not None:
        relative = errors.relative(sources, _sources(against.judged))
        by_language = errors.relative(languages, _accuracies(against.judged, "language"))
    return Figures(
        offers=found.judged.test_set.offers,
        accuracy=mean_over_sources(sources),
        macro_f1=_macro_f1(found.judged),
        sources=sources,
        languages=languages,
        errors=None if relative is None else relative.mean,
        errors_by_source={} if relative is None else relative.by_source,
        errors_by_language={} if by_language is None else by_language.by_source,
        worse=[] if relative is None else relative.worse,
        behind_teacher=_behind(name, found, ran, recipes),
        validation=None if recipes.learns_validation(name) else found.answers.summary["validation"],
        hierarchy=_by_level(found, labels),
        weights=found.model.summary.get("weights"),
        minutes=attempts.seconds(found.place, found.model) / 60,
        offers_per_cpu_second=found.answers.summary["offers_per_cpu_second"],
    )


def _accuracies(judged: Judgement, by: str) -> dict[str, float]:
    return {
        part.name: part.unweighted.figures["accuracy"].value or 0.0
        for part in judged.slices.get(by, [])
    }


def _sources(judged: Judgement) -> dict[str, float]:
    overall = judged.overall[UNWEIGHTED].figures["accuracy"].value or 0.0
    return _accuracies(judged, "source") or {EVERYTHING: overall}


def _macro_f1(judged: Judgement) -> float:
    figures = judged.mean_of_sources or judged.overall[UNWEIGHTED].figures
    return figures["macro_f1_true_labels"].value or 0.0


def _behind(
    name: str, found: Finished, ran: Mapping[str, Finished | None], recipes: Recipes
) -> float | None:
    """Points of accuracy by which the row's own teacher is better, mean over sources."""
    by = recipes.teacher(name)
    teacher = None if by is None else ran[by]
    if teacher is None:
        return None
    theirs, own = (mean_over_sources(_sources(each.judged)) for each in (teacher, found))
    return 100 * (theirs - own)


def _by_level(found: Finished, labels: Mapping[str, Label] | None) -> dict[str, float]:
    if labels is None:
        return {}
    answered = read({"": found.place / "answers" / "test.parquet"})[""]
    return hierarchy.by_source(answered, labels)
