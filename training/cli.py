"""`python -m training STAGE`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Train models, a stage a command."""


@app.command()
def demo_model(
    out: Annotated[Path, typer.Option(help="Directory for the artefact and its checkpoint.")],
    train: Annotated[
        Path | None,
        typer.Option(
            help="Offers to learn from, JSONL or JSONL.gz, each with its `label`; the sample"
            " catalogue when not given."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is random.")] = 0,
) -> None:
    """Train a small model from scratch, compile it, and name it in OUT/current.

    Takes under two minutes on two cores. Prints one line of JSON: the artefact's path, id, accuracy
    on held-out offers, and seconds.
    """
    started = time.perf_counter()
    try:
        from compile.build import CompileError
        from training.demo import demo_model as make
        from training.examples import DataError
    except ModuleNotFoundError as error:
        _fail(f"training needs {error.name}: pip install 'offer-classifier[train]'", 2)
    imported = round(time.perf_counter() - started, 2)
    try:
        made = make(out, train, seed, lambda line: typer.echo(line, err=True))
    except (DataError, CompileError) as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}", 1)
    seconds = {"import": imported, **made.seconds}
    seconds["all"] = round(time.perf_counter() - started, 2)
    summary = {
        "artifact": str(made.artifact),
        "id": made.artifact.name,
        "accuracy": made.accuracy,
        "seconds": seconds,
    }
    typer.echo(json.dumps(summary))


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
