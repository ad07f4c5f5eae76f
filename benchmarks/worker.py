"""Everything but the encoder: offers whose text is in the cache, from Kafka to acknowledged write.

    python -m benchmarks.worker [--offers 200000] [--texts 50000] [--model DIR]

Counts the processor seconds of the whole process tree of the production command, supervisor and
endpoints included, against a server that parses every bulk and only acknowledges it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.bounds import command
from benchmarks.load import make_topics, median_bytes, new_offers, produce
from benchmarks.models import demonstration
from benchmarks.service import acknowledging, serving, until
from classifier.demo.servers import embedded_broker

REQUIRED = 15_000
"""Offers per worker CPU second, on two cores with AVX2."""
LEAST_BYTES, MOST_BYTES = 270, 330
"""The median record must be of a real offer's size, or the rate says nothing."""


def measure(offers: int = 200_000, texts: int = 50_000, model: Path | None = None) -> list[str]:
    """Prints the figures, with the demonstration model or another; gives what falls short.

    Raises RuntimeError unless every offer was written once.
    """
    artifact = model or demonstration()
    records = new_offers(1, texts + offers, texts)
    warm, measured = records[:texts], records[texts:]
    with embedded_broker() as kafka, acknowledging() as (mongodb, written):
        asyncio.run(make_topics(kafka))
        with serving(kafka, mongodb, artifact) as service:
            asyncio.run(produce(kafka, warm))
            until(lambda: written()["ids"] == texts, "the cache is warm")
            until(lambda: service.counter("classifier_offers_total") == texts, "all counted")
            misses = service.counter('classifier_cache_total{result="miss"')
            with service.stopped():
                asyncio.run(produce(kafka, measured))
                before = service.cpu_seconds()
                started = time.monotonic()
            until(lambda: written()["ids"] == len(records), "all written")
            seconds = time.monotonic() - started
            until(
                lambda: service.counter("classifier_offers_total") == len(records),
                "all committed and counted",
            )
            cpu = service.cpu_seconds() - before
            computed = service.counter('classifier_cache_total{result="miss"') - misses
        total = written()
    if total["ids"] != len(records) or total["updates"] != len(records):
        raise RuntimeError(f"{len(records)} offers were sent, but written: {total}")
    rate, median = offers / cpu, median_bytes(records)
    print(f"offers {offers:,} over {texts:,} texts, median record {median:.0f} bytes")
    print(f"not from the cache: {computed:.0f} texts")
    print(f"written and acknowledged: {total['ids']:,} ids by {total['updates']:,} updates")
    print(f"worker, whole process tree: {rate:,.0f} offers per CPU second", end="")
    print(f" ({rate / REQUIRED:.2f} of the required {REQUIRED:,})")
    print(
        f"by wall clock, with everything else on the same machine: {offers / seconds:,.0f} a second"
    )
    short = []
    if rate < REQUIRED:
        short.append(f"{rate:,.0f} offers per CPU second, required {REQUIRED:,}")
    if not LEAST_BYTES <= median <= MOST_BYTES:
        short.append(f"median record {median:.0f} bytes, required {LEAST_BYTES} to {MOST_BYTES}")
    return short


if __name__ == "__main__":
    command(measure)
