"""Sending to a running service: no faster than it works, and no failure unheard."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from classifier.demo import DemoError, stream
from classifier.produce import Record
from classifier.settings import load_settings


def test_no_more_records_are_sent_than_the_window_allows(
    kafka: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "WINDOW", 10)
    records = (Record(b"a", b"%d" % number) for number in range(25))
    settings = load_settings(overrides={"kafka_bootstrap_servers": kafka, "kafka_topic": topic})
    sending = stream._Sending(records, settings)
    counts = []
    for done in (0, 5, 15):
        sending.done(done)
        time.sleep(0.3)
        counts.append(sending.count)
    sending.stop()
    assert counts == [10, 15, 25]
    assert sending.finished


def test_sending_that_fails_is_one_line(kafka: str) -> None:
    def broken() -> Iterator[Record]:
        yield Record(None, b"1")
        raise OSError("the disk is gone")

    settings = load_settings(overrides={"kafka_bootstrap_servers": kafka})
    sending = stream._Sending(broken(), settings)
    sending._thread.join(20)
    with pytest.raises(DemoError, match="the disk is gone"):
        sending.done(0)
