"""`python -m compile CHECKPOINT --target TARGET --out DIR`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class TargetName(StrEnum):
    """The targets of compile.build.TARGETS; named here so that --help needs no torch."""

    ONNX_CPU = "onnx-cpu"
    TORCH_CPU = "torch-cpu"
    TORCH_CUDA = "torch-cuda"


@app.command()
def build(
    checkpoint: Annotated[Path, typer.Argument(help="Directory of a checkpoint.")],
    out: Annotated[Path, typer.Option(help="Directory that gets the artefact, as OUT/<id>.")],
    target: Annotated[TargetName, typer.Option(help="Device to compile for.")] = (
        TargetName.ONNX_CPU
    ),
    current: Annotated[
        bool, typer.Option("--current", help="Let OUT/current name it: what is served from OUT.")
    ] = False,
) -> None:
    """Compile a checkpoint for one target, verify the result, publish it and print its path."""
    try:
        from classifier.artifact import set_current
        from compile.build import CompileError
        from compile.build import build as build_artifact
    except ModuleNotFoundError as error:
        typer.echo(
            f"error: compiling needs {error.name}: pip install 'offer-classifier[train]'", err=True
        )
        raise typer.Exit(2) from None
    try:
        artifact = build_artifact(checkpoint, target.value, out)
        if current:
            set_current(out, artifact)
        typer.echo(artifact)
    except CompileError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
