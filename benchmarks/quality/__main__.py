"""The quality table of models: `make benchmark-quality ROW=NAME ...`.

    python -m benchmarks.quality run ROW --train FILE --validation FILE --test FILE ...
    python -m benchmarks.quality table [--labels FILE] [--page docs/quality.md]

rows.yaml has the recipes. Every stage is done once and goes on where it was killed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from benchmarks.quality import page, recipes, row, table
from benchmarks.quality.row import Given, NotHereError
from classifier.artifact import ArtifactError
from classifier.engines import EngineError
from classifier.jsonl import FileError
from classifier.model import ModelError
from compile.labelled import DataError
from training.parameters import ParameterError
from training.stage import StageError

ALL = "all"

TOLD = (
    ArtifactError, DataError, EngineError, FileError, ModelError, ParameterError, StageError,
)  # fmt: skip
"""What a person is told in one line."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Work = Annotated[Path, typer.Option(help="Directory of all rows.", file_okay=False)]
Rows = Annotated[Path, typer.Option("--recipes", help="The rows, as YAML.")]
Labels = Annotated[
    Path | None,
    typer.Option(help="Labels with their parents, as JSON, for F1 over the levels."),
]
WORK = Path("runs/quality")


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="ROW", help=f"A row, or {ALL}: all in order.")],
    train: Annotated[Path, typer.Option(help="JSONL, gzipped or not, each row with `label`.")],
    validation: Annotated[Path, typer.Option(help="Likewise.")],
    test: Annotated[Path, typer.Option(help="Likewise.")],
    unlabelled: Annotated[Path | None, typer.Option(help="Likewise, without labels.")] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="A pretrained encoder, for teacher and students.", file_okay=False),
    ] = None,
    work: Work = WORK,
    rows: Rows = recipes.ROWS,
    labels: Labels = None,
) -> None:
    """Make a row, or what is missing of it, and print the table of all that are there."""
    known = recipes.load(rows)
    if name not in (*known.rows, ALL):
        raise ParameterError(f"no row {name!r}; there are {', '.join(known.rows)} and {ALL}")
    given = Given(train, validation, test, unlabelled, encoder)
    failed = []
    for each in known.rows if name == ALL else [name]:
        try:
            row.run(each, known, given, work, _say)
        except TOLD as error:
            if name != ALL:
                raise
            # The others can be made without it, most of them.
            _say(f"not run: {error}")
            if not isinstance(error, NotHereError):
                failed.append(each)
    show(work, rows, labels)
    if failed:
        raise StageError(f"failed: {', '.join(failed)}; the lines above say why")


@app.command("table")
def show(
    work: Work = WORK,
    rows: Rows = recipes.ROWS,
    labels: Labels = None,
    into: Annotated[
        Path | None,
        typer.Option("--page", help="A page that gets the table between its marks."),
    ] = None,
) -> None:
    """Print the table, and write it to WORK/quality.md and WORK/quality.json."""
    known = recipes.load(rows)
    quality = table.make(known, work, labels)
    work.mkdir(parents=True, exist_ok=True)
    page.write(quality, known, work)
    if into is not None:
        page.insert(into, quality, known)
    print(page.markdown(quality, known))


def main(arguments: list[str] | None = None) -> int:
    """The exit code; what is wrong is one line."""
    try:
        app(arguments, standalone_mode=False)
    except TOLD as error:
        _say(f"error: {error}")
        return 1
    except OSError as error:
        _say(f"error: {error.filename}: {error.strerror}")
        return 1
    except TyperException as error:
        _say(f"error: {error.format_message()}")
        return 2
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
