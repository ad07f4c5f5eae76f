"""`python -m compile build CHECKPOINT --out DIR`, `python -m compile verify CHECKPOINT ARTEFACT`,
`python -m compile bench --model ARTEFACT`.

Where no command is named, `build` is meant.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from classifier.exit_codes import BAD_MODEL, BAD_SETTINGS, FAULT


class _BuildByDefault(TyperGroup):
    """Takes a first word that names no command for the first of `build`'s."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
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
    NEURON_INF1 = "neuron-inf1"
    NEURON_INF2 = "neuron-inf2"
    NEURON_TRN1 = "neuron-trn1"


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
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="fp32|int8|auto",
            help="Of onnx-cpu; auto takes int8 where it is faster here and no worse.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Offers of the training set (Parquet, JSONL) to calibrate int8 on."),
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(help="Offers with labels, to compare the accuracy of int8 and fp32 on."),
    ] = None,
    weight_bits: Annotated[
        int | None,
        typer.Option(
            min=7, max=8, help="Of an int8 weight: 7 for CPUs without VNNI. Else by this CPU."
        ),
    ] = None,
    compare_exporters: Annotated[
        bool,
        typer.Option("--compare-exporters", help="Time both ONNX exporters, for the report."),
    ] = False,
    traffic: Annotated[
        Path | None,
        typer.Option(
            help="Offers as they come, by whose lengths Neuron's buckets are chosen; without them"
            " by the golden texts."
        ),
    ] = None,
) -> None:
    """Compile a checkpoint for one target, verify the result, publish it and print its path."""
    try:
        from classifier.artifact import set_current
        from compile.build import CompileError, Wanted
        from compile.build import build as build_artifact
    except ModuleNotFoundError as error:
        _missing(error)
    try:
        artifact = build_artifact(
            checkpoint,
            target.value,
            out,
            wanted=Wanted(
                precision, calibration, validation, weight_bits, compare_exporters, traffic
            ),
        )
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


@app.command()
def bench(
    model: Annotated[
        list[Path], typer.Option(help="Directory of an artefact to measure; may be repeated.")
    ],
    against: Annotated[
        Path | None, typer.Option(help="Artefact of the linear SVM that they are held against.")
    ] = None,
    offers: Annotated[
        Path | None,
        typer.Option(help="Offers, Parquet or JSON lines; by default the sample catalogue's."),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Texts of an engine call; may be repeated.")
    ] = None,
    length: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens of a text; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="How long new rounds are begun.")] = 60,
    instance: Annotated[
        str | None,
        typer.Option(help="Instance type whose price this machine's figures get."),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="Prices of instances; by default compile/prices.yaml.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File that gets the figures as JSON.")] = None,
) -> None:
    """Measure artefacts on one worker each, and print what a million offers cost as Markdown."""
    try:
        import msgspec

        from classifier.artifact import ArtifactError
        from classifier.engines import EngineError
        from classifier.model import ModelError
        from compile import bench as benchmark
        from compile.prices import PRICES, PriceError
    except ModuleNotFoundError as error:
        _missing(error)
    try:
        report = benchmark.bench(
            model,
            against,
            offers=offers,
            batches=batch or benchmark.BATCHES,
            lengths=length or (),
            seconds=seconds,
            instance=instance,
            prices=prices or PRICES,
        )
    except (benchmark.BenchError, PriceError) as error:
        _fail(str(error), BAD_SETTINGS)
    except EngineError as error:
        _fail(str(error), error.code)
    except (ArtifactError, ModelError) as error:
        _fail(str(error), BAD_MODEL)
    typer.echo(benchmark.table(report))
    if json is not None:
        content = msgspec.json.format(msgspec.json.encode(report), indent=1)
        try:
            json.write_bytes(content + b"\n")
        except OSError as error:
            _fail(f"{json}: cannot be written: {error.strerror}")


def _missing(error: ModuleNotFoundError) -> NoReturn:
    _fail(f"compiling needs {error.name}: pip install 'offer-classifier[compile]'", BAD_SETTINGS)


def _fail(message: str, code: int = FAULT) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)
