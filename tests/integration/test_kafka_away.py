"""Kafka is away: at the start, for a while, or there and silent. It is waited for, by its name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.integration.harness import (
    SESSION_SECONDS,
    Place,
    Service,
    classifications,
    dead_letters,
    done,
    offer,
    produce,
    until,
)
from tests.integration.proxy import Proxy

Serve = Callable[[dict[str, object]], Service]

AWAY_SECONDS = 2.0 * SESSION_SECONDS
"""The group has forgotten its members when the broker is back."""


@pytest.mark.parametrize("fault", [Proxy.cut, Proxy.hang], ids=["refuses", "half open"])
async def test_kafka_that_is_away_for_a_while_costs_nothing(
    behind: Place, proxy: Proxy, serve: Serve, fault: Callable[[Proxy], None]
) -> None:
    """Promise 3 for Kafka: in the middle of a backlog, and ready again without a hand."""
    await produce(behind, [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(2_000)])
    service = serve(behind.overrides(fetch_offers=50))
    await until(service.is_ready, "ready")
    await until(lambda: service.counter("classifier_offers_total") > 0, "work moves")
    fault(proxy)
    began = time.monotonic()
    assert len(await classifications(behind)) < 2_000
    await until(lambda: "kafka" in service.waiting_on(), "the outage is named")
    report = service.get("/readyz")
    assert report.status_code == 503
    assert any("kafka is away" in reason for reason in report.json()["reasons"])
    assert service.get("/healthz").status_code == 200
    await asyncio.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
    assert not service.is_ready()
    proxy.restore()
    await until(service.is_ready, "ready again")
    await produce(behind, [{"value": offer(f"p{n}"), "partition": n % 4} for n in range(100)])
    await done(behind)
    await until(lambda: not service.waiting_on(), "the outage is over")
    assert set(await classifications(behind)) == (
        {f"o{n}" for n in range(2_000)} | {f"p{n}" for n in range(100)}
    )
    assert await dead_letters(behind) == []
    assert service.stop() == 0


async def test_kafka_that_is_away_at_the_start_is_waited_for(
    behind: Place, proxy: Proxy, serve: Serve
) -> None:
    await produce(behind, [offer("o1")])
    proxy.cut()
    service = serve(behind.overrides())
    await until(service.is_up, "the endpoints answer")
    await until(lambda: "kafka" in service.waiting_on(), "the outage is named")
    assert service.get("/readyz").status_code == 503
    assert service.get("/healthz").status_code == 200
    proxy.restore()
    await until(service.is_ready, "ready")
    await done(behind)
    assert set(await classifications(behind)) == {"o1"}
    assert service.counter("classifier_worker_restarts_total") == 0
    assert service.stop() == 0
