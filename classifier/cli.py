"""The command `classifier`: serve, classify, produce, demo, schema.

Every exit code but 0 comes with one line on standard error; exit_codes says what they mean.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.exceptions import TyperException

from classifier import __version__, log
from classifier.exit_codes import BAD_MODEL, BAD_SETTINGS, FAULT, INTERRUPTED
from classifier.settings import Settings, SettingsError, load_settings

_WIDTH = 96


class CommandError(Exception):
    """A command ends here: one line for the person, and the exit code."""

    def __init__(self, message: str, code: int = FAULT) -> None:
        super().__init__(message)
        self.code = code


def settings_help() -> str:
    """Every setting with its default and meaning, as the help of `serve` shows it."""
    lines = [
        "Settings. Each is an environment variable, and in the YAML file of --config a key of the",
        "same name in lower case. An option above beats the environment, and that the file.",
        "",
    ]
    for name, field in Settings.model_fields.items():
        lines.append(f"  {name.upper()}  ({_kind(field)}; default: {_default(field)})")
        lines += textwrap.wrap(
            field.description or "", _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
    # A paragraph that begins with \b keeps its lines; an empty line would end it.
    return "\n\n".join("\b\n" + part for part in "\n".join(lines).split("\n\n"))


def _kind(field: FieldInfo) -> str:
    options = [option for option in _options(field.annotation) if option is not type(None)]
    if get_origin(options[0]) is Literal:
        return " | ".join(map(str, get_args(options[0])))
    kinds = {int: "integer", float: "number", Path: "path", SecretStr: "secret", str: "text"}
    return kinds[options[0]]


def _options(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    plain = annotation is None or isinstance(annotation, type) or get_origin(annotation) is Literal
    if plain:
        return (annotation,)
    return tuple(part for option in get_args(annotation) for part in _options(option))


def _default(field: FieldInfo) -> str:
    default = field.default
    if isinstance(default, SecretStr):
        # What stands in the code is no secret; what a person sets is never shown.
        return default.get_secret_value()
    return "none" if default is None or default is PydanticUndefined else str(default)


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH + 4},
    help="Offers in from Kafka, categories out to MongoDB.",
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML file with settings.")
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Folder of the artefact, or one with a `current`."),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"classifier {__version__}")
        raise typer.Exit


@app.callback()
def _classifier(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Offers in from Kafka, categories out to MongoDB."""


@app.command(epilog=settings_help())
def serve(
    config: ConfigOption = None,
    model: ModelOption = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.")] = None,
    http_host: Annotated[str | None, typer.Option(help="Address of the HTTP endpoints.")] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Port of them; 0 takes any free one.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> int:
    """Classify what comes in from Kafka, until told to stop."""
    settings = _settings(
        config,
        _given(
            model=model,
            workers=workers,
            http_host=http_host,
            http_port=http_port,
            log_level=log_level,
        ),
    )
    from classifier import supervisor

    return supervisor.run(settings)


@app.command(short_help="Classify a file.")
def classify(
    file: Annotated[
        Path, typer.Argument(help="Offers: .jsonl, .jsonl.gz or .parquet.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Default: NAME.classified.EXT beside the input."
        ),
    ] = None,
    model: ModelOption = None,
    config: ConfigOption = None,
) -> int:
    """Classify a file: the same rows out, with category_id, score, alternatives, status, model.

    A row that cannot be classified has an error instead, and the exit code stays 0. Memory does not
    grow with the file, and the output appears when it is whole.
    """
    from classifier import bulk, cpu, jsonl, progress
    from classifier.artifact import ArtifactError, resolve
    from classifier.engines import EngineError
    from classifier.model import DeviceError, Model, ModelError
    from classifier.tokens import bound_pool

    settings = _settings(config, _given(model=model))
    target = output or bulk.output_beside(file)
    threads = settings.engine_threads or cpu.quota()
    bound_pool(threads)
    try:
        loaded = Model.load(
            resolve(settings.model),
            threads=threads,
            cache_offers=settings.cache_offers,
            batch_tokens=settings.batch_tokens,
            alternatives=settings.alternatives,
        )
    except (ArtifactError, ModelError) as error:
        raise CommandError(str(error), BAD_MODEL) from error
    except EngineError as error:
        raise CommandError(str(error), error.code) from error
    try:
        with progress.bar("classifying") as show:
            counts = bulk.classify_file(
                file,
                target,
                loaded,
                record_bytes=settings.record_bytes,
                on_progress=lambda counts, share: show(share, counts.rows, bulk.say(counts)),
            )
    except (jsonl.FileError, DeviceError, ModelError) as error:
        raise CommandError(str(error)) from error
    finally:
        loaded.close()
    typer.echo(f"{target}: {bulk.say(counts)}", err=True)
    return 0


@app.command(short_help="Send offers to the Kafka topic.")
def produce(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Offers, a JSON object a line, .jsonl or .jsonl.gz.", show_default=False
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="In place of a file: N events of made-up offers."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which made-up offers.")] = 0,
    rate: Annotated[
        float, typer.Option(min=0, help="At most so many records a second; 0: no limit.")
    ] = 0,
    compression: Annotated[
        str, typer.Option(help="Codec: none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    topic: Annotated[
        str | None, typer.Option(help="In place of KAFKA_TOPIC.", show_default=False)
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="In place of KAFKA_BOOTSTRAP_SERVERS.", show_default=False)
    ] = None,
    config: ConfigOption = None,
) -> int:
    """Send offers to the Kafka topic, their ids as the keys, acknowledged by all replicas.

    Lines go out as they stand, broken ones too: the service makes dead letters of those.
    """
    from classifier import jsonl, progress
    from classifier import produce as producing
    from classifier.client import client_settings

    settings = _settings(
        config, _given(kafka_topic=topic, kafka_bootstrap_servers=bootstrap_servers)
    )
    if (file is None) == (sample is None):
        raise CommandError("produce takes either a FILE or --sample N", BAD_SETTINGS)
    if compression not in get_args(producing.Compression):
        raise CommandError(f"--compression {compression} is no codec of Kafka's", BAD_SETTINGS)
    _hush()
    read = 0

    def on_bytes(count: int) -> None:
        nonlocal read
        read = count

    records = (
        producing.from_file(file, on_bytes) if file else producing.from_sample(seed, sample or 0)
    )
    size = file.stat().st_size if file and file.is_file() else 0
    try:
        with progress.bar("producing") as show:

            def on_progress(counts: producing.Counts) -> None:
                share = read / max(1, size) if file else counts.sent / (sample or 1)
                show(share, counts.sent, "records")

            counts = asyncio.run(
                producing.produce(
                    records,
                    settings.kafka_topic,
                    client_settings(settings),
                    rate=rate,
                    compression=compression,  # type: ignore[arg-type]  # looked at above
                    on_progress=on_progress,
                )
            )
    except (jsonl.FileError, producing.ProduceError) as error:
        raise CommandError(str(error)) from error
    typer.echo(f"{settings.kafka_topic}: {producing.say(counts)}", err=True)
    return FAULT if counts.too_large else 0


@app.command(short_help="See all of it work on this machine.")
def demo(
    offers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Offers of your own, .jsonl or .jsonl.gz."),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Offers with a `label` each, to train the model on."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many made-up events, or offers of the file.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A model that is there: an artefact, or a folder with a current one.",
        ),
    ] = None,
    models: Annotated[
        Path, typer.Option(metavar="DIR", help="Where trained models are kept.")
    ] = Path("models"),
) -> int:
    """The whole way on this machine: broker, database, a model, offers in, categories out."""
    from classifier.demo import DemoError, run

    _hush()
    try:
        return run.demo(run.Options(offers, train, count, model, models))
    except DemoError as error:
        raise CommandError(str(error)) from error


@app.command()
def schema() -> int:
    """Print the JSON Schema of an offer."""
    import json

    from classifier import offer

    typer.echo(json.dumps(offer.schema(), indent=2, ensure_ascii=False))
    return 0


def _settings(config: Path | None, given: dict[str, Any]) -> Settings:
    """The settings, whose secrets stand in no line on standard error from now on."""
    settings = load_settings(config, given)
    for secret in settings.secrets():
        log.hide(secret)
    return settings


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _hush() -> None:
    """What the Kafka client would log about a broker that is away is said in one line instead."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code. A person's own mistake is one line, without a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], prog_name="classifier", standalone_mode=False)
    except SettingsError as error:
        return _fail(str(error), BAD_SETTINGS)
    except CommandError as error:
        return _fail(str(error), error.code)
    except TyperException as error:
        return _fail(error.format_message(), error.exit_code)
    # Typer catches Ctrl-C itself.
    return _fail("interrupted", INTERRUPTED) if code == INTERRUPTED else int(code or 0)


def _fail(message: str, code: int) -> int:
    line = log.mask_uri(" ".join(message.split()))
    typer.echo(f"classifier: {line}", err=True)
    return code
