"""`python -m compile build CHECKPOINT --out DIR`, `python -m compile verify CHECKPOINT ARTEFACT`.

Where no command is named, `build` is meant.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup

from classifier.exit_codes import BAD_SETTINGS, FAULT


class _BuildByDefault(TyperGroup):
    """Takes a first word that names no command for the first of `build`'s."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["build", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    add_completion=False,
    cls=_BuildByDefault,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class TargetName(StrEnum):
    """The targets of compile.build.TARGETS; named here so that --help needs no torch."""

    ONNX_CPU = "onnx-cpu"
    TORCH_CPU = "torch-cpu"
    TORCH_CUDA = "torch-cuda"


@app.callback()
def main() -> None:
    """A checkpoint in, an artefact for one device out, verified against the checkpoint."""


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
        _missing(error)
    try:
        artifact = build_artifact(checkpoint, target.value, out)
        if current:
            set_current(out, artifact)
        typer.echo(artifact)
    except CompileError as error:
        _fail(str(error))


@app.command()
def verify(
    checkpoint: Annotated[Path, typer.Argument(help="Directory of a checkpoint.")],
    artifact: Annotated[
        Path,
        typer.Argument(
            metavar="ARTEFACT", help="Directory of an artefact, or one with a current one."
        ),
    ],
    threads: Annotated[int, typer.Option(min=1, help="Threads of an engine on the CPU.")] = 1,
) -> None:
    """Compare an artefact with its checkpoint, and print what was compared as JSON.

    Ends with 1, and one line of why, where the artefact does not answer as its checkpoint does.
    """
    try:
        import msgspec

        from compile.build import CompileError, verify_published
    except ModuleNotFoundError as error:
        _missing(error)
    try:
        verification = verify_published(checkpoint, artifact, threads)
    except CompileError as error:
        _fail(str(error))
    typer.echo(msgspec.json.format(msgspec.json.encode(verification), indent=1))


def _missing(error: ModuleNotFoundError) -> NoReturn:
    _fail(f"compiling needs {error.name}: pip install 'offer-classifier[compile]'", BAD_SETTINGS)


def _fail(message: str, code: int = FAULT) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
