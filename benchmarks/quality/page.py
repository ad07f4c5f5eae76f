"""The page: the quality table as people read it, in WORK/quality.md; quality.json for programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.quality import asked
from benchmarks.quality.recipes import Recipes
from benchmarks.quality.table import Figures, Quality
from classifier.whole_file import appearing
from training.stage import StageError, write_json

PAGE, FILE = "quality.md", "quality.json"
NOT_RUN = "not run"
BEGIN, END = "<!-- table -->", "<!-- end of the table -->"
"""Between these a page gets its tables."""

Parts = Mapping[str, float | None]
"""A figure by source or by language."""


def write(quality: Quality, recipes: Recipes, work: Path) -> None:
    """The table for people and for programs. Raises FileError."""
    write_json(work / FILE, quality)
    with appearing(work / PAGE) as file:
        file.write((markdown(quality, recipes) + "\n").encode())


def insert(page: Path, quality: Quality, recipes: Recipes) -> None:
    """Puts the tables between the marks of a page. Raises StageError, FileError."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise StageError(f"{page}: cannot be read: {error.strerror}") from error
    between = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)
    if not between.search(text):
        raise StageError(f"{page}: has no place for the table: {BEGIN} and {END}")
    made = f"{BEGIN}\n{markdown(quality, recipes)}\n{END}"
    with appearing(page) as file:
        file.write(between.sub(lambda _: made, text, count=1).encode())


def markdown(quality: Quality, recipes: Recipes) -> str:
    """The tables, and what is asked."""
    against = recipes.against
    heads = [
        "`ROW=`", "what", "accuracy", "macro F1", f"errors, `{against}` = 1",
        f"sources worse than `{against}`", "points behind its teacher", "accuracy in validation",
        "minutes of training", "offers per CPU second",
    ]  # fmt: skip
    rows = [
        [f"`{name}`", recipes.rows[name].what, *_cells(figures, own=name == against)]
        for name, figures in quality.rows.items()
    ]
    lines = _table(heads, rows)
    ran = {name: figures for name, figures in quality.rows.items() if figures is not None}
    parts: list[tuple[str, dict[str, Parts], bool]] = [
        ("Accuracy by source", {name: each.sources for name, each in ran.items()}, False),
        (
            f"Errors by source, `{against}` = 1",
            {name: each.errors_by_source for name, each in ran.items()},
            True,
        ),
        ("Accuracy by language", {name: each.languages for name, each in ran.items()}, False),
        (
            f"Errors by language, `{against}` = 1",
            {name: each.errors_by_language for name, each in ran.items()},
            True,
        ),
        (
            "Weighted F1, averaged over the levels that labels have above them, by source",
            {name: each.hierarchy for name, each in ran.items()},
            False,
        ),
    ]
    for title, by_row, ratio in parts:
        names = list(dict.fromkeys(part for each in by_row.values() for part in each))
        if names:
            cells = [
                [part, *(_number(each.get(part), ratio=ratio) for each in by_row.values())]
                for part in names
            ]
            lines += ["", f"{title}:", ""]
            lines += _table(["", *(f"`{name}`" for name in by_row)], cells)
    if told := asked.lines(quality, recipes):
        lines += ["", "What is asked of a student of at most six layers:", ""]
        lines += [f"- {line}" for line in told]
    return "\n".join(lines)


def _cells(figures: Figures | None, *, own: bool) -> list[str]:
    if figures is None:
        return [NOT_RUN, *[""] * 7]
    return [
        _number(figures.accuracy),
        _number(figures.macro_f1),
        _number(figures.errors, ratio=True),
        "" if own or figures.errors is None else ", ".join(figures.worse) or "none",
        "" if figures.behind_teacher is None else f"{figures.behind_teacher:.2f}",
        _number(figures.validation),
        f"{figures.minutes:,.1f}",
        f"{figures.offers_per_cpu_second:,.0f}",
    ]


def _number(value: float | None, *, ratio: bool = False) -> str:
    """A share in percent, or a ratio as it is."""
    if value is None:
        return ""
    return f"{value:.2f}" if ratio else f"{100 * value:.2f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
