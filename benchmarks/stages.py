"""Each stage of the worker alone, in offers per CPU second and as a share of the whole.

    python -m benchmarks.stages [--offers 20000] [--model DIR]

Processor seconds of this process; the broker and the acknowledging server are others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bounds import command
from benchmarks.load import TOPIC, make_topics, new_offers, produce
from benchmarks.models import demonstration
from benchmarks.service import acknowledging
from classifier import metrics
from classifier.classification import Answered, Answerer, document, upsert, waves
from classifier.consumer import OfferConsumer
from classifier.demo.servers import embedded_broker
from classifier.model import Model, Question
from classifier.offer import Offer
from classifier.offsets import Offsets
from classifier.outage import Outages
from classifier.record import Record, decode_records
from classifier.settings import load_settings
from classifier.store import Store
from classifier.worker import spare_the_collector

BATCH = 2_000


class Clock:
    """Processor seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - started


async def spent(offers: int, kafka: str, mongodb: str, path: Path) -> dict[str, float]:
    """Processor seconds of each stage for all offers, each with a text of its own."""
    overrides: dict[str, Any] = {
        "kafka_bootstrap_servers": kafka,
        "mongodb_uri": mongodb,
        "kafka_session_timeout_ms": 20_000,
        "fetch_offers": BATCH,
    }
    settings = load_settings(None, overrides)
    await make_topics(kafka)
    await produce(kafka, new_offers(3, offers, offers))
    model = Model.load(path, threads=1, cache_offers=offers)
    manifest = model.artifact.manifest
    answerer = Answerer(manifest.id, 0, manifest.taxonomy)
    counters, outages, offsets, clock = metrics.in_process(), Outages(), Offsets(), Clock()
    store = Store(settings, outages, counters)
    consumer = OfferConsumer(settings, offsets, outages, counters)
    await consumer.join()
    spare_the_collector()
    done = 0
    while done < offers:
        with clock("fetch"):
            fetched = await consumer.fetch()
        if fetched is None:
            continue
        with clock("decode"):
            pairs = decode_records(fetched.records, 1 << 20, "refuse").offers
        with clock("text"):
            texts = [model.recipe.text(offer) for _, offer in pairs]
        with clock("tokenise"):
            question = model.prepare(texts)
        with clock("engine"):
            for call in question.calls:
                model.compute(question, call)
        with clock("cache hit"):
            again = model.prepare(texts)
        with clock("write"):
            await store.write(_updates(pairs, again, answerer), lambda: True)
        for claim in fetched.claims:
            offsets.settle(claim)
        with clock("commit"):
            await consumer.commit()
        done += len(fetched.records)
    await consumer.leave()
    await store.close()
    model.close()
    return clock.seconds


def _updates(
    pairs: list[tuple[Record, Offer]], question: Question, answerer: Answerer
) -> list[Any]:
    at = datetime.now(UTC)
    answered = [
        Answered(record, offer, prediction, text.hex())
        for (record, offer), text, prediction in zip(
            pairs, question.hashes, question.answers, strict=True
        )
        if prediction is not None
    ]
    (wave,) = waves(answered)
    return [upsert(document(one, answerer, at)) for one in wave if isinstance(one, Answered)]


def measure(offers: int = 20_000, model: Path | None = None) -> list[str]:
    """Prints the table, the encoder's stages apart from what every offer costs; demands nothing."""
    path = model or demonstration()
    with embedded_broker() as kafka, acknowledging() as (mongodb, written):
        seconds = asyncio.run(spent(offers, kafka, mongodb, path))
        if written()["ids"] != offers:
            raise RuntimeError(f"{offers} offers were read, and written: {written()}")
    cached = {name: seconds[name] for name in ("fetch", "decode", "text", "cache hit")}
    cached |= {name: seconds[name] for name in ("write", "commit")}
    new = {name: cost for name, cost in seconds.items() if name != "cache hit"}
    table = Table(title=f"{offers:,} offers, demonstration model, {TOPIC} to acknowledged write")
    for column in ("stage", "offers per CPU s", "µs an offer", "share, cached", "share, new text"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for name, cost in seconds.items():
        table.add_row(
            name,
            f"{offers / cost:,.0f}",
            f"{cost / offers * 1e6:.1f}",
            _share(name, cached),
            _share(name, new),
        )
    for title, stages in (("all, text in the cache", cached), ("all, text new", new)):
        total = sum(stages.values())
        table.add_row(title, f"{offers / total:,.0f}", f"{total / offers * 1e6:.1f}", "", "")
    Console(width=100).print(table)
    return []


def _share(name: str, stages: dict[str, float]) -> str:
    return f"{stages[name] / sum(stages.values()):.1%}" if name in stages else ""


if __name__ == "__main__":
    command(measure)
