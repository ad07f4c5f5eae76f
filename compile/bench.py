"""What a million offers cost: artefacts measured here, each on one worker, and published figures.

One worker is one core, one GPU or one NeuronCore, as in the service: an artefact is loaded and
checked as a worker does it, with one thread and no cache. Three things are timed of each:

    whole   offers to calibrated scores, as the service does it: recipe, tokeniser, batches, engine
    engine  the same batches in the engine alone
    grid    the engine alone on rows of real tokens of one length, for every batch and length

All take turns, round by round, and the median round counts, so that a machine whose pace drifts
treats them alike. A CPU worker's pace is offers by second of processor time, because in production
it has its core for itself; where it is well above the pace by the clock, something else was running
here. What workers on one machine take from each other (memory, hyper-threads) is not in the price
of an instance: that is price / (workers x pace).
"""

from __future__ import annotations

import importlib.metadata
import itertools
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier import sample
from classifier.artifact import Artifact, resolve
from classifier.cpu import described, quota
from classifier.engines import Engine, load_engine
from classifier.model import Model, Question, wide_part
from classifier.offer import Offer
from classifier.settings import Settings
from classifier.tokens import Tokeniser, bound_pool, pad
from compile.labelled import DataError, read_offers
from compile.prices import PRICES, Prices, Published, load_prices, load_published

CHUNK = 500
"""Offers that are asked together, about what a worker fetches under load."""
MOST_OFFERS = 8 * CHUNK
SECONDS = 60.0
"""How long rounds are begun, loading included."""
BATCHES = (1, 8, 32)
VISIT_SECONDS = 0.2
"""A cell's turn in a round: long enough for the clock, short enough for many rounds."""
INSTRUCTIONS = (
    "avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "sve", "i8mm", "bf16",
)  # fmt: skip
"""What makes one CPU several times as fast as another for a model, in /proc/cpuinfo's names."""
BUSY = 1.15
"""Above this ratio of a pace by processor time to one by the clock, the machine was not idle."""

PACKAGES = ("numpy", "onnxruntime", "scipy", "tokenizers", "torch", "torch-neuronx")

_BATCH_TOKENS: int = Settings.model_fields["batch_tokens"].default


class BenchError(Exception):
    """Nothing was measured. The message is one line."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. Paces are offers a second."""

    figure: str  # "measured" or "published"
    instance: str  # that it is priced as
    verified: bool  # that price
    device: str
    target: str
    model: str
    precision: str
    what: str  # "whole", "engine" or "grid"
    batch: float | None  # texts of an engine call
    length: float | None  # tokens of a text, padding included
    workers: int
    each: float  # pace of one worker
    total: float  # pace of the instance
    clock: float | None = None  # pace of one worker here, by the clock
    million: float  # price of a million offers
    times_svm: float | None = None  # that price over the SVM's, both whole and of the same offers
    source: str = ""  # of a published figure


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and what it was made on and by."""

    machine: str
    cores: int
    offers: str  # where they are from
    rounds: int
    currency: str
    region: str
    prices: str  # their date
    versions: dict[str, str]  # of the packages that compute
    rows: tuple[Row, ...]


@dataclass
class Cell:
    """One thing to be timed. `ask` computes some offers and gives their number."""

    subject: Subject
    what: str
    batch: float | None
    length: float | None
    ask: Callable[[], int]
    clock: list[float] = field(default_factory=list)  # offers a second, by round
    processor: list[float] = field(default_factory=list)

    def visit(self, seconds: float) -> None:
        """One turn: asks at least once, and until the time is over."""
        done = 0
        clock, processor = time.monotonic(), time.process_time()
        while not done or time.monotonic() - clock < seconds:
            done += self.ask()
        self.clock.append(done / (time.monotonic() - clock))
        self.processor.append(done / max(time.process_time() - processor, 1e-9))

    @property
    def pace(self) -> float:
        """Offers a second of one worker that has its device for itself."""
        return statistics.median(self.processor if self.subject.on_cpu else self.clock)


@dataclass(frozen=True)
class Measured:
    """All cells, timed."""

    cells: list[Cell]
    rounds: int
    svm: Cell | None  # the SVM's whole, that the others are held against


class Subject:
    """An artefact under measurement: loaded as a worker loads it, one thread and no cache."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.engine: Engine = load_engine(artifact, 1)
        wide = wide_part(artifact)
        self.model = Model(artifact, self.engine, 0, _BATCH_TOKENS, alternatives=3, wide=wide)
        self.model.check_golden()

    @property
    def linear(self) -> bool:
        return self.artifact.manifest.kind == "linear"

    @property
    def on_cpu(self) -> bool:
        return _on_cpu(self.artifact.manifest.target)

    def close(self) -> None:
        self.model.close()

    def on_offers(self, offers: Sequence[Offer]) -> list[Cell]:
        """Both cells of real offers. Equal texts are asked once: the cache would have the second.

        Raises BenchError when no offer has a text.
        """
        texts: dict[str, Offer] = {}
        for offer in offers:
            if text := self.model.recipe.text(offer):
                texts.setdefault(text, offer)
        if not texts:
            raise BenchError("no offer has a text: there is nothing to measure")
        distinct = list(texts.values())
        chunks = [distinct[at : at + CHUNK] for at in range(0, len(distinct), CHUNK)]
        # A rest of a few offers makes batches that no worker makes under load.
        if len(chunks) > 1 and len(chunks[-1]) < CHUNK:
            chunks.pop()
        questions = [self.model.ask(chunk).question for chunk in chunks]
        calls = sum(len(question.calls) for question in questions)
        rows = sum(len(question.ids) for question in questions)
        tokens = sum(sum(question.tokens()) for question in questions)
        shape = (rows / calls, None if self.linear else tokens / rows)
        whole = _in_turn([_whole(self.model, chunk) for chunk in chunks])
        engine = _in_turn(
            [_engine(self.engine, question, self.model.pad_id) for question in questions]
        )
        return [Cell(self, "whole", *shape, whole), Cell(self, "engine", *shape, engine)]

    def on_grid(self, batches: Sequence[int], lengths: Sequence[int]) -> list[Cell]:
        """A cell for every batch and length. Without lengths: 16, 32 and the longest it takes.

        Raises BenchError when it takes no text as long.
        """
        most = self.artifact.manifest.max_tokens
        if lengths and max(lengths) > most:
            raise BenchError(
                f"artefact {self.artifact.manifest.id} takes at most {most} tokens, not"
                f" {max(lengths)}"
            )
        tokeniser = Tokeniser.from_file(self.artifact.path / "tokenizer.json", most)
        rows, _ = tokeniser.encode([question.text for question in self.artifact.golden])
        stream = [token for row in rows for token in row]
        cells = []
        for batch, length in itertools.product(batches, lengths or _lengths(most)):
            ids = np.resize(np.array(stream, np.int32), (batch, length))
            full = np.full(batch, length, np.int32)
            cells.append(Cell(self, "grid", batch, length, _logits(self.engine, ids, full)))
        return cells


def bench(
    models: Sequence[Path],
    against: Path | None = None,
    *,
    offers: Path | None = None,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] = (),
    seconds: float = SECONDS,
    instance: str | None = None,
    prices: Path = PRICES,
) -> Report:
    """Measures and prices all artefacts, as workers of `instance`, and adds published figures.

    Raises BenchError, PriceError, and what a worker raises that cannot serve an artefact:
    ArtifactError, EngineError, ModelError.
    """
    instance = instance or default_instance()
    priced = load_prices(prices)
    artifacts = [Artifact.load(resolve(path)) for path in models]
    svm = None if against is None else Artifact.load(resolve(against))
    if svm is not None and svm.manifest.kind != "linear":
        raise BenchError(f"{against}: is of kind {svm.manifest.kind}, no linear SVM")
    for artifact in (*artifacts, *filter(None, [svm])):
        priced.instance(instance, artifact.manifest.target)
    asked = offers_of(offers)
    measured = measure(artifacts, svm, asked, batches=batches, lengths=lengths, seconds=seconds)
    # One's own price file may know nothing but one's own instances.
    others = [figure for figure in load_published() if figure.instance in priced.instances]
    return Report(
        machine=machine(),
        cores=quota(),
        offers=f"{len(asked):,} of {'the sample catalogue' if offers is None else offers}",
        rounds=measured.rounds,
        currency=priced.currency,
        region=priced.region,
        prices=priced.date.isoformat(),
        versions=_versions(),
        rows=rows(measured, priced, instance, others),
    )


def measure(
    artifacts: Sequence[Artifact],
    svm: Artifact | None,
    offers: Sequence[Offer],
    *,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] = (),
    seconds: float = SECONDS,
) -> Measured:
    """Times the cells of all artefacts and of the SVM, in as many rounds as `seconds` allow.

    At least one round is made, after a first turn of every cell that does not count.
    """
    bound_pool(1)
    started = time.monotonic()
    with ExitStack() as stack:
        cells: list[Cell] = []
        for artifact in artifacts:
            subject = stack.enter_context(closing(Subject(artifact)))
            cells += subject.on_offers(offers)
            if not subject.linear:
                cells += subject.on_grid(batches, lengths)
        against = None
        if svm is not None:
            against, engine = stack.enter_context(closing(Subject(svm))).on_offers(offers)
            cells += [against, engine]
        rounds = take_turns(cells, started + seconds)
    return Measured(cells, rounds, against)


def take_turns(cells: Sequence[Cell], deadline: float) -> int:
    """Times all cells once a round, rounds being begun until the clock says `deadline`.

    Gives their number, at least 1. A first turn of each warms up and does not count.
    """
    for cell in cells:
        cell.visit(0)
        cell.clock.clear()
        cell.processor.clear()
    rounds = 0
    while not rounds or time.monotonic() < deadline:
        for cell in cells:
            cell.visit(VISIT_SECONDS)
        rounds += 1
    return rounds


def rows(
    measured: Measured, prices: Prices, instance: str, published: Sequence[Published]
) -> tuple[Row, ...]:
    """The lines of the table, the measured ones first. Raises PriceError.

    Cells are priced as workers of `instance`, published figures as the instance that they are of.
    """
    made = [_measured(cell, prices, instance) for cell in measured.cells]
    if measured.svm is not None:
        svm = _million(measured.svm, prices, instance)
        made = [
            msgspec.structs.replace(
                row, times_svm=row.million / svm if row.what == "whole" else None
            )
            for row in made
        ]
    return (*made, *(_published(figure, prices) for figure in published))


def _million(cell: Cell, prices: Prices, instance: str) -> float:
    priced, workers = prices.instance(instance, cell.subject.artifact.manifest.target)
    return priced.million(cell.pace, workers)


def _measured(cell: Cell, prices: Prices, instance: str) -> Row:
    manifest = cell.subject.artifact.manifest
    priced, workers = prices.instance(instance, manifest.target)
    return Row(
        figure="measured",
        instance=instance,
        verified=priced.verified,
        device=machine() if cell.subject.on_cpu else manifest.target,
        target=manifest.target,
        model=manifest.id,
        precision=cell.subject.engine.precision,
        what=cell.what,
        batch=cell.batch,
        length=cell.length,
        workers=workers,
        each=cell.pace,
        total=cell.pace * workers,
        clock=statistics.median(cell.clock),
        million=_million(cell, prices, instance),
    )


def _published(figure: Published, prices: Prices) -> Row:
    priced, workers = prices.instance(figure.instance, figure.target)
    each = figure.offers_per_second / workers
    return Row(
        figure="published",
        instance=figure.instance,
        verified=priced.verified,
        device=figure.device,
        target=figure.target,
        model=figure.model,
        precision=figure.precision,
        what=figure.what,
        batch=figure.batch,
        length=figure.length,
        workers=workers,
        each=each,
        total=figure.offers_per_second,
        million=priced.million(each, workers),
        source=figure.source,
    )


_HEAD = (
    "figure", "priced as", "workers", "model", "what", "batch", "length", "offers/s",
    "offers/s a worker", "{currency} a million", "times the SVM",
)  # fmt: skip


def table(report: Report) -> str:
    """The report in Markdown."""
    head = [name.format(currency=report.currency) for name in _HEAD]
    lines = [_said(report), "", _line(head), _line(["---"] * 5 + ["---:"] * (len(head) - 5))]
    for row in report.rows:
        cells = (
            row.figure,
            row.instance + ("" if row.verified else " (unverified price)"),
            f"{row.workers} x {row.target}",
            f"{row.model} {row.precision}",
            row.what,
            _number(row.batch),
            _number(row.length),
            f"{row.total:,.0f}",
            f"{row.each:,.0f}",
            f"{row.million:.4f}",
            "" if row.times_svm is None else f"{row.times_svm:.1f}",
        )
        lines.append(_line(cells))
    sources = dict.fromkeys(row.source for row in report.rows if row.source)
    if sources:
        lines += ["", "Published by " + ", ".join(f"<{source}>" for source in sources) + "."]
    return "\n".join(lines)


def _said(report: Report) -> str:
    rounds = "one round" if report.rounds == 1 else f"the median of {report.rounds} rounds"
    said = (
        f"Measured on one of {report.cores} cores of {report.machine}, {rounds};"
        f" offers: {report.offers}; prices of {report.region}, {report.prices};"
        f" {', '.join(f'{name} {version}' for name, version in report.versions.items())}."
    )
    slower = [row.each / row.clock for row in report.rows if row.clock and _on_cpu(row.target)]
    if slower and statistics.median(slower) > BUSY:
        said += (
            f" Other work ran beside it: by the clock all was {statistics.median(slower):.1f}"
            " times slower than by processor time, which counts here."
        )
    return said


def offers_of(file: Path | None) -> list[Offer]:
    """The first offers of a Parquet or JSON lines file, else of the sample catalogue's test part.

    Raises BenchError on a row that is no offer, and where there is none.
    """
    if file is None:
        return [offer for offer, _ in sample.offers(1, MOST_OFFERS, split="test")]
    try:
        found: list[Offer] = list(itertools.islice(read_offers(file), MOST_OFFERS))
    except DataError as error:
        raise BenchError(str(error)) from error
    if not found:
        raise BenchError(f"{file}: holds no offers")
    return found


def machine(root: Path = Path("/")) -> str:
    """The processor's name and what of its instructions matters, as far as the system tells it."""
    told = described(root)
    named = told.get("model name") or platform.processor() or platform.machine()
    flags = set((told.get("flags") or told.get("Features") or "").split())
    known = [flag for flag in INSTRUCTIONS if flag in flags]
    return f"{named} ({', '.join(known)})" if known else named


def default_instance() -> str:
    """The instance type of prices.yaml with processors of this machine's architecture."""
    return "c7g.large" if platform.machine() in {"aarch64", "arm64"} else "c7i.large"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _on_cpu(target: str) -> bool:
    return target.endswith("-cpu")


def _lengths(most: int) -> list[int]:
    return sorted({length for length in (16, 32) if length < most} | {most})


def _whole(model: Model, offers: Sequence[Offer]) -> Callable[[], int]:
    def ask() -> int:
        question = model.ask(offers).question
        for call in question.calls:
            model.compute(question, call)
        return len(question.ids)

    return ask


def _engine(engine: Engine, question: Question, pad_id: int) -> Callable[[], int]:
    padded = [
        pad([question.ids[row] for row in call.rows], call.length, pad_id)
        for call in question.calls
    ]

    def ask() -> int:
        for ids, lengths in padded:
            engine.logits(ids, lengths)
        return len(question.ids)

    return ask


def _logits(
    engine: Engine, ids: NDArray[np.int32], lengths: NDArray[np.int32]
) -> Callable[[], int]:
    def ask() -> int:
        engine.logits(ids, lengths)
        return len(ids)

    return ask


def _in_turn(asks: Sequence[Callable[[], int]]) -> Callable[[], int]:
    """One of them each time, in order and over again."""
    turns = itertools.cycle(asks)

    def ask() -> int:
        return next(turns)()

    return ask


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}".removesuffix(".0")
