"""What Prometheus reads, as numbers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def samples(exposition: bytes) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition.decode())
        for sample in family.samples
    }
