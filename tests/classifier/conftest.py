"""A service over stand-in workers, for every test that asks for one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from classifier.artifact import Artifact, Description, publish
from classifier.settings import Settings
from classifier.supervisor import Supervisor, Timing
from classifier.text import TextRecipe
from tests.classifier.standin_service import QUICK, Running, argv

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unrun_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artefact that is whole; nobody here runs it."""
    parent = tmp_path_factory.mktemp("models")
    staging = parent / "staging"
    staging.mkdir()
    labels = [
        {"id": "kettles", "names": {"en": "Kettles", "fr": "Bouilloires"}, "parents": ["kitchen"]},
        {"id": "sofas", "names": {}, "parents": []},
    ]
    golden = {"text": "steel kettle", "category_id": "kettles", "logits": {"kettles": 2}}
    (staging / "labels.json").write_text(json.dumps(labels))
    (staging / "golden.jsonl").write_text(json.dumps(golden) + "\n")
    for name in ("tokenizer.json", "report.json", "model.onnx"):
        (staging / name).write_text("{}")
    description = Description(
        created_at="2026-03-01T10:00:00+00:00",
        kind="encoder",
        target="onnx-cpu",
        precision="fp32",
        checkpoint="0123456789abcdef",
        data={"name": "two", "rows": 2},
        taxonomy="t1",
        text=TextRecipe(),
        max_tokens=32,
        versions={"torch": "2.13.0"},
        temperature=1.0,
        threshold=0.5,
    )
    return publish(staging, description, parent)


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stand-in workers leave a file each: SLOT.PID, with how they ended."""
    directory = tmp_path / "marks"
    directory.mkdir()
    monkeypatch.setenv("STANDIN_MARKS", str(directory))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return directory


@pytest.fixture
def serve(unrun_model: Path, marks: Path, tmp_path: Path) -> Any:
    """Start a supervisor over stand-in workers; stopped with the context."""

    @asynccontextmanager
    async def running(
        mode: str = "ok", timing: Timing = QUICK, **settings: Any
    ) -> AsyncIterator[Running]:
        directory = tmp_path / "run"
        directory.mkdir(mode=0o700)
        given: dict[str, Any] = {
            "mongodb_uri": SecretStr("mongodb://ann:s3cr3t@db"),
            "http_port": 0,
            "drain_seconds": 2,
            "model": unrun_model,
        }
        supervisor = Supervisor(
            Settings(**(given | settings)),
            Artifact.load(unrun_model),
            directory,
            argv(mode),
            timing,
        )
        served = asyncio.create_task(supervisor.serve())
        listening = asyncio.create_task(supervisor.listening.wait())
        await asyncio.wait({served, listening}, return_when=asyncio.FIRST_COMPLETED)
        async with httpx.AsyncClient(base_url=supervisor.url, timeout=20) as client:
            yield Running(supervisor, client, directory)
        supervisor.stop()
        await asyncio.wait_for(served, 20)

    return running
