"""Members come and go: partitions change hands with nothing lost and nothing doubled in effect."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from tests.integration.harness import (
    SESSION_SECONDS,
    Place,
    Service,
    classifications,
    committed,
    done,
    offer,
    produce,
    until,
    working,
)
from tests.integration.proxy import Proxy

Serve = Callable[[dict[str, object]], Service]


async def test_two_members_share_the_partitions_and_hand_them_over(place: Place) -> None:
    settings = place.settings(fetch_offers=20)
    values = [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(1_200)]
    async with working(settings) as first:
        await until(lambda: first.status().joined, "the first joined")
        await produce(place, values[:400])
        async with working(settings) as second:
            await until(lambda: len(second.status().lag) == 2, "the second has its half")
            await until(lambda: len(first.status().lag) == 2, "the first has the other half")
            assert not set(first.status().lag) & set(second.status().lag)
            await produce(place, values[400:800])
            await until(lambda: second.metrics.writes.value("inserted") > 0, "both work")
        await until(lambda: len(first.status().lag) == 4, "the first has all again")
        await produce(place, values[800:])
        await done(place)
    assert len(await classifications(place)) == 1_200
    written = [
        sum(worker.metrics.writes.value(result) for worker in (first, second))
        for result in ("inserted", "updated", "unchanged")
    ]
    # What was in flight when a partition was given up was finished and committed first.
    assert written == [1_200, 0, 0]


async def test_more_members_than_partitions_do_no_harm(place: Place) -> None:
    settings = place.settings()
    async with (
        working(settings) as a,
        working(settings) as b,
        working(settings) as c,
        working(settings) as d,
        working(settings) as spare,
    ):
        workers = (a, b, c, d, spare)
        await until(lambda: all(worker.status().joined for worker in workers), "all joined")
        await until(lambda: all(worker.status().ready for worker in workers), "all ready")
        await until(lambda: sum(len(w.status().lag) for w in workers) == 4, "four partitions")
        await produce(place, [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(80)])
        await done(place)
    assert len(await classifications(place)) == 80


async def test_sigterm_mid_batch_finishes_what_is_in_flight_and_exits_0(
    place: Place, serve: Serve
) -> None:
    service = serve(place.overrides(fetch_offers=100))
    await until(service.is_ready, "ready")
    await produce(place, [offer(f"o{n}") for n in range(3_000)])
    await until(lambda: service.counter("classifier_offers_total") > 0, "work moves")
    assert await asyncio.to_thread(service.stop) == 0
    stored = await classifications(place)
    offsets = await committed(place)
    # Everything written is committed and the other way round: no batch was cut in two.
    assert 0 < len(stored) < 3_000
    assert sum(offsets.values()) == len(stored)
    again = serve(place.overrides())
    await until(again.is_ready, "ready again")
    await done(place)
    assert len(await classifications(place)) == 3_000


async def test_sigterm_leaves_the_group_so_that_the_others_need_not_wait(
    behind: Place, proxy: Proxy, serve: Serve
) -> None:
    session = 25.0
    async with working(behind.settings()) as stays:
        await until(lambda: len(stays.status().lag) == 4, "the first has all")
        service = serve(behind.overrides(kafka_session_timeout_ms=round(session * 1000)))
        await until(service.is_ready, "ready")
        await until(lambda: len(stays.status().lag) == 2, "they share")
        assert not any(request.leaves for request in proxy.forwarded)
        began = time.monotonic()
        assert service.stop() == 0
        await until(lambda: len(stays.status().lag) == 4, "the first has all again")
        assert time.monotonic() - began < session / 2
        assert [request.leaves for request in proxy.forwarded].count(True) == 1
        await produce(behind, [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(40)])
        await done(behind)


async def test_worker_that_slept_past_its_session_rejoins_and_loses_nothing(
    place: Place, serve: Serve
) -> None:
    """SIGSTOP longer than the session: its late commit is dropped, another has the partitions."""
    service = serve(place.overrides(workers=2, fetch_offers=50, stall_seconds=120))
    await until(service.is_ready, "ready")
    await until(lambda: service.counter('classifier_workers{state="ready"') == 2, "both ready")
    await produce(place, [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(1_000)])
    await until(lambda: service.counter("classifier_offers_total") > 0, "work moves")
    sleeper = service.workers()[0]
    sleeper.send_signal(signal.SIGSTOP)
    await asyncio.sleep(2 * SESSION_SECONDS)
    sleeper.send_signal(signal.SIGCONT)
    await done(place)
    await until(lambda: service.counter('classifier_workers{state="ready"') == 2, "both back")
    assert len(await classifications(place)) == 1_000
    assert service.stop() == 0


async def test_ready_and_alive_mean_what_they_promise(place: Place, serve: Serve) -> None:
    """Promise 7, seen from outside."""
    service = serve(place.overrides())
    await until(service.is_ready, "ready")
    report = service.get("/readyz").json()
    (worker,) = report["workers"]
    assert (worker["golden"], worker["joined"], worker["mongodb"]) == (True, True, True)
    assert service.get("/healthz").json() == {"alive": True, "reasons": []}
    answer = service.post("/classify", {"offers": [{"offer_id": "a", "title": "lamp"}]})
    (result,) = answer.json()["results"]
    await produce(place, [offer("a", title="lamp")])
    await done(place)
    (stored,) = (await classifications(place)).values()
    assert result["category_id"] == stored["category_id"]
    assert result["score"] == stored["score"]
    assert result["model"] == stored["model"]
