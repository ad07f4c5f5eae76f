"""Outages: waited for, named, and never taken for bad data."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from classifier.engine_thread import EngineThread
from classifier.model import DeviceError, Model, Question
from tests.integration.harness import (
    Database,
    Place,
    classifications,
    committed,
    dead_letters,
    done,
    offer,
    produce,
    until,
    working,
)


async def test_database_that_is_away_for_a_while_costs_nothing(
    place: Place, own_database: Database
) -> None:
    """Promise 3: killed in the middle and started again with its data."""
    place = replace(place, mongodb=own_database.uri)
    settings = place.settings(fetch_offers=50, mongodb_timeout_ms=500)
    async with working(settings) as worker:
        await until(lambda: worker.status().joined, "joined")
        await produce(place, [offer(f"o{n}") for n in range(400)])
        await until(lambda: worker.metrics.writes.value("inserted") > 0, "work moves")
        await asyncio.to_thread(own_database.kill)
        await produce(place, [offer(f"o{n}") for n in range(400, 600)])
        await until(lambda: "mongodb" in worker.status().waiting_on, "the outage is named")
        status = worker.status()
        assert not status.mongodb
        assert any("mongodb is away" in reason for reason in status.reasons)
        await asyncio.to_thread(own_database.start)
        await done(place)
        await until(lambda: not worker.status().waiting_on, "the outage is over")
        assert worker.status().mongodb
    assert set(await classifications(place)) == {f"o{n}" for n in range(600)}
    assert await dead_letters(place) == []


async def test_database_that_is_away_at_the_start_is_waited_for(
    place: Place, own_database: Database
) -> None:
    own_database.kill()
    place = replace(place, mongodb=own_database.uri)
    await produce(place, [offer("o1")])
    async with working(place.settings(mongodb_timeout_ms=300)) as worker:
        await until(lambda: "mongodb" in worker.status().waiting_on, "the outage is named")
        assert not worker.status().joined
        await asyncio.to_thread(own_database.start)
        await done(place)
    assert set(await classifications(place)) == {"o1"}


async def test_rebalance_during_an_outage_keeps_the_pause_and_the_lag_grows(
    place: Place, own_database: Database
) -> None:
    """The group is kept, no more is taken, and what is committed is what is written."""
    place = replace(place, mongodb=own_database.uri)
    settings = place.settings(
        fetch_offers=10,
        batches_in_flight=2,
        mongodb_timeout_ms=500,
        revoke_seconds=1,
        drain_seconds=1,
    )
    async with working(settings) as first, working(settings) as second:
        async with working(settings) as leaver:
            workers = (first, second, leaver)
            await until(
                lambda: sum(len(w.status().lag) for w in workers) == 4, "all have their own"
            )
            await until(lambda: all(worker.status().ready for worker in workers), "all ready")
            before = first.metrics.rebalances.value
            await asyncio.to_thread(own_database.kill)
            await produce(
                place, [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(400)]
            )
            await until(lambda: all(w.status().in_flight for w in workers), "all are at work")
            await until(
                lambda: all(w.status().waiting_on == ["mongodb"] for w in workers), "all name it"
            )
        stayed = (first, second)
        await until(lambda: [len(w.status().lag) for w in stayed] == [2, 2], "two share it all")
        assert first.metrics.rebalances.value == before + 1
        # Long enough for both to be full and paused, polling on.
        await until(lambda: sum(_lags(first)) + sum(_lags(second)) == 400, "lag is seen")
        # One by one: the embedded broker tells where the last batch begins, not where it ends.
        for n in range(20):
            await produce(place, [{"value": offer(f"p{n}"), "partition": n % 4}])
        await until(lambda: sum(_lags(first)) + sum(_lags(second)) == 420, "the lag grows")
        for worker in stayed:
            status = worker.status()
            assert 10 < status.in_flight <= 20
            assert status.waiting_on == ["mongodb"]
            assert status.joined
            assert not status.ready
        assert sum((await committed(place)).values()) == 0
        await asyncio.to_thread(own_database.start)
        await done(place)
        await until(lambda: all(worker.status().ready for worker in stayed), "both ready again")
    assert len(await classifications(place)) == 420
    assert await dead_letters(place) == []


def _lags(worker: object) -> list[int]:
    lag: dict[str, int] = worker.status().lag  # type: ignore[attr-defined]
    return list(lag.values())


async def test_device_that_fails_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 3 for the engine: no offer is set aside because the device had a fault."""
    broken_until = time.monotonic() + 4
    honest = Model.compute

    def compute(model: Model, question: Question, call: object) -> None:
        if time.monotonic() < broken_until:
            raise DeviceError("the device was reset")
        honest(model, question, call)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "compute", compute)
    async with working(place.settings()) as worker:
        await produce(place, [offer(f"o{n}") for n in range(50)])
        await done(place)
        assert worker.status().golden
    assert len(await classifications(place)) == 50
    assert await dead_letters(place) == []


async def test_slow_engine_holds_the_group_and_processes_nothing_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that outlives the longest poll interval does not cost the membership."""
    honest = EngineThread._turn
    calls = 0

    def turn(thread: EngineThread, job: object) -> None:
        nonlocal calls
        calls += 1
        if calls in {3, 6}:
            time.sleep(5)
        honest(thread, job)  # type: ignore[arg-type]

    monkeypatch.setattr(EngineThread, "_turn", turn)
    settings = place.settings(
        kafka_max_poll_interval_ms=3_000, fetch_offers=20, batches_in_flight=1
    )
    async with working(settings) as worker:
        await until(lambda: worker.status().joined, "joined")
        await produce(place, [offer(f"o{n}") for n in range(200)])
        await done(place)
        assert worker.metrics.rebalances.value == 1
        assert worker.metrics.writes.value("inserted") == 200
        assert worker.metrics.writes.value("updated") == 0
        assert worker.metrics.writes.value("unchanged") == 0
