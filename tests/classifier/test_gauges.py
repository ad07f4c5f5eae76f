"""The gauges show the slots as they are."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from classifier import consumer, deadletter, engine_thread, store
from classifier.gauges import Gauges
from classifier.link import ModelInfo, Status, SupervisorLink
from classifier.slot import Slot

MODEL = ModelInfo(
    artifact="a" * 16,
    target="onnx-cpu",
    precision="fp32",
    taxonomy="t1",
    labels=2,
    promotion=7,
    created_at="2026-01-01T00:00:00+00:00",
)


def running(number: int, lag: dict[str, int], waiting_on: list[str] | None = None) -> Slot:
    slot = Slot(number, fresh=10, stall=300)
    slot.process = Mock(spec=asyncio.subprocess.Process)
    slot.connect(Mock(spec=SupervisorLink), now=0)
    slot.tell(
        Status(
            slot=number,
            pid=1,
            state="running",
            model=MODEL,
            golden=True,
            joined=True,
            mongodb=not waiting_on,
            waiting_on=waiting_on or [],
            in_flight=10,
            lag=lag,
        )
    )
    return slot


def samples(gauges: Gauges) -> dict[str, float]:
    """By name and label values, in the order of the labels' names."""
    registry = CollectorRegistry()
    registry.register(gauges)
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_the_slots_are_shown_as_they_are() -> None:
    gone = Slot(2, fresh=10, stall=300)
    gone.restarts.update({"killed": 3, "stalled": 1})
    slots = [
        running(0, {"offers/0": 5, "offers/1": 8}),
        running(1, {"offers/1": 2, "a/b/0": 1}, ["mongodb"]),
        gone,
    ]
    assert samples(Gauges(slots, now=1, seated=4, requests={200: 9, 429: 2})) == {
        "classifier_workers ready": 1,
        "classifier_workers not_ready": 1,
        "classifier_workers absent": 1,
        "classifier_worker_restarts_total exited": 0,
        "classifier_worker_restarts_total killed": 3,
        "classifier_worker_restarts_total stalled": 1,
        "classifier_in_flight_offers": 20,
        # A partition that is being handed over is as far behind as the worse of the two says.
        "classifier_lag_records 0 offers": 5,
        "classifier_lag_records 1 offers": 8,
        "classifier_lag_records 0 a/b": 1,
        "classifier_waiting_workers kafka": 0,
        "classifier_waiting_workers mongodb": 1,
        "classifier_waiting_workers engine": 0,
        "classifier_waiting_workers dead-letters": 0,
        f"classifier_model_info {'a' * 16} fp32 7 onnx-cpu t1": 2,
        "classifier_requests_in_progress": 4,
        "classifier_requests_total 200": 9,
        "classifier_requests_total 429": 2,
    }


def test_every_outage_has_a_series_before_during_and_after_it() -> None:
    services = (consumer.SERVICE, store.SERVICE, engine_thread.SERVICE, deadletter.SERVICE)
    for away in ([], list(services)):
        shown = samples(Gauges([running(0, {}, away)], now=1, seated=0, requests={}))
        waiting = {name: shown[name] for name in shown if "waiting_workers" in name}
        assert waiting == {
            f"classifier_waiting_workers {service}": len(away) // 4 for service in services
        }


def test_they_are_those_of_the_moment_they_were_made() -> None:
    slot = running(0, {})
    gauges = Gauges([slot], now=1, seated=0, requests={})
    slot.disconnect()
    assert samples(gauges)["classifier_workers ready"] == 1
