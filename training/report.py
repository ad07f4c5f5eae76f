"""The report for people: report.html, one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from classifier.whole_file import appearing
from training.history import Entry
from training.judgement import Judgement


def write(path: Path, judged: Judgement, past: Sequence[Entry]) -> None:
    """Write the page. Raises FileError."""
    rows = "".join(
        f"<tr><td>{escape(name)}<td>{figure.value}"
        for name, figure in judged.overall["unweighted"].figures.items()
    )
    page = f"<!doctype html><title>{escape(judged.model)}</title><table>{rows}</table>\n"
    with appearing(path) as file:
        file.write(page.encode())
