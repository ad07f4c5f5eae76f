"""A finished stage is a run in MLflow, and MLflow's troubles are not the stage's."""

from __future__ import annotations

from pathlib import Path

import pytest

from training import tracking
from training.stage import Record

pytest.importorskip("mlflow")

RECORD = Record(
    stage="evaluate",
    fingerprint="f" * 64,
    parameters={"seed": 3, "costs": [1.0]},
    inputs={"test": "a" * 64},
    files={"m/report.json": "b" * 64, "m/model.safetensors": "c" * 64},
    summary={"accuracy": 0.5, "languages": {"de": 0.25}, "model": "m"},
    seconds=2.0,
)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_stage_is_a_run_with_its_parameters_figures_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    (tmp_path / "m").mkdir()
    for name in RECORD.files:
        (tmp_path / name).write_text("{}")
    said: list[str] = []
    assert tracking.log(RECORD, tmp_path, said.append), said
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/runs.db")
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "evaluate"
    assert run.data.params == {"seed": "3", "costs": "[1.0]", "test": "a" * 64}
    assert run.data.metrics == {"seconds": 2.0, "accuracy": 0.5, "languages.de": 0.25}
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["report.json"]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_tracker_that_is_away_is_said_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    said: list[str] = []
    assert not tracking.log(RECORD, tmp_path, said.append)
    assert len(said) == 1
    assert said[0].startswith("MLflow does not take this run: ")


def test_nothing_is_logged_where_there_is_no_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said: list[str] = []
    assert not tracking.log(RECORD, tmp_path, said.append)
    assert said == []
