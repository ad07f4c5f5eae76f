"""Series: the kinds of numbers that are counted, over prometheus_client's own.

Their methods may be called from any thread and take microseconds: a batch of a thousand offers is
one call of each, not a thousand.
"""

from __future__ import annotations

import collections
import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
from numpy.typing import ArrayLike
from prometheus_client import CollectorRegistry, values

OTHER = "other"
# Longer label values are cut, so that text from outside cannot swell the files.
_LONGEST_LABEL = 120


class Maker:
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

    def __init__(self, maker: Maker, name: str, about: str):
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
        maker: Maker,
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
    def make(cls, maker: Maker, name: str, about: str, bounds: Sequence[float]) -> Distribution:
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
        maker: Maker,
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


def _checked(amount: float) -> float:
    if not 0 <= amount < math.inf:
        raise ValueError(f"a count grows by a finite amount from 0 on, not by {amount}")
    return float(amount)
