"""The demo from its start to its account."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType

import msgspec
import pymongo
from rich.console import Console
from rich.live import Live
from rich.text import Text

from classifier import log, sample
from classifier import produce as producing
from classifier.artifact import Artifact
from classifier.client import client_settings
from classifier.demo import DemoError, account, report, servers, service, training
from classifier.demo.account import Account, Document, Sent
from classifier.produce import Record
from classifier.settings import Settings, load_settings

# What the embedded database takes in, and the service starts and stops in, half a minute.
EVENTS = 20_000
SEED = 20_240_229

PARTITIONS = 4
# So many records may be on their way at once. Enough to keep the service busy, and few enough for
# an offer's age to be that of a stream that keeps up: a flood would only measure its own length.
# In batches of a quarter of that, one is fetched while others are computed and written.
WINDOW = 2_000
# With no record done for so long, something is broken.
STALL_SECONDS = 90.0
_LOOK_SECONDS = 0.2
_LINE_SECONDS = 5.0

_PATHS = ("/healthz", "/readyz", "/model", "/metrics")


@dataclass(frozen=True)
class Options:
    """What a person may choose."""

    offers: Path | None = None  # offers of their own; None: the sample catalogue's
    train: Path | None = None  # labelled offers to train on; None: the sample catalogue's
    count: int | None = None  # how many records; None: EVENTS, or the whole file
    models: Path = Path("models")


def demo(options: Options, console: Console | None = None) -> int:
    """Run all of it and print what came of it; gives the exit code.

    Raises DemoError with one line when something is missing or does not work.
    """
    console = console or Console()
    _check(options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated())
        artifact = training.model(options.train, options.models, _say(console))
        try:
            bootstrap = stack.enter_context(servers.embedded_broker())
            uri = stack.enter_context(servers.embedded_database())
        except servers.ServerError as error:
            raise DemoError(str(error)) from error
        settings = _settings(artifact, bootstrap, uri)
        _say(console)(f"broker {bootstrap}, topic {settings.kafka_topic}")
        _say(console)(f"database {settings.mongodb_database}")
        stack.enter_context(_topics(settings))
        stack.enter_context(_database(settings))
        run = _stream(options, artifact, settings, console)
        result = _settle(options, artifact, settings)
        if not result.sent:
            raise DemoError(f"OFFERS: {options.offers} has no line")
        report.show(console, result, run, artifact, _truth(options))
    if options.offers and not result.languages and _labelled(options.offers):
        _say(console)("The model knows none of the rows' labels: TRAIN=FILE trains one that does.")
    _say(console)(report.line(result))
    if result.missing:
        raise DemoError(f"{result.missing:,} records are lost, the first: {result.first_missing}")
    counted = run.last.done
    if counted < result.sent:
        raise DemoError(f"the metrics count {counted:,} records of {result.sent:,}")
    return 0


def _check(options: Options) -> None:
    """What can be known to be wrong before anything starts."""
    for package in ("onnxruntime", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise DemoError(f"{package} is missing: pip install 'offer-classifier[demo]'")
    for name, path in (("OFFERS", options.offers), ("TRAIN", options.train)):
        if path is not None and not path.is_file():
            raise DemoError(f"{name}: there is no file {path}")
    if options.offers and options.train and _same(options.offers, options.train):
        raise DemoError(
            "OFFERS and TRAIN are the same offers: accuracy on what the model was trained on "
            "says nothing"
        )


def _same(one: Path, other: Path) -> bool:
    return one.samefile(other) or (
        one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
    )


def _settings(artifact: Artifact, bootstrap: str, uri: str) -> Settings:
    """Names of their own, so that servers which others use keep nothing of the demo."""
    name = f"classifier-demo-{uuid.uuid4().hex[:8]}"
    settings = load_settings(
        overrides={
            "kafka_bootstrap_servers": bootstrap,
            "kafka_topic": name,
            "kafka_dead_letter_topic": f"{name}.dead-letters",
            "kafka_group": name,
            "mongodb_uri": uri,
            "mongodb_database": name,
            "model": artifact.path,
            # The embedded broker makes the first member of a group wait for others for half of
            # this. Six seconds is the least that Kafka allows unless told otherwise.
            "kafka_session_timeout_ms": 6_000,
            "revoke_seconds": 3,
            "fetch_offers": WINDOW // 4,
            "http_host": "127.0.0.1",
            "http_port": servers.free_port(),
            "log_format": "console",
        }
    )
    for secret in settings.secrets():
        log.hide(secret)
    return settings


@contextlib.contextmanager
def _topics(settings: Settings) -> Iterator[None]:
    client = client_settings(settings)
    names = [settings.kafka_topic, settings.kafka_dead_letter_topic]

    async def make() -> None:
        for name, partitions in zip(names, (PARTITIONS, 1), strict=True):
            await servers.create_topic(topic=name, partitions=partitions, **client)

    try:
        asyncio.run(make())
    except Exception as error:  # whatever the client raises, the demo ends here
        raise DemoError(f"the broker does not make the demo's topics: {error!r}") from error
    try:
        yield
    finally:
        # The servers may be the reason why the demo ends.
        with contextlib.suppress(Exception):
            asyncio.run(servers.delete_topics(topics=names, **client))


@contextlib.contextmanager
def _database(settings: Settings) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(pymongo.errors.PyMongoError), _mongodb(settings) as client:
            client.drop_database(settings.mongodb_database)


def _mongodb(settings: Settings) -> pymongo.MongoClient[Document]:
    return pymongo.MongoClient(
        settings.mongodb_uri.get_secret_value(), serverSelectionTimeoutMS=10_000
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


def _stream(
    options: Options, artifact: Artifact, settings: Settings, console: Console
) -> report.Run:
    """Start the service, send the records, and watch until the last is done."""
    environment = {
        name.upper(): value
        for name, value in msgspec.json.decode(settings.worker_json()).items()
        if value is not None
    }
    with service.running({name: str(value) for name, value in environment.items()}) as serving:
        serving.wait_until_ready()
        _say(console)(f"service at http://127.0.0.1:{serving.port}, ready")
        started = time.perf_counter()
        sending = _Sending(_sent(options, artifact), settings)
        try:
            last = _watch(serving, sending, options, console)
        finally:
            sending.stop()
        seconds = time.perf_counter() - started
        answers = {}
        for path in _PATHS:
            status, body = serving.get(path)
            url = f"http://127.0.0.1:{serving.port}{path}"
            answers[url] = (status, _beginning(body))
        serving.stop()
    return report.Run(seconds, last, answers)


def _beginning(body: str) -> str:
    """The first line that is no comment."""
    lines = (line for line in body.splitlines() if not line.startswith("#"))
    return next(lines, "")[:80]


class _Sending:
    """Sends the records from a thread, no more than WINDOW ahead of the service."""

    def __init__(self, sent: Iterator[Sent], settings: Settings) -> None:
        self._sent = sent
        self._settings = settings
        self._may_go = threading.Condition()
        self._done = 0
        self._drawn = 0
        self._stopped = False
        self._error: Exception | None = None
        self.too_large = 0
        self.finished = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """Records that were sent so far, or are about to be."""
        return self._drawn - self.too_large

    def done(self, count: int) -> None:
        """So many are done; more may be sent. Raises what the sending ended with."""
        if self._error is not None:
            raise DemoError(str(self._error)) from self._error
        with self._may_go:
            self._done = count
            self._may_go.notify()

    def stop(self) -> None:
        """End, whatever is left to send."""
        with self._may_go:
            self._stopped = True
            self._may_go.notify()
        self._thread.join(30)

    def _records(self) -> Iterator[Record]:
        for each in self._sent:
            # The producer draws a record only when those before its chunk are acknowledged, so
            # its loop has nothing to do while this waits.
            with self._may_go:
                self._may_go.wait_for(lambda: self._stopped or self._drawn - self._done < WINDOW)
                if self._stopped:
                    return
            self._drawn += 1
            yield each.record

    def _run(self) -> None:
        try:
            counts = asyncio.run(
                producing.produce(
                    self._records(), self._settings.kafka_topic, client_settings(self._settings)
                )
            )
            self.too_large = counts.too_large
            self.finished = True
        except Exception as error:  # noqa: BLE001 raised again where the demo waits for it
            self._error = error


def _watch(
    serving: service.Service, sending: _Sending, options: Options, console: Console
) -> service.Snapshot:
    """Show the progress until all is done; gives the last metrics."""
    total = options.count or (EVENTS if options.offers is None else None)
    started = moved = spoken = time.perf_counter()
    done = 0
    last = service.Snapshot({}, 0, ())
    with Live(console=console, transient=True, refresh_per_second=8) as live:
        while not (sending.finished and done >= sending.count):
            time.sleep(_LOOK_SECONDS)
            now = time.perf_counter()
            last = serving.snapshot() or last
            if last.done > done:
                done, moved = last.done, now
            sending.done(done)
            line = _line(last, sending.count, total, done / (now - started))
            live.update(Text(line, no_wrap=True, overflow="ellipsis"))
            if not console.is_terminal and now - spoken > _LINE_SECONDS:
                spoken = now
                _say(console)(line)
            if now - moved > STALL_SECONDS:
                _, body = serving.get("/readyz")
                raise DemoError(
                    f"no record was done for {STALL_SECONDS:.0f} s, after {done:,}: "
                    f"{service.reasons(body)}"
                )
    return last


def _line(last: service.Snapshot, sent: int, total: int | None, rate: float) -> str:
    outcomes = last.outcomes
    of = f" of {total:,}" if total else ""
    return (
        f"{last.done:,}{of} records done, {rate:,.0f}/s, "
        f"{max(0, sent - last.done):,} on their way, lag {last.lag:,}, "
        f"{outcomes.get('uncertain', 0):,} uncertain, "
        f"{outcomes.get('dead_letter', 0):,} dead letters"
    )


def _settle(options: Options, artifact: Artifact, settings: Settings) -> Account:
    letters = asyncio.run(
        account.read_dead_letters(settings.kafka_dead_letter_topic, client_settings(settings))
    )
    with _mongodb(settings) as client:
        return account.settle(
            _sent(options, artifact),
            client[settings.mongodb_database][settings.mongodb_collection],
            letters,
            artifact.manifest.text,
        )


def _say(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)


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
