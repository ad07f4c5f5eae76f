"""Counters and histograms of the service, by Prometheus' conventions, exact over restarts.

Each worker slot keeps its values in two memory-mapped files of its own, in prometheus_client's
multiprocess format. Files are named by slot, not by process: a restarted worker goes on counting
where the last one ended, so totals never go back, there are as many files as slots, and what was
counted before a kill -9 stays counted (the kernel owns the pages). The supervisor adds the slots
up in `scrape`.

A worker counts an offer after its offset is committed, so a total never runs ahead of the truth; a
kill in the microseconds between the two loses that one batch from the count and nothing else.

    metrics.offers.inc("classified", 900)
    metrics.stage_seconds.observe("infer", 0.021)
    metrics.score.observe_many(scores)          # (n,) of any float type
    metrics.predictions.inc_many(category_ids)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest, multiprocess, values
from prometheus_client.registry import Collector

from classifier import metric_files
from classifier.series import Count, Distribution, Maker, Stages, Tally

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4

# A series costs the scraper memory for good. The largest taxonomies in sight have some 2,200
# categories; past the cap, a category is counted as "other".
MOST_CATEGORIES = 2_500
MOST_REASONS = 32

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_AGES = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400)
_OFFERS = (1, 4, 16, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)
_TOKENS = (64, 256, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
_SCORES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)

OUTCOMES = ("classified", "uncertain", "removed", "superseded", "skipped", "dead_letter")
WRITES = ("inserted", "updated", "unchanged")
STAGES = ("fetch", "decode", "tokenise", "queue", "infer", "write", "commit")


@dataclass(frozen=True)
class Metrics:
    """What one worker counts. Call its methods from any thread; they take microseconds."""

    registry: CollectorRegistry
    offers: Tally
    writes: Tally
    stage_seconds: Stages
    batch_offers: Distribution
    batch_tokens: Distribution
    tokens: Tally
    cache: Tally
    score: Distribution
    offer_age_seconds: Distribution
    predictions: Tally
    dead_letters: Tally
    rebalances: Count
    retries: Tally
    truncated: Tally


def in_process() -> Metrics:
    """Make metrics that live in this process alone, for benchmarks and tests."""
    return _metrics(Maker(values.MutexValue, None, {}))


def for_worker(slot: int, directory: Path) -> Metrics:
    """Make the metrics of the worker in `slot`, going on from what the slot's files hold.

    Files that were cut or spoiled are mended first: what can still be read is kept. At most one
    process at a time may hold a slot. Raises OSError where the directory has no room for the files.
    """
    shared = values.MultiProcessValue(lambda: slot)  # type: ignore[no-untyped-call]
    return _metrics(Maker(shared, directory, metric_files.mend(slot, directory)))


def scrape(directory: Path, *collectors: Collector) -> bytes:
    """Give the sums over all slots in `directory`, and the collectors' own, in Prometheus' text
    format. Reads files: call it off the event loop.
    """
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)


def _metrics(maker: Maker) -> Metrics:
    def distribution(name: str, about: str, bounds: Sequence[float]) -> Distribution:
        return Distribution.make(maker, name, about, bounds)

    return Metrics(
        registry=maker.registry,
        offers=Tally(
            maker,
            "classifier_offers",
            "Records done, by what they came to; of classifications see classifier_writes, too",
            "outcome",
            OUTCOMES,
        ),
        writes=Tally(
            maker,
            "classifier_writes",
            "Classifications acknowledged by MongoDB",
            "result",
            WRITES,
        ),
        stage_seconds=Stages(
            maker,
            "classifier_stage_seconds",
            "Seconds a batch spent in each stage",
            STAGES,
            _SECONDS,
        ),
        batch_offers=distribution("classifier_batch_offers", "Offers in an engine batch", _OFFERS),
        batch_tokens=distribution(
            "classifier_batch_tokens", "Tokens in an engine batch, padding included", _TOKENS
        ),
        tokens=Tally(
            maker, "classifier_tokens", "Tokens given to the engine", "kind", ("real", "padding")
        ),
        cache=Tally(
            maker,
            "classifier_cache",
            "Texts looked up in the prediction cache",
            "result",
            ("hit", "miss"),
        ),
        score=distribution("classifier_score", "Calibrated score of the first category", _SCORES),
        offer_age_seconds=distribution(
            "classifier_offer_age_seconds",
            "Seconds from the Kafka timestamp to the acknowledged write",
            _AGES,
        ),
        predictions=Tally(
            maker,
            "classifier_predictions",
            "Offers by predicted category",
            "category",
            most=MOST_CATEGORIES,
        ),
        dead_letters=Tally(
            maker, "classifier_dead_letters", "Dead letters", "reason", most=MOST_REASONS
        ),
        rebalances=Count(maker, "classifier_rebalances", "Times partitions were assigned anew"),
        retries=Tally(
            maker,
            "classifier_retries",
            "Attempts that were repeated",
            "target",
            ("mongodb", "kafka", "dead_letters", "engine"),
        ),
        truncated=Tally(
            maker,
            "classifier_truncated",
            "Texts that were cut",
            "limit",
            ("characters", "tokens"),
        ),
    )
