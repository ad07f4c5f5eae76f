"""`python -m training STAGE`: every step from a lake of offers to a judged model, one a command."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from training import processes

if TYPE_CHECKING:
    from training.parameters import Parameters
    from training.stage import Record

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
taxonomy_app = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(taxonomy_app, name="taxonomy", help="Look at the taxonomy, and change it.")

Out = Annotated[Path, typer.Option(help="Directory for what the stage makes.", file_okay=False)]
Pipeline = Annotated[
    Path, typer.Option(help="The parameters of all stages.", rich_help_panel="Parameters")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="STAGE.KEY=VALUE",
        help="One parameter for this run; again for more.",
        rich_help_panel="Parameters",
    ),
]
TaxonomyFile = Annotated[Path, typer.Option(help="The taxonomy, as JSON.")]
LabelsOf = Annotated[
    Path | None, typer.Option(help="The taxonomy that the labels belong to, as JSON.")
]
TrainingSet = Annotated[Path, typer.Option(help="Training set, Parquet.")]
ValidationSet = Annotated[Path, typer.Option(help="Validation set, Parquet.")]

PIPELINE = Path("pipeline.yaml")

TOGETHER = ("adapt", "teacher", "student")
"""Commands that torchrun or accelerate launch may run in several processes."""


@app.callback()
def main(context: typer.Context) -> None:
    """Train models and judge them, a stage a command.

    A stage that was finished with the same inputs and parameters does nothing. Of those that were
    killed, dataset, baseline, endpoint, adapt, teacher, student and refit go on where they were,
    and the others, which take minutes at most, start over. torchrun and accelerate launch may run
    adapt, teacher and student in several processes. Figures go to MLflow where that is installed.
    """
    if processes.count() > 1 and context.invoked_subcommand not in TOGETHER:
        _fail(f"{context.invoked_subcommand} runs in one process", 2)


@app.command()
def lake(out: Out, pipeline: Pipeline = PIPELINE, overrides: Overrides = None) -> None:
    """Make a sample lake: labelled and unlabelled offers, their taxonomy, counts of production."""
    with _stage(pipeline, overrides) as parameters:
        from training.lake import make_sample

        _run(out, lambda: make_sample(parameters.lake, out, _say))


@app.command()
def dataset(
    out: Out,
    lake: Annotated[
        str, typer.Option(help="Offers, Parquet or JSONL: a file, directory, glob or URL.")
    ],
    taxonomy: TaxonomyFile,
    production: Annotated[
        Path | None,
        typer.Option(
            help="Production's offers by category, from `training production`; else the lake's"
            " labelled offers stand for it."
        ),
    ] = None,
    edition: Annotated[
        str | None,
        typer.Option(help="Edition that the lake's labels are of; the taxonomy's own if not given"),
    ] = None,
    engine: Annotated[
        Literal["duckdb", "spark"], typer.Option(help="What runs the sampling plan.")
    ] = "duckdb",
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Draw training, validation, test, experiment and transfer sets from a lake of offers."""
    with _stage(pipeline, overrides) as parameters:
        from training import dataset as stage
        from training import production as counts
        from training.taxonomy import load

        known = counts.read(production, load(taxonomy)) if production else None
        _run(
            out,
            lambda: stage.make(
                parameters.dataset, lake, taxonomy, known, out, _say, engine=engine, edition=edition
            ),
        )


@app.command()
def production(
    out: Annotated[Path, typer.Option(help="File for the counts, JSON.", dir_okay=False)],
    taxonomy: TaxonomyFile,
) -> None:
    """Count production's offers by category: the classifications in MongoDB.

    MONGODB_URI, MONGODB_DATABASE and MONGODB_COLLECTION say where, as they do for the service.
    """
    with _errors():
        from classifier.settings import load_settings
        from training import production as stage
        from training.taxonomy import load

        settings, known = load_settings(), load(taxonomy)
        counted = stage.count(
            settings.mongodb_uri.get_secret_value(),
            settings.mongodb_database,
            settings.mongodb_collection,
            known,
            settings.mongodb_timeout_ms,
        )
        stage.write(out, counted, known)
        summary = {
            "offers": sum(counted.counts.values()),
            "categories": len(counted.counts),
            "offers_without_a_label_now": sum(counted.lost.values()),
        }
        typer.echo(json.dumps(summary))


@app.command()
def given(
    out: Out,
    train: Annotated[Path, typer.Option(help="JSONL, gzipped or not, each row with `label`.")],
    validation: Annotated[Path, typer.Option(help="Likewise.")],
    test: Annotated[Path, typer.Option(help="Likewise.")],
) -> None:
    """Take sets that are split already, as a public benchmark's are."""
    with _errors():
        from training import given as stage

        files = {"train": train, "validation": validation, "test": test}
        _run(out, lambda: stage.make(files, out))


@app.command()
def baseline(
    out: Out,
    train: TrainingSet,
    validation: ValidationSet,
    taxonomy: LabelsOf = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Tune, calibrate and publish a linear SVM: the price to meet and the accuracy to beat."""
    with _stage(pipeline, overrides) as parameters:
        from training import baseline as stage

        _run(
            out,
            lambda: stage.make(parameters.baseline, train, validation, taxonomy, out, _say),
        )


@app.command()
def adapt(
    out: Out,
    offers: Annotated[Path, typer.Option(help="Offers, labelled or not, Parquet or JSONL.")],
    general: Annotated[
        Path | None,
        typer.Option(help="General text, a passage a line, for what must not be forgotten."),
    ] = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Go on with an encoder's masked-language pretraining, on offers: OUT/encoder."""
    with _stage(pipeline, overrides) as parameters:
        from training import adaptation as stage

        _run(out, lambda: stage.make(parameters.adapt, offers, general, out, _say))


@app.command()
def encoder(
    out: Out,
    train: TrainingSet,
    transfer: Annotated[
        Path | None, typer.Option(help="Unlabelled offers, for its pieces, Parquet.")
    ] = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Make a small encoder of one's own, where none is pretrained: OUT/encoder."""
    with _stage(pipeline, overrides) as parameters:
        from training import pretraining as stage

        _run(out, lambda: stage.make(parameters.encoder, train, transfer, out, _say))


@app.command()
def teacher(
    out: Out,
    train: TrainingSet,
    validation: ValidationSet,
    taxonomy: LabelsOf = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Fine-tune the large encoder that the student learns from: OUT/checkpoint."""
    with _stage(pipeline, overrides) as parameters:
        from training import teacher as stage

        given = parameters.teacher
        _run(out, lambda: stage.make(given, train, validation, taxonomy, out, _say))


@app.command()
def student(
    out: Out,
    train: TrainingSet,
    validation: ValidationSet,
    transfer: Annotated[
        Path | None, typer.Option(help="Unlabelled offers to learn from too, Parquet.")
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(help="What `training teacher` made; without it the labels alone teach."),
    ] = None,
    taxonomy: LabelsOf = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Train the small encoder that serves, distilled from a teacher: OUT/checkpoint."""
    with _stage(pipeline, overrides) as parameters:
        from training import student as stage

        given = parameters.student
        _run(
            out,
            lambda: stage.make(given, train, validation, transfer, teacher, taxonomy, out, _say),
        )


@app.command()
def ablate(
    out: Annotated[
        Path, typer.Option(help="Directory for the table and for every run.", file_okay=False)
    ],
    train: TrainingSet,
    validation: ValidationSet,
    varied: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="student.KEY=[VALUE, ...]",
            help="A parameter and its values, each for a student of its own; again for more.",
        ),
    ],
    transfer: Annotated[
        Path | None, typer.Option(help="Unlabelled offers to learn from too, Parquet.")
    ] = None,
    teacher: Annotated[Path | None, typer.Option(help="What `training teacher` made.")] = None,
    taxonomy: LabelsOf = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Train a student for each value of a parameter: OUT/ablation.md says what each gave."""
    with _stage(pipeline, overrides) as parameters:
        from training import ablation
        from training.parameters import ParameterError

        try:
            sweeps = ablation.sweeps(pipeline, overrides or (), varied)
        except ParameterError as error:
            _fail(str(error), 2)
        ablation.make(
            parameters.student, sweeps, train, validation, transfer, teacher, taxonomy, out, _say
        )
        typer.echo(out / ablation.PAGE)


@app.command()
def wide(
    out: Out,
    student: Annotated[Path, typer.Option(help="What `training student` made: the encoder.")],
    linear: Annotated[
        Path,
        typer.Option(
            help="What `training baseline` made of the same sets, with baseline.refit=false."
        ),
    ],
    validation: ValidationSet,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Put a linear SVM beside the encoder, their logits added: OUT/checkpoint."""
    with _stage(pipeline, overrides) as parameters:
        from training import wide as stage

        _run(out, lambda: stage.make(parameters.wide, student, linear, validation, out, _say))


@app.command()
def refit(
    out: Out,
    student: Annotated[Path, typer.Option(help="What `training student` made.")],
    train: TrainingSet,
    validation: ValidationSet,
    taxonomy: LabelsOf = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Fit a new head on the student's encoder, for a changed taxonomy: OUT/checkpoint."""
    with _stage(pipeline, overrides) as parameters:
        from training import refit as stage

        given = parameters.refit
        _run(out, lambda: stage.make(given, student, train, validation, taxonomy, out, _say))


@app.command()
def endpoint(
    out: Out,
    model: Annotated[Path, typer.Option(help="An artefact, or a folder whose `current` is one.")],
    offers: Annotated[Path, typer.Option(help="Offers to answer, Parquet.")],
) -> None:
    """Send a test set through the production service, and keep what it wrote to MongoDB.

    Broker and database are started for it, unless KAFKA_BOOTSTRAP_SERVERS and MONGODB_URI name
    some.
    """
    with _errors():
        from rich.console import Console

        from training import endpoint as stage

        _run(out, lambda: stage.answer(model, offers, out, Console(stderr=True)))


@app.command()
def evaluate(
    out: Out,
    predictions: Annotated[
        Path | None,
        typer.Option(help="Answers to the test set: a classified file, Parquet or JSONL."),
    ] = None,
    endpoint: Annotated[
        Path | None,
        typer.Option(
            help="In place of answers: an artefact, or a folder whose `current` is one. The"
            " production service is started with it, and answers OFFERS: OUT/endpoint."
        ),
    ] = None,
    offers: Annotated[
        Path | None, typer.Option(help="With --endpoint: the test set, Parquet.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Another model's answers to the same offers, to compare with; again for more.",
        ),
    ] = None,
    taxonomy: Annotated[Path | None, typer.Option(help="The taxonomy, for names, as JSON.")] = None,
    train: Annotated[
        Path | None, typer.Option(help="What it was trained on, for categories' frequency.")
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(help="The test set's dataset.json: for how much of production it stands."),
    ] = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Judge answers to a test set: report.json, and report.html to read.

    The answers are a file's, or with --endpoint those of the production service, measured meanwhile
    (throughput.json).
    """
    if (predictions is None) == (endpoint is None) or (offers is None) != (endpoint is None):
        _fail("evaluate takes --predictions FILE, or --endpoint MODEL with --offers FILE", 2)
    with _stage(pipeline, overrides) as parameters:
        from training import evaluate as stage

        others = _named(against or ())
        if endpoint is not None and offers is not None:
            predictions = _asked(endpoint, offers, out, stage.STAGE)
        assert predictions is not None
        _run(
            out,
            lambda: stage.make(
                parameters.evaluate,
                predictions,
                others,
                taxonomy,
                train,
                out,
                _say,
                dataset=dataset,
            ),
        )


@app.command()
def gate(
    out: Out,
    model: Annotated[
        Path, typer.Option(help="The candidate: an artefact, or a folder whose `current` is one.")
    ],
    offers: Annotated[Path, typer.Option(help="The test set, Parquet.")],
    taxonomy: Annotated[Path, typer.Option(help="The current taxonomy, as JSON.")],
    champion: Annotated[
        Path | None,
        typer.Option(help="What serves now, likewise; without one absolute bounds alone count."),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            help="The candidate's answers, from `training endpoint`; else it is asked here."
        ),
    ] = None,
    champion_answers: Annotated[
        Path | None, typer.Option(help="The champion's answers, likewise.")
    ] = None,
    pipeline: Pipeline = PIPELINE,
    overrides: Overrides = None,
) -> None:
    """Judge an artefact on the endpoint that will serve it, against the champion on equal offers.

    OUT/verdict.json has every figure, bound and reason, and OUT/verdict.html shows them. A refusal
    names its reasons on standard error and ends with exit code 10.
    """
    if champion is None and champion_answers is not None:
        _fail("--champion-answers: whose? --champion is missing", 2)
    with _stage(pipeline, overrides) as parameters:
        from rich.console import Console

        from classifier.exit_codes import REFUSED
        from training import gate as stage
        from training import verdict

        _run(
            out,
            lambda: stage.make(
                parameters.gate,
                parameters.evaluate,
                model,
                champion,
                offers,
                taxonomy,
                out,
                Console(stderr=True),
                answers=answers,
                champion_answers=champion_answers,
            ),
        )
        judged = verdict.finished(out)
        for line in stage.headline(judged):
            _say(line)
        if not judged.passed:
            raise typer.Exit(REFUSED)


@app.command("verdict")
def verdicts(
    gates: Annotated[
        list[Path], typer.Argument(metavar="GATE...", help="Directories of `training gate`.")
    ],
) -> None:
    """Say what the gate's verdicts were, and whether all passed: else the exit code is 10.

    Where a gate's last run did not finish there is no verdict, and the exit code is 1.
    """
    with _errors():
        from classifier.exit_codes import REFUSED
        from training import verdict
        from training.gate import headline

        found = [verdict.finished(directory) for directory in gates]
        for directory, judged in zip(gates, found, strict=True):
            typer.echo(directory / verdict.PAGE)
            for line in headline(judged):
                typer.echo(f"  {line}")
        if not all(judged.passed for judged in found):
            raise typer.Exit(REFUSED)


@taxonomy_app.command("show")
def show_taxonomy(
    taxonomy: Annotated[Path, typer.Argument(help="The taxonomy, as JSON.")],
    language: Annotated[
        Literal["de", "en", "fr", "es", "it"], typer.Option(help="Of the names.")
    ] = "en",
) -> None:
    """Print the tree of categories."""
    with _errors():
        from training.taxonomy import load, outline

        for line in outline(load(taxonomy), language):
            typer.echo(line)


@taxonomy_app.command("apply")
def apply_changes(
    taxonomy: Annotated[Path, typer.Argument(help="The taxonomy, as JSON.")],
    changes: Annotated[Path, typer.Argument(help="The change set, YAML or JSON.")],
    out: Annotated[Path, typer.Option(help="File for the next edition.", dir_okay=False)],
    lake: Annotated[
        str | None, typer.Option(help="Labelled offers, to count what the changes concern.")
    ] = None,
    production: Annotated[
        Path | None, typer.Option(help="Production's offers by category, likewise.")
    ] = None,
) -> None:
    """Apply a change set, and say what must be labelled, retrained and reclassified."""
    with _errors():
        from training.changes import apply_files

        apply_files(taxonomy, changes, out, typer.echo, lake, production)


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
    with _errors():
        from training.demo import demo_model as make

        imported = round(time.perf_counter() - started, 2)
        made = make(out, train, seed, _say)
    seconds = {"import": imported, **made.seconds}
    seconds["all"] = round(time.perf_counter() - started, 2)
    summary = {
        "artifact": str(made.artifact),
        "id": made.artifact.name,
        "accuracy": made.accuracy,
        "seconds": seconds,
    }
    typer.echo(json.dumps(summary))


@contextlib.contextmanager
def _stage(pipeline: Path, overrides: Sequence[str] | None) -> Iterator[Parameters]:
    """The parameters, and errors as one line."""
    with _errors():
        from training.parameters import ParameterError, load

        try:
            parameters = load(pipeline, overrides or ())
        except ParameterError as error:
            _fail(str(error), 2)
        yield parameters


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """What is wrong with what a person gave is one line and an exit code, and no traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        _fail(f"training needs {error.name}: pip install 'offer-classifier[train]'", 2)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}", 1)
    except processes.LeftError as error:
        if not processes.leads():
            raise typer.Exit(1) from None  # the one that left says why
        _fail(str(error), 1)
    except Exception as error:
        if not _is_told(error):
            raise
        _fail(str(error), 1)


def _is_told(error: Exception) -> bool:
    """Whether the message is one line for a person. The classes are asked for when there is an
    error: importing them costs seconds.
    """
    from classifier.artifact import ArtifactError
    from classifier.demo import DemoError
    from classifier.engines import EngineError
    from classifier.jsonl import FileError
    from classifier.model import ModelError
    from classifier.settings import SettingsError
    from compile.build import CompileError
    from compile.labelled import DataError
    from training.stage import StageError

    told = (
        ArtifactError, CompileError, DataError, DemoError, EngineError, FileError, ModelError,
        SettingsError, StageError,
    )  # fmt: skip
    return isinstance(error, told)


def _asked(model: Path, offers: Path, out: Path, stage: str) -> Path:
    """The answers of a service with the model, in a directory of their own below the stage's."""
    from rich.console import Console

    from training import endpoint
    from training.stage import claim

    claim(stage, out)
    _run(
        out / "endpoint",
        lambda: endpoint.answer(model, offers, out / "endpoint", Console(stderr=True)),
    )
    return out / "endpoint" / endpoint.ANSWERS


def _run(out: Path, make: Callable[[], Record]) -> None:
    """Runs a stage, logs it unless it was done already, and prints one line of JSON."""
    from training import tracking
    from training.stage import read_record

    before = read_record(out)
    record = make()
    processes.leave()
    if not processes.leads():
        return
    if record == before:
        _say(f"{out}: is done already")
    else:
        tracking.log(record, out, _say)
    typer.echo(json.dumps({"stage": record.stage, "seconds": record.seconds, **record.summary}))


def _named(pairs: Sequence[str]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not (name and equals and file):
            _fail(f"--against {pair}: must be NAME=FILE", 2)
        if name in named:
            _fail(f"--against {pair}: {name} stands there twice", 2)
        named[name] = Path(file)
    return named


def _say(line: str) -> None:
    if processes.leads():
        typer.echo(line, err=True)


def _fail(message: str, code: int) -> NoReturn:
    where = "" if processes.leads() else f" in process {processes.number()}"
    typer.echo(f"error{where}: {message}", err=True)
    raise typer.Exit(code)
