"""Outages: named while they last, one change when each begins and ends, no secrets."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from classifier.outage import Outages


@pytest.fixture
def changes() -> list[list[str]]:
    return []


@pytest.fixture
def outages(changes: list[list[str]]) -> Outages:
    outages = Outages()
    outages.on_change = lambda: changes.append(outages.services)
    return outages


def test_outage_is_named_until_it_ends(outages: Outages, changes: list[list[str]]) -> None:
    assert outages.services == []
    outages.began("mongodb", "no primary")
    outages.began("kafka", "no broker")
    assert "kafka" in outages
    assert outages.services == ["kafka", "mongodb"]
    assert outages.reasons == ["kafka is away: no broker", "mongodb is away: no primary"]
    outages.ended("kafka")
    assert "kafka" not in outages
    assert outages.reasons == ["mongodb is away: no primary"]
    assert changes == [["mongodb"], ["kafka", "mongodb"], ["mongodb"]]


def test_repeating_an_outage_changes_only_its_reason(
    outages: Outages, changes: list[list[str]]
) -> None:
    with capture_logs() as lines:
        for reason in ("refused", "timed out", "no primary"):
            outages.began("mongodb", reason)
        outages.ended("mongodb")
    assert changes == [["mongodb"], []]
    assert [(line["event"], line["service"]) for line in lines] == [
        ("outage began", "mongodb"),
        ("outage ended", "mongodb"),
    ]
    assert lines[0]["reason"] == "refused"


def test_latest_reason_is_told(outages: Outages) -> None:
    outages.began("mongodb", "refused")
    outages.began("mongodb", "timed out")
    assert outages.reasons == ["mongodb is away: timed out"]


def test_end_of_what_never_began_is_no_event(outages: Outages, changes: list[list[str]]) -> None:
    with capture_logs() as lines:
        outages.ended("mongodb")
    assert lines == []
    assert changes == []


def test_outage_may_come_back(outages: Outages, changes: list[list[str]]) -> None:
    for _ in range(2):
        outages.began("kafka", "away")
        outages.ended("kafka")
    assert changes == [["kafka"], [], ["kafka"], []]


def test_reason_is_one_short_line_without_secrets(outages: Outages) -> None:
    outages.began("mongodb", f"mongodb://ann:hunter2@db/x refused {'y' * 2_000}\nTraceback")
    (reason,) = outages.reasons
    assert "hunter2" not in reason
    assert "Traceback" not in reason
    assert len(reason) < 400


def test_service_is_away_while_anybody_who_uses_it_says_so() -> None:
    outages = Outages()
    changes: list[list[str]] = []
    outages.on_change = lambda: changes.append(outages.services)
    outages.began("kafka", "no commit", "committing")
    outages.began("kafka", "no answer")
    outages.ended("kafka")
    assert outages.reasons == ["kafka is away: no commit"]
    outages.ended("kafka", "fetching")
    assert "kafka" in outages
    outages.ended("kafka", "committing")
    assert changes == [["kafka"], []]


def test_user_that_gives_up_leaves_the_outage_to_who_checks() -> None:
    outages = Outages()
    outages.handed_over("mongodb", "writing")
    assert outages.services == []
    outages.began("mongodb", "no primary", "writing")
    outages.handed_over("mongodb", "writing")
    outages.ended("mongodb", "writing")
    assert outages.reasons == ["mongodb is away: no primary"]
    outages.ended("mongodb")
    assert outages.services == []
