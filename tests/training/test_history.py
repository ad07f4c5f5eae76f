"""The history of models: one line for each, whatever is run again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.training.answered import predictions, row
from training import history
from training.judgement import judge
from training.parameters import EvaluateParameters
from training.stage import StageError

FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)


def entry(tmp_path: Path, model: str, *answers: str, at: datetime = FIRST) -> history.Entry:
    rows = [row(i, "a", each, model=model) for i, each in enumerate(answers)]
    parameters = EvaluateParameters(resamples=2)
    return history.entry(judge(predictions(tmp_path, rows), {}, None, None, parameters), at)


def test_entry_keeps_what_became_of_each_category(tmp_path: Path) -> None:
    kept = entry(tmp_path, "m1", "a", "b", at=FIRST.astimezone(timezone(timedelta(hours=5))))
    assert kept.at == "2026-03-01T12:00:00Z"
    assert kept.figures["unweighted"]["accuracy"] == 0.5
    assert kept.categories == {
        "a": history.CategoryPast(offers=2, right=1, f1=2 / 3),
        "b": history.CategoryPast(offers=0, right=0, f1=0.0),
    }


def test_entry_has_production_s_f1s_where_there_are_weights(tmp_path: Path) -> None:
    rows = [row(1, "a", "a", weight=1.8), row(2, "b", "a", weight=0.2)]
    how = EvaluateParameters(resamples=2)
    kept = history.entry(judge(predictions(tmp_path, rows), {}, None, None, how), FIRST)
    assert kept.weighted
    assert kept.categories["a"].f1 == pytest.approx(2 / 3)
    assert kept.categories["a"].production_f1 == pytest.approx(18 / 19)
    assert not entry(tmp_path, "m1", "a").weighted


def test_entry_of_a_file_without_production_s_f1s_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.write(path, [entry(tmp_path, "m1", "a")])
    path.write_bytes(path.read_bytes().replace(b"[1,1,1.0,null]", b"[1,1,1.0]"))
    assert b"[1,1,1.0]" in path.read_bytes()
    assert history.read(path) == [entry(tmp_path, "m1", "a")]


def test_another_run_appends_and_the_same_one_keeps_its_place_and_date(tmp_path: Path) -> None:
    one, two = entry(tmp_path, "m1", "a"), entry(tmp_path, "m2", "a")
    past = history.add(history.add([], one), two)
    again = entry(tmp_path, "m1", "a", at=FIRST + timedelta(days=9))
    assert history.add(past, again) == [one, two]
    other_offers = entry(tmp_path, "m1", "a", "a")
    assert history.add(past, other_offers) == [one, two, other_offers]
    assert history.has(past, "m2", two.test_set)
    assert not history.has(past, "m2", other_offers.test_set)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert history.read(path) == []
    entries = [entry(tmp_path, "m1", "a", "b"), entry(tmp_path, "m2", "b", "b")]
    history.write(path, entries)
    assert history.read(path) == entries
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("content", [b"{}\n", b"no\n", b"\xff\n"])
def test_broken_history_is_refused_with_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    with pytest.raises(StageError, match="no history") as caught:
        history.read(path)
    assert "\n" not in str(caught.value)
