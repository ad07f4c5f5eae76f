"""The demo from its start to its account."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console

from classifier import produce as producing
from classifier import sample
from classifier.artifact import Artifact, ArtifactError, resolve
from classifier.client import client_settings
from classifier.demo import DemoError, account, report, training
from classifier.demo.account import Account, Sent
from classifier.demo.place import mongodb, place
from classifier.demo.stream import saying, stream
from classifier.produce import Record
from classifier.settings import Settings

# What the embedded database takes in, and the service starts and stops in, half a minute.
EVENTS = 20_000
SEED = 20_240_229


@dataclass(frozen=True)
class Options:
    """What a person may choose."""

    offers: Path | None = None  # offers of their own; None: the sample catalogue's
    train: Path | None = None  # labelled offers to train on; None: the sample catalogue's
    count: int | None = None  # how many records; None: EVENTS, or the whole file
    model: Path | None = None  # one that is there; None: one that is trained on `train`
    models: Path = Path("models")


def demo(options: Options, console: Console | None = None) -> int:
    """Run all of it and print what came of it; gives the exit code.

    Raises DemoError with one line when something is missing or does not work.
    """
    console = console or Console()
    say = saying(console)
    _check(options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated())
        artifact = _model(options, say)
        settings = stack.enter_context(place(artifact, say))
        total = options.count or (EVENTS if options.offers is None else None)
        records = (sent.record for sent in _sent(options, artifact))
        run = stream(records, total, settings, console)
        result = _settle(options, artifact, settings)
        if not result.sent:
            raise DemoError(f"OFFERS: {options.offers} has no line")
        report.show(console, result, run, artifact, _truth(options))
    if options.offers and not result.languages and _labelled(options.offers):
        say("The model knows none of the rows' labels: TRAIN=FILE trains one that does.")
    say(report.line(result))
    if result.missing:
        raise DemoError(f"{result.missing:,} records are lost, the first: {result.first_missing}")
    counted = run.last.done
    if counted < result.sent:
        raise DemoError(f"the metrics count {counted:,} records of {result.sent:,}")
    return 0


def _model(options: Options, say: Callable[[str], None]) -> Artifact:
    if options.model is None:
        return training.model(options.train, options.models, say)
    try:
        artifact = Artifact.load(resolve(options.model))
    except ArtifactError as error:
        raise DemoError(f"MODEL: {error}") from error
    say(f"model {artifact.manifest.id}, of {options.model}")
    return artifact


def _check(options: Options) -> None:
    """What can be known to be wrong before anything starts."""
    for package in ("onnxruntime", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise DemoError(f"{package} is missing: pip install 'offer-classifier[demo]'")
    for name, path in (("OFFERS", options.offers), ("TRAIN", options.train)):
        if path is not None and not path.is_file():
            raise DemoError(f"{name}: there is no file {path}")
    if options.model and options.train:
        raise DemoError("MODEL is trained already: leave TRAIN or MODEL out")
    if options.offers and options.train and _same(options.offers, options.train):
        raise DemoError(
            "OFFERS and TRAIN are the same offers: accuracy on what the model was trained on "
            "says nothing"
        )


def _same(one: Path, other: Path) -> bool:
    return one.samefile(other) or (
        one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
    )


def _sent(options: Options, artifact: Artifact) -> Iterator[Sent]:
    """The records to send; gone through twice, for sending and for the account."""
    if options.offers is None:
        # Of a model trained on other offers, nothing here is right or wrong.
        known = options.train is None
        for event in sample.events(SEED, options.count or EVENTS):
            record = Record(event.key, event.value, tuple(event.headers))
            yield Sent(record, event.truth if known else None)
        return
    labels = {label.id for label in artifact.labels}
    for record in islice(producing.from_file(options.offers), options.count):
        truth = _label(record.value or b"")
        # A label that a model trained for these labels has never met counts against it.
        yield Sent(record, truth if options.train or truth in labels else None)


class _Labelled(msgspec.Struct):
    label: str | None = None


_decode_label = msgspec.json.Decoder(_Labelled).decode


def _label(line: bytes) -> str | None:
    try:
        return _decode_label(line).label
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _labelled(offers: Path) -> bool:
    """Whether the first row has a label."""
    first = next(producing.from_file(offers), None)
    return first is not None and _label(first.value or b"") is not None


def _truth(options: Options) -> str | None:
    if options.offers is not None:
        return "the rows' `label`"
    return None if options.train else "the sample catalogue's own categories"


def _settle(options: Options, artifact: Artifact, settings: Settings) -> Account:
    letters = asyncio.run(
        account.read_dead_letters(settings.kafka_dead_letter_topic, client_settings(settings))
    )
    with mongodb(settings) as client:
        return account.settle(
            _sent(options, artifact),
            client[settings.mongodb_database][settings.mongodb_collection],
            letters,
            artifact.manifest.text,
        )


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """Lets SIGTERM end the demo as an exception does, so that it cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
