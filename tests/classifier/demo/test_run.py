from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pymongo
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from rich.console import Console

from classifier.artifact import Artifact
from classifier.demo import DemoError, run
from classifier.demo.account import Sent
from classifier.demo.run import Options, demo
from classifier.produce import Record
from training.tiny import tiny_offers


@pytest.fixture
def models(tmp_path: Path, artifact: Path) -> Path:
    """A folder of models in which the demonstration model is the small artefact."""
    folder = tmp_path / "models"
    shutil.copytree(artifact.parent, folder / "demo")
    return folder


@pytest.fixture
def servers(kafka: str, mongodb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of the tests are those of the environment."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
    monkeypatch.setenv("MONGODB_URI", mongodb)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def topics(kafka: str) -> set[str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        return set(await admin.list_topics())
    finally:
        await admin.close()


@pytest.mark.usefixtures("servers")
async def test_model_that_is_there_is_served(
    artifact: Path, tmp_path: Path, console: Console
) -> None:
    options = Options(model=artifact, models=tmp_path / "none", count=300)
    assert await asyncio.to_thread(demo, options, console) == 0, text(console)
    assert f"model {artifact.name}, of {artifact}" in text(console).replace("\n", "")
    assert not options.models.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(model=Path("nowhere")), "MODEL: nowhere"),
        (Options(model=Path("nowhere"), train=Path("pyproject.toml")), "leave TRAIN or MODEL out"),
    ],
)
def test_model_that_cannot_be_served_is_refused(
    options: Options, said: str, console: Console
) -> None:
    with pytest.raises(DemoError, match=said):
        demo(options, console)


@pytest.mark.usefixtures("servers")
async def test_every_sample_event_is_accounted_for_and_nothing_is_left(
    models: Path, console: Console, kafka: str, mongodb: str
) -> None:
    before = await topics(kafka)
    code = await asyncio.to_thread(demo, Options(models=models, count=1_500), console)
    said = text(console)
    assert code == 0, said
    assert "1,500 records sent, 1,500 accounted for: " in said
    for name in ("classified", "superseded by a newer event", "removed", "dead letters"):
        assert re.search(rf"[1-9][0-9,]* {name}", said), name
    assert "Accuracy against the sample catalogue's own categories" in said
    assert re.search(r"offer age, p99 +[0-9.]+ s", said)
    for path in ("/healthz", "/readyz", "/metrics"):
        assert re.search(rf"http://127\.0\.0\.1:[0-9]+{path} +200", said), path
    assert {name for name in await topics(kafka) - before if "demo" in name} == set()
    with pymongo.MongoClient[dict[str, object]](mongodb) as client:
        assert not [name for name in client.list_database_names() if "demo" in name]


@pytest.mark.usefixtures("servers")
def test_offers_with_labels_report_accuracy_by_language(
    tmp_path: Path, models: Path, console: Console
) -> None:
    offers = tmp_path / "offers.jsonl"
    rows = [
        msgspec.json.encode({**msgspec.structs.asdict(offer), "label": label})
        for offer, label in tiny_offers(seed=5)
    ]
    offers.write_bytes(b"\n".join([*rows, b"broken", b""]))
    assert demo(Options(offers=offers, models=models), console) == 0
    said = text(console)
    assert f"{len(rows) + 1} records sent, {len(rows) + 1} accounted for" in said
    assert f"{len(rows)} classified, 1 dead letters" in said
    assert "Accuracy against the rows' `label`" in said
    accuracies = dict(re.findall(r"^ +(de|en|es|fr|it|all) +\d+ +([0-9.]+)%", said, re.MULTILINE))
    assert accuracies.keys() == {"de", "en", "es", "fr", "it", "all"}
    assert float(accuracies["all"]) > 85


def test_lost_record_is_an_error(
    models: Path, console: Console, monkeypatch: pytest.MonkeyPatch, servers: None
) -> None:
    sent = run._sent
    calls: list[int] = []

    def one_more(options: Options, artifact: Artifact) -> Iterator[Sent]:
        yield from sent(options, artifact)
        calls.append(1)
        if len(calls) == 2:  # the account asks for one that was never sent
            yield Sent(Record(b"lost", b'{"offer_id":"lost","title":"kettle"}'))

    monkeypatch.setattr(run, "_sent", one_more)
    with pytest.raises(DemoError, match=r"1 records are lost, the first: .*lost"):
        demo(Options(models=models, count=50), console)
    assert "51 records sent, 50 accounted for" in text(console)


def test_own_labels_unknown_to_the_model_are_no_truth_unless_trained_for(
    tmp_path: Path, artifact: Path
) -> None:
    offers = tmp_path / "offers.jsonl"
    offers.write_text('{"offer_id":"a","label":"kettles"}\n{"offer_id":"b","label":"else"}\n{}\n')
    model = Artifact.load(artifact)
    truths = [sent.truth for sent in run._sent(Options(offers=offers), model)]
    assert truths == ["kettles", None, None]
    trained = Options(offers=offers, train=tmp_path)
    assert [sent.truth for sent in run._sent(trained, model)] == ["kettles", "else", None]
    assert len(list(run._sent(Options(offers=offers, count=1), model))) == 1


@pytest.mark.usefixtures("servers")
def test_labels_of_another_taxonomy_report_no_accuracy_and_say_why(
    tmp_path: Path, models: Path, console: Console
) -> None:
    offers = tmp_path / "offers.jsonl"
    offers.write_text('{"offer_id":"a","title":"Kettle","label":"else"}\n')
    assert demo(Options(offers=offers, models=models), console) == 0
    said = text(console)
    assert "Accuracy" not in said
    assert "The model knows none of the rows' labels: TRAIN=FILE" in said
    assert "1 records sent, 1 accounted for: 1 classified" in said


@pytest.mark.usefixtures("servers")
def test_file_without_offers_is_one_line(tmp_path: Path, models: Path, console: Console) -> None:
    offers = tmp_path / "offers.jsonl"
    offers.write_text("\n")
    with pytest.raises(DemoError, match=r"OFFERS: .*offers.jsonl has no line"):
        demo(Options(offers=offers, models=models), console)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"offers": "missing.jsonl"}, "OFFERS: there is no file .*missing.jsonl"),
        ({"train": "missing.jsonl"}, "TRAIN: there is no file .*missing.jsonl"),
        ({"offers": "a.jsonl", "train": "a.jsonl"}, "OFFERS and TRAIN are the same"),
        ({"offers": "a.jsonl", "train": "copy.jsonl"}, "OFFERS and TRAIN are the same"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(
    tmp_path: Path, console: Console, options: dict[str, str], said: str
) -> None:
    for name in ("a.jsonl", "copy.jsonl"):
        (tmp_path / name).write_text("{}")
    paths = {name: tmp_path / file for name, file in options.items()}
    with pytest.raises(DemoError, match=said):
        demo(Options(paths.get("offers"), paths.get("train"), models=tmp_path), console)
    assert text(console) == ""


def test_missing_package_is_one_line(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DemoError, match=r"onnxruntime is missing: pip install"):
        demo(Options(models=tmp_path), console)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        pytest.param(
            signal.SIGKILL,
            marks=pytest.mark.skipif(not shutil.which("setpriv"), reason="Linux only"),
        ),
    ],
)
def test_demo_that_is_stopped_leaves_no_process(models: Path, number: signal.Signals) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("KAFKA_BOOTSTRAP_SERVERS", "MONGODB_URI")
    }
    # A shell lets what it starts in the background ignore Ctrl-C, and so all that comes of that.
    heard = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    started = f"{heard}; from classifier.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", started, "demo", "--models", str(models)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        children: list[psutil.Process] = []
        deadline = time.monotonic() + 60
        # The broker, the database, the supervisor and its worker.
        while len(children) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
            children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert len(children) >= 4
    expected = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}
    assert process.returncode == expected[number], out
    assert b"Traceback" not in out
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
