"""What is true of the service at this moment, as metrics: made anew for each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from classifier.slot import Slot

_OUTAGES = ("kafka", "mongodb", "engine", "dead-letters")
"""What may be waited for: a series that vanished at the end of an outage would look like one that
goes on, or like nothing at all."""


class Gauges(Collector):
    """The state of the slots and of `POST /classify`, taken when this is made.

    So it may be collected on another thread. `seated` is the number of requests now,
    `requests` the number answered so far, by HTTP status.
    """

    def __init__(self, slots: Sequence[Slot], now: float, seated: int, requests: Mapping[int, int]):
        self._families = list(_families(slots, now, seated, requests))

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(
    slots: Sequence[Slot], now: float, seated: int, requests: Mapping[int, int]
) -> Iterator[Metric]:
    statuses = [slot.status for slot in slots if slot.status is not None]

    states = Counter(
        "ready" if slot.ready(now) else "not_ready" if slot.process else "absent" for slot in slots
    )
    workers = GaugeMetricFamily("classifier_workers", "Workers by state", labels=["state"])
    for state in ("ready", "not_ready", "absent"):
        workers.add_metric([state], states[state])
    yield workers

    causes: Counter[str] = Counter()
    for slot in slots:
        causes.update(slot.restarts)
    restarts = CounterMetricFamily(
        "classifier_worker_restarts", "Workers started anew, by what ended them", labels=["why"]
    )
    for cause in ("exited", "killed", "stalled"):
        restarts.add_metric([cause], causes[cause])
    yield restarts

    yield GaugeMetricFamily(
        "classifier_in_flight_offers",
        "Offers fetched and not yet committed",
        value=sum(status.in_flight for status in statuses),
    )

    # In a hand-over two workers may know a partition; the one that is further behind is read.
    behind: dict[str, int] = {}
    for status in statuses:
        for partition, records in status.lag.items():
            behind[partition] = max(records, behind.get(partition, 0))
    lag = GaugeMetricFamily(
        "classifier_lag_records", "Records behind", labels=["topic", "partition"]
    )
    for name, records in sorted(behind.items()):
        topic, _, partition = name.rpartition("/")
        lag.add_metric([topic, partition], records)
    yield lag

    outages = Counter(outage for status in statuses for outage in status.waiting_on)
    waiting = GaugeMetricFamily(
        "classifier_waiting_workers", "Workers that wait on an outage", labels=["outage"]
    )
    for outage in sorted({*_OUTAGES, *outages}):
        waiting.add_metric([outage], outages[outage])
    yield waiting

    names = ["artifact", "target", "precision", "taxonomy", "promotion"]
    info = GaugeMetricFamily(
        "classifier_model_info", "Workers that answer with a model", labels=names
    )
    models = Counter(
        tuple(str(getattr(status.model, name)) for name in names)
        for status in statuses
        if status.model is not None
    )
    for labels, count in models.items():
        info.add_metric(list(labels), count)
    yield info

    yield GaugeMetricFamily(
        "classifier_requests_in_progress", "Requests to /classify now", value=seated
    )
    answered = CounterMetricFamily(
        "classifier_requests", "Requests to /classify, by HTTP status", labels=["status"]
    )
    for code, count in sorted(requests.items()):
        answered.add_metric([str(code)], count)
    yield answered
