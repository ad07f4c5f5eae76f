"""Patience: tries go on while the world is at fault, and end when nobody waits for them."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from classifier import patience
from classifier.patience import AbandonedError, patiently


async def test_tries_go_on_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 0.01)
    failures = [OSError(), OSError(), OSError()]
    retries = 0

    def count() -> None:
        nonlocal retries
        retries += 1

    async for attempt in patiently((OSError,), lambda: True, count):
        with attempt:
            if failures:
                raise failures.pop()
    assert retries == 3


async def test_other_errors_are_not_tried_again() -> None:
    tries = 0

    async def work() -> None:
        nonlocal tries
        async for attempt in patiently((OSError,), lambda: True, lambda: None):
            with attempt:
                tries += 1
                raise AbandonedError

    with pytest.raises(AbandonedError):
        await work()
    assert tries == 1


async def test_long_pause_ends_soon_after_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE", 1_000.0)
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 1_000.0)
    loop = asyncio.get_running_loop()
    started = loop.time()

    def wanted() -> bool:
        return loop.time() < started + 0.3

    async def work() -> None:
        async for attempt in patiently((OSError,), wanted, lambda: None):
            with attempt:
                if not wanted():
                    raise AbandonedError
                raise OSError

    with pytest.raises(AbandonedError):
        await asyncio.wait_for(work(), 5)


async def test_what_was_wanted_is_let_go_of_at_the_end() -> None:
    class Batch:
        def wanted(self) -> bool:
            return True

    async def work() -> weakref.ref[Batch]:
        batch = Batch()
        async for attempt in patiently((OSError,), batch.wanted, lambda: None):
            with attempt:
                pass
        return weakref.ref(batch)

    gc.disable()
    try:
        assert (await work())() is None
    finally:
        gc.enable()
