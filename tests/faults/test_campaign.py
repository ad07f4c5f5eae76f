"""The campaign's short form: some faults of different kinds, overlapping, and every demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SERVERS
from tests.faults.campaign import Campaign
from tests.faults.plan import Fault, Plan

PLAN = Plan(
    seed=20,
    machines=2,
    offers=1_500,
    episodes=(
        (
            Fault("kill -9 between write and commit", machine=0),
            Fault("MongoDB fails writes", machine=0, after=1.0, seconds=1.0, choice=189),
            Fault("Kafka refuses connections", machine=1, after=1.5, seconds=1.0, choice="one"),
        ),
    ),
)


@pytest.mark.timeout(480)
async def test_nothing_is_lost_and_nothing_stale_wins(artifact: Path, tmp_path: Path) -> None:
    if SERVERS:
        pytest.skip("the servers in the environment are not killed")
    outcome = await Campaign(PLAN, artifact, tmp_path, print).run()
    assert outcome.verdict.violations == {}
    assert outcome.injected.total() == PLAN.faults
    assert outcome.events >= PLAN.offers
    counts = outcome.verdict.counts
    assert min(counts["classified"], counts["removed"], counts["dead letters"]) > 0
