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

import collections
import json
import math
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
from numpy.typing import ArrayLike
from prometheus_client import CollectorRegistry, generate_latest, multiprocess, values
from prometheus_client.registry import Collector

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4

OTHER = "other"

# A series costs the scraper memory for good. The largest taxonomies in sight have some 2,200
# categories; past the cap, a category is counted as "other".
MOST_CATEGORIES = 2_500
MOST_REASONS = 32
# Longer label values are cut, so that text from outside cannot swell the files.
_LONGEST_LABEL = 120

# Space for the values, taken from the disk at the start: a page that the disk cannot back when it
# is first written kills the process (SIGBUS), a failed allocation is an error with a name.
_COUNTER_BYTES = 1 << 20
_HISTOGRAM_BYTES = 1 << 18

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_AGES = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 14_400, 86_400)
_OFFERS = (1, 4, 16, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)
_TOKENS = (64, 256, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
_SCORES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)


class _Maker:
    """Makes metrics whose values live where this maker says.

    prometheus_client looks its value class up in a module variable whenever a series is made, so
    the variable is set for just that long, and makers do not disturb one another.
    """

    _lock = threading.Lock()

    def __init__(self, value_class: Any, directory: Path | None, known: dict[str, list[str]]):
        self.registry = CollectorRegistry()
        self.known = known
        self._value_class = value_class
        self._directory = directory

    @contextmanager
    def making(self) -> Iterator[None]:
        with self._lock:
            usual, path = values.ValueClass, os.environ.get("PROMETHEUS_MULTIPROC_DIR")
            values.ValueClass = self._value_class
            if self._directory is not None:
                os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self._directory)
            try:
                yield
            finally:
                values.ValueClass = usual
                if path is not None:
                    os.environ["PROMETHEUS_MULTIPROC_DIR"] = path
                else:
                    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)


class Count:
    """A total that only grows."""

    def __init__(self, maker: _Maker, name: str, about: str):
        with maker.making():
            self._series = prometheus_client.Counter(name, about, registry=maker.registry)

    def inc(self, amount: float = 1) -> None:
        self._series.inc(_checked(amount))

    @property
    def value(self) -> float:
        return float(self._series._value.get())


class Tally:
    """Totals by the value of one label: the expected values from the start, at zero, so that a
    first increase is seen as one; others as they come, up to `most` in all; the rest as "other".
    """

    def __init__(
        self,
        maker: _Maker,
        name: str,
        about: str,
        label: str,
        expected: Sequence[str] = (),
        most: int = 0,
    ):
        self._making = maker.making
        self._most = max(most, len(expected))
        with maker.making():
            self._counter = prometheus_client.Counter(name, about, [label], registry=maker.registry)
        # The bare values: a batch raises hundreds of them.
        self._series: dict[str, Any] = {}
        # What the slot's file has from its last life counts against the cap as well.
        for value in (*expected, *maker.known.get(name, ())):
            self._make(value)

    def inc(self, value: str, amount: float = 1) -> None:
        """Count `amount` more of `value`."""
        amount = _checked(amount)
        if amount:
            (self._series.get(value) or self._find(value)).inc(amount)

    def inc_many(self, values: Iterable[str]) -> None:
        """Count each of the values once."""
        for value, amount in collections.Counter(values).items():
            self.inc(value, amount)

    def value(self, value: str) -> float:
        """Give this process's total of `value`, what earlier lives of its slot counted included."""
        series = self._series.get(value)
        return float(series.get()) if series is not None else 0.0

    def _find(self, value: str) -> Any:
        label = value[:_LONGEST_LABEL].encode("utf-8", "replace").decode()
        found = self._series.get(label)
        if found is None:
            room = len(self._series) - (OTHER in self._series) < self._most
            label = label if room else OTHER
            found = self._series.get(label) or self._make(label)
        return found

    def _make(self, label: str) -> Any:
        with self._making():
            series = self._series[label] = self._counter.labels(label)._value
        return series


class Distribution:
    """A histogram that takes whole arrays."""

    def __init__(self, histogram: prometheus_client.Histogram, bounds: Sequence[float]):
        self._bounds = np.asarray(bounds, dtype=np.float64)
        self._sum = histogram._sum
        self._buckets = histogram._buckets

    @classmethod
    def make(cls, maker: _Maker, name: str, about: str, bounds: Sequence[float]) -> Distribution:
        with maker.making():
            histogram = prometheus_client.Histogram(
                name, about, buckets=bounds, registry=maker.registry
            )
        return cls(histogram, bounds)

    def observe(self, value: float) -> None:
        """Count one value; one that is not finite is left out, it would spoil the sum for good."""
        if math.isfinite(value):
            self._sum.inc(value)
            self._buckets[int(self._bounds.searchsorted(value))].inc(1)

    def observe_many(self, values: ArrayLike) -> None:
        """Count every value of an array of any shape; those that are not finite are left out.

        The price is a binary search a value in numpy, and one write a bucket that was met.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        array = array[np.isfinite(array)]
        if not len(array):
            return
        counts = np.bincount(self._bounds.searchsorted(array), minlength=len(self._buckets))
        self._sum.inc(float(array.sum()))
        for bucket in counts.nonzero()[0].tolist():
            self._buckets[bucket].inc(int(counts[bucket]))

    @property
    def count(self) -> float:
        """How many values were counted."""
        return float(sum(bucket.get() for bucket in self._buckets))

    @property
    def sum(self) -> float:
        return float(self._sum.get())


class Stages:
    """A histogram of seconds for each stage an offer goes through."""

    def __init__(
        self,
        maker: _Maker,
        name: str,
        about: str,
        stages: Sequence[str],
        bounds: Sequence[float],
    ):
        with maker.making():
            histogram = prometheus_client.Histogram(
                name, about, ["stage"], buckets=bounds, registry=maker.registry
            )
            self._stages = {
                stage: Distribution(histogram.labels(stage), bounds) for stage in stages
            }

    def observe(self, stage: str, seconds: float) -> None:
        """Count the seconds one batch spent in a stage; KeyError for one that is not in STAGES."""
        self._stages[stage].observe(seconds)

    def __getitem__(self, stage: str) -> Distribution:
        return self._stages[stage]


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
    return _metrics(_Maker(values.MutexValue, None, {}))


def for_worker(slot: int, directory: Path) -> Metrics:
    """Make the metrics of the worker in `slot`, going on from what the slot's files hold.

    Files that were cut or spoiled are mended first: what can still be read is kept. At most one
    process at a time may hold a slot. Raises OSError where the directory has no room for the files.
    """
    known: dict[str, list[str]] = {}
    for kind, size in (("counter", _COUNTER_BYTES), ("histogram", _HISTOGRAM_BYTES)):
        for key in _mend(directory / f"{kind}_{slot}.db", size):
            name, _, labels, _ = json.loads(key)
            if len(labels) == 1:
                known.setdefault(name, []).extend(labels.values())
    shared = values.MultiProcessValue(lambda: slot)  # type: ignore[no-untyped-call]
    return _metrics(_Maker(shared, directory, known))


def scrape(directory: Path, *collectors: Collector) -> bytes:
    """Give the sums over all slots in `directory`, and the collectors' own, in Prometheus' text
    format. Reads files: call it off the event loop.
    """
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)


def _metrics(maker: _Maker) -> Metrics:
    def distribution(name: str, about: str, bounds: Sequence[float]) -> Distribution:
        return Distribution.make(maker, name, about, bounds)

    return Metrics(
        registry=maker.registry,
        offers=Tally(
            maker,
            "classifier_offers",
            "Records done, by what became of them",
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


def _checked(amount: float) -> float:
    if not 0 <= amount < math.inf:
        raise ValueError(f"a count grows by a finite amount from 0 on, not by {amount}")
    return float(amount)


def _mend(path: Path, size: int) -> list[str]:
    """Make the file whole and at least `size` bytes long; give the keys it holds.

    The format is prometheus_client's: how many bytes are used (4 bytes, native) and 4 of padding,
    then entries of a key's length (4 bytes), the key padded to 8, a value and a timestamp (two
    doubles). The walk ends before the first entry that makes no sense; what follows is given up.
    """
    keys: list[str] = []
    path.touch(mode=0o600)
    with path.open("r+b", buffering=0) as file:
        data = bytearray(file.read())
        said = struct.unpack_from("i", data)[0] if len(data) >= 8 else 0
        used, place = min(said, len(data)), 8
        while place + 4 <= used:
            length = struct.unpack_from("i", data, place)[0]
            value_at = place + 4 + length + (8 - (length + 4) % 8)
            if length <= 0 or value_at + 16 > used:
                break
            try:
                key = data[place + 4 : place + 4 + length].decode()
                name, _, labels, _ = json.loads(key)
                sound = isinstance(name, str) and isinstance(labels, dict)
            except ValueError:
                sound = False
            if not sound:
                break
            if not 0 <= struct.unpack_from("d", data, value_at)[0] < math.inf:
                file.seek(value_at)
                file.write(bytes(16))
            keys.append(key)
            place = value_at + 16
        if place != said:
            file.seek(0)
            file.write(struct.pack("ii", place, 0))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(size, len(data)))
        else:  # macOS: sparse
            os.truncate(file.fileno(), max(size, len(data)))
    return keys
