"""The worker's memory with the demonstration model, over half a million offers.

    python -m benchmarks.memory [--offers 500000] [--model DIR]

First the prediction cache is filled to its end; from there on memory must stay where it is, while a
tenth of the texts are new and push old ones out. The bound is on the most that the worker ever
held, between any two of these looks; the drift compares looks at a worker that is at rest.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.bounds import command
from benchmarks.load import make_topics, new_offers, produce
from benchmarks.models import demonstration
from benchmarks.service import acknowledging, serving, until
from classifier.demo.servers import embedded_broker

MOST_BYTES = 400_000_000
MOST_DRIFT = 0.05
CACHE = 100_000
"""Texts in the cache: the setting's default."""
STEP = 50_000


def measure(offers: int = 500_000, model: Path | None = None) -> list[str]:
    """Prints the worker's resident memory along the way, its peak, and its drift.

    Gives what falls short.
    """
    artifact = model or demonstration()
    with embedded_broker() as kafka, acknowledging() as (mongodb, written):
        asyncio.run(make_topics(kafka))
        with serving(kafka, mongodb, artifact, cache_offers=CACHE) as service:
            seen = 0

            def through(seed: int, count: int, texts: int) -> int:
                nonlocal seen
                asyncio.run(produce(kafka, new_offers(seed, count, texts)))
                seen += count
                until(lambda: service.counter("classifier_offers_total") == seen, "all counted")
                return service.worker_rss()

            print(f"started: {service.worker_rss() / 1e6:,.0f} MB")
            full = through(100, CACHE, CACHE)
            print(f"cache full, {CACHE:,} texts: {full / 1e6:,.0f} MB")
            found = [through(200 + n, STEP, STEP // 10) for n in range(offers // STEP)]
            peak = max(full, *found, service.worker_peak())
        total = written()["ids"]
    if total != seen:
        raise RuntimeError(f"{seen} offers were sent, and {total} ids written")
    drift = found[-1] / full - 1
    print(f"every {STEP:,} offers: {', '.join(f'{rss / 1e6:,.0f}' for rss in found)} MB")
    print(f"peak: {peak / 1e6:,.0f} MB (at most {MOST_BYTES / 1e6:,.0f})")
    print(f"drift over {offers:,} offers: {drift:+.1%} (at most {MOST_DRIFT:.0%})")
    short = []
    if peak > MOST_BYTES:
        short.append(f"peak {peak / 1e6:,.0f} MB, at most {MOST_BYTES / 1e6:,.0f}")
    if drift > MOST_DRIFT:
        short.append(f"drift {drift:+.1%}, at most {MOST_DRIFT:.0%}")
    return short


if __name__ == "__main__":
    command(measure)
