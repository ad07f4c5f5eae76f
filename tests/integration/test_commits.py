"""Commits that Kafka does not take: what was not committed is read again, and no more than that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest
from aiokafka.errors import (
    GroupLoadInProgressError,
    IllegalGenerationError,
    UnknownMemberIdError,
)
from pymongo import UpdateOne
from structlog.testing import capture_logs

from classifier.store import Store, Written
from tests.integration.harness import (
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
from tests.integration.proxy import Proxy, Request

WORKER = "offer-classifier"
"""What the workers' consumers call themselves, and nobody else here does."""


async def test_commit_under_a_lost_membership_is_dropped_and_the_member_comes_back(
    behind: Place, proxy: Proxy
) -> None:
    """The coordinator forgets the member once, and once its generation; the worker never ends."""
    codes = [UnknownMemberIdError.errno, IllegalGenerationError.errno]
    forgotten: dict[tuple[str, int], int] = {}

    def answer(request: Request) -> bytes | None:
        commit = request.commit
        if not (commit and commit.is_progress and commit.member and request.client == WORKER):
            return None
        membership = (commit.member, commit.generation)
        if codes and membership not in forgotten:
            forgotten[membership] = codes.pop(0)
        # A membership that is forgotten stays so, until the member joins again.
        code = forgotten.get(membership)
        return None if code is None else request.refuse_commit(code)

    proxy.answer = answer
    await produce(behind, [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(200)])
    settings = behind.settings(fetch_offers=20)
    with capture_logs() as logs:
        async with working(settings) as worker:
            await done(behind)
            await until(lambda: worker.metrics.rebalances.value == 3, "back for the second time")
            await until(lambda: worker.status().ready, "ready again")
            written = [
                worker.metrics.writes.value(result)
                for result in ("inserted", "updated", "unchanged")
            ]
    assert codes == []
    assert [entry["event"] for entry in logs].count("commit dropped") >= 2
    # What was written and not committed was read again, and changed nothing; counted once.
    assert sum(written) == 200
    assert written[1] == 0
    assert written[2] >= 20
    assert len(await classifications(behind)) == 200
    assert await dead_letters(behind) == []


async def test_commit_that_waits_for_the_coordinator_never_outlives_its_assignment(
    behind: Place, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions may be another's by the time that the coordinator is back."""
    refused: list[Request] = []
    free = asyncio.Event()
    free.set()
    honest = Store.write

    def answer(request: Request) -> bytes | None:
        commit = request.commit
        if commit and commit.is_progress and request.client == WORKER:
            refused.append(request)
            return request.refuse_commit(GroupLoadInProgressError.errno)
        return None

    async def write(
        store: Store, updates: Sequence[UpdateOne], wanted: Callable[[], bool]
    ) -> Written:
        while wanted() and not free.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(free.wait(), 0.05)
        return await honest(store, updates, wanted)

    monkeypatch.setattr(Store, "write", write)
    proxy.answer = answer
    settings = behind.settings(fetch_offers=20, batches_in_flight=2, revoke_seconds=1)
    async with working(settings) as first:
        await until(lambda: first.status().joined, "joined")
        await produce(behind, [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(400)])
        await until(lambda: "kafka" in first.status().waiting_on, "the outage is named")
        assert not first.status().ready
        # From here on no batch is written, so that a commit can only be of an earlier one.
        free.clear()
        async with working(settings) as second:
            await until(lambda: second.status().joined, "the second joined")
            await until(lambda: first.metrics.rebalances.value == 2, "the first has the rest")
            assert refused
            proxy.answer = lambda _: None
            await asyncio.sleep(2)
            assert not any(commit.is_progress for commit in proxy.commits)
            assert sum((await committed(behind)).values()) == 0
            free.set()
            await done(behind)
            await until(lambda: first.status().ready and second.status().ready, "both ready")
            unchanged = sum(w.metrics.writes.value("unchanged") for w in (first, second))
    # The batch that was written before is one of those read again.
    assert unchanged == 20
    assert len(await classifications(behind)) == 400
    assert await dead_letters(behind) == []
