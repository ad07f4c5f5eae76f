"""Workers that end come back later each time, and not together."""

from __future__ import annotations

import pytest

from classifier.backoff import Backoff


def test_restarts_back_off_up_to_the_bound_and_start_over_after_a_steady_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    backoff = Backoff(first=1, most=30, steady=60)
    assert [backoff.after(0.5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [backoff.after(lived) for lived in (60, 59, 1)] == [1, 2, 4]


def test_workers_that_died_together_do_not_come_back_together() -> None:
    waits = [Backoff(first=1, most=30, steady=60).after(0) for _ in range(100)]
    assert 1 <= min(waits) < max(waits) <= 1.25
