"""A stage is done once for the same inputs, resumes with its parts, and starts anew for others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from training import stage
from training.stage import Stage, StageError


class Given(BaseModel):
    rate: float = 0.5


def finished(out: Path, **inputs: str) -> stage.Record:
    run = Stage("count", out, Given(), inputs)
    run.begin()
    (out / "result.json").write_text("{}")
    return run.finish({"rows": 3}, {"result.json": out / "result.json"})


def test_stage_is_done_for_the_same_inputs_and_parameters_alone(tmp_path: Path) -> None:
    assert Stage("count", tmp_path, Given(), {"a": "1"}).done() is None
    record = finished(tmp_path, a="1", b="2")
    assert record.summary == {"rows": 3}
    assert Stage("count", tmp_path, Given(), {"b": "2", "a": "1"}).done() == record
    assert Stage("count", tmp_path, Given(rate=0.6), {"a": "1", "b": "2"}).done() is None
    assert Stage("count", tmp_path, Given(), {"a": "1", "b": "3"}).done() is None
    assert Stage("count", tmp_path, Given(), {"a": "1", "b": "2"}, version=2).done() is None


@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_stage_whose_result_is_not_as_it_was_is_not_done(tmp_path: Path, harm: str) -> None:
    finished(tmp_path, a="1")
    if harm == "changed":
        (tmp_path / "result.json").write_text("[]")
    else:
        (tmp_path / "result.json").unlink()
    assert Stage("count", tmp_path, Given(), {"a": "1"}).done() is None


def test_parts_of_a_killed_run_wait_for_the_same_run_and_no_other(tmp_path: Path) -> None:
    parts = Stage("count", tmp_path, Given(), {"a": "1"}).begin()
    (parts / "first").write_text("1")
    again = Stage("count", tmp_path, Given(), {"a": "1"}).begin()
    assert [part.name for part in again.iterdir()] == ["first"]
    other = Stage("count", tmp_path, Given(), {"a": "2"}).begin()
    assert list(other.iterdir()) == []
    assert list(Stage("count", tmp_path, Given(), {"a": "1"}).begin().iterdir()) == []


def test_run_that_begins_again_is_not_done_until_it_finishes(tmp_path: Path) -> None:
    finished(tmp_path, a="1")
    Stage("count", tmp_path, Given(), {"a": "1"}).begin()
    assert Stage("count", tmp_path, Given(), {"a": "1"}).done() is None
    finished(tmp_path, a="1")
    assert not (tmp_path / "parts").exists()


def test_record_says_what_the_results_were_made_of(tmp_path: Path) -> None:
    finished(tmp_path, a="1")
    said = json.loads((tmp_path / "stage.json").read_text())
    assert (said["stage"], said["parameters"], said["inputs"]) == (
        "count",
        {"rate": 0.5},
        {"a": "1"},
    )
    assert said["files"].keys() == {"result.json"}


def test_damaged_record_is_no_record(tmp_path: Path) -> None:
    finished(tmp_path, a="1")
    (tmp_path / "stage.json").write_text('{"stage":')
    assert stage.read_record(tmp_path) is None
    assert Stage("count", tmp_path, Given(), {"a": "1"}).done() is None


def test_input_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="missing: cannot be read: No such file"):
        stage.hash_inputs({"lake": tmp_path / "missing"})


def test_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StageError, match="file/out: cannot be made"):
        Stage("count", tmp_path / "file" / "out", Given(), {})


def test_order_of_a_mapping_is_part_of_what_a_stage_was_made_of(tmp_path: Path) -> None:
    class Recipe(BaseModel):
        fields: dict[str, int]

    one = Stage("text", tmp_path, Recipe(fields={"title": 1, "brand": 2}), {})
    other = Stage("text", tmp_path, Recipe(fields={"brand": 2, "title": 1}), {})
    assert one.fingerprint != other.fingerprint


def test_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(StageError, match="holds files that are not the stage count's"):
        Stage("count", tmp_path, Given(), {})
    finished(tmp_path / "out", a="1")
    with pytest.raises(StageError, match="is the stage count's; choose another"):
        Stage("other", tmp_path / "out", Given(), {})
    # Also when the mark was lost on the way, as a copy may lose it.
    (tmp_path / "out" / stage.MARK).unlink()
    with pytest.raises(StageError, match="holds files that are not the stage other's"):
        Stage("other", tmp_path / "out", Given(), {})
    assert Stage("count", tmp_path / "out", Given(), {"a": "1"}).done() is not None


def test_two_runs_never_work_in_one_directory(tmp_path: Path) -> None:
    first = Stage("count", tmp_path, Given(), {"a": "1"})
    part = first.begin() / "half"
    part.write_text("1")
    for inputs in ({"a": "1"}, {"a": "2"}):
        with pytest.raises(StageError, match="another run is at work there"):
            Stage("count", tmp_path, Given(), inputs).begin()
    assert part.exists()
    first.finish({}, {})
    Stage("count", tmp_path, Given(), {"a": "2"}).begin()


def test_what_a_killed_run_was_writing_is_gone(tmp_path: Path) -> None:
    Stage("count", tmp_path, Given(), {}).begin()
    (tmp_path / ".report.json.x1y2.part").write_text("{")
    (tmp_path / ".staging-abc").mkdir()
    (tmp_path / ".staging-abc" / "model.safetensors").write_text("half")
    (tmp_path / "parts" / "note").write_text("")
    Stage("count", tmp_path, Given(), {}).begin()
    assert {path.name for path in tmp_path.iterdir()} == {stage.MARK, "parts"}
