"""What a benchmark demands: where a figure falls short, a line for each and exit code 1."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import ParamSpec

import typer

P = ParamSpec("P")

SHORT = 1
"""The exit code of figures that fall short."""


def end(short: Sequence[str]) -> None:
    """Names what falls short on standard error, and exits with SHORT if there is anything."""
    for line in short:
        print(f"falls short: {line}", file=sys.stderr)
    if short:
        sys.exit(SHORT)


def command(measure: Callable[P, list[str]]) -> None:
    """Runs a benchmark as a command, its arguments as options; it gives what falls short."""

    @functools.wraps(measure)
    def main(*arguments: P.args, **options: P.kwargs) -> None:
        end(measure(*arguments, **options))

    typer.run(main)
