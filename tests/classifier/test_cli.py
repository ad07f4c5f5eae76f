from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from classifier import cli, log, offer
from classifier.artifact import ArtifactError
from classifier.demo import DemoError, servers
from classifier.settings import Settings

ROOT = Path(__file__).parents[2]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said on standard error, which must be one line; nothing on standard output."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("classifier: ")
    return captured.err.removeprefix("classifier: ").strip()


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("serve", "classify", "produce", "demo", "schema"))


def test_nothing_asked_is_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["classifier"])
    assert cli.main() == 0
    assert "Usage: classifier" in capsys.readouterr().out


def test_serve_help_documents_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help"]) == 0
    said = capsys.readouterr().out
    flat = " ".join(said.split())
    for name, field in Settings.model_fields.items():
        assert f"\n    {name.upper()}  (" in said, name
        assert field.description
        assert " ".join(field.description.split()) in flat, name
    assert "KAFKA_TOPIC (text; default: offers) topic the offers come from" in flat
    assert "KAFKA_FRAMING (refuse | strip; default: refuse)" in flat
    assert "MODEL (path; default: models/demo)" in flat
    assert "MONGODB_URI (secret; default: mongodb://127.0.0.1:27017)" in flat
    assert max(map(len, said.splitlines())) <= 110


def test_help_shows_no_secret_of_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGODB_URI", "mongodb://ann:hunter2@db")
    cli.main(["serve", "--help"])
    assert "hunter2" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sing"], "No such command 'sing'"),
        (["serve", "--loudly"], "No such option: --loudly"),
        (["serve", "--workers", "many"], "'--workers'"),
        (["serve", "--workers", "0"], "setting workers: "),
        (["serve", "--http-port", "99999"], "setting http_port: "),
        (["serve", "--log-level", "loud"], "setting log_level: "),
        (["serve", "--config", "/no/such.yaml"], "cannot read the settings file /no/such.yaml"),
        (["classify"], "Missing argument"),
        (["produce"], "produce takes either a FILE or --sample N"),
        (["produce", "a.jsonl", "--sample", "5"], "produce takes either a FILE or --sample N"),
        (["produce", "a.jsonl", "--compression", "lzma"], "--compression lzma"),
        (["demo", "--count", "0"], "'--count'"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(arguments) == 2
    assert said in one_line(capsys)


def test_wrong_setting_of_the_environment_is_one_line_without_its_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGODB_URI", "postgres://ann:hunter2@db")
    assert cli.main(["serve"]) == 2
    line = one_line(capsys)
    assert "mongodb_uri" in line
    assert "hunter2" not in line


def test_serve_runs_the_supervisor_with_the_options_above_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "classifier.yaml"
    config.write_text("kafka_topic: from-file\nworkers: 2\nhttp_port: 1\n")
    monkeypatch.setenv("WORKERS", "3")
    monkeypatch.setenv("HTTP_PORT", "2")
    got: list[Settings] = []

    def run(settings: Settings) -> int:
        got.append(settings)
        return 7

    fake = types.ModuleType("classifier.supervisor")
    fake.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "classifier.supervisor", fake)
    monkeypatch.setattr("classifier.supervisor", fake, raising=False)
    assert cli.main(["serve", "--config", str(config), "--workers", "4"]) == 7
    (settings,) = got
    assert (settings.kafka_topic, settings.workers, settings.http_port) == ("from-file", 4, 2)


def test_schema_is_the_offers_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == offer.schema()


def test_schema_file_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["schema"])
    assert (ROOT / "classifier/offer.schema.json").read_text() == capsys.readouterr().out


def test_classify_without_a_model_is_one_line_and_exit_code_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["classify", "a.jsonl", "--model", str(tmp_path)]) == 3
    assert str(tmp_path) in one_line(capsys)


def test_classify_without_a_file_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], artifact: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.jsonl"
    assert cli.main(["classify", str(missing), "--model", str(artifact)]) == 1
    assert one_line(capsys) == f"cannot read {missing}: no such file"


def test_classify_gives_every_row_the_answer_of_the_model(
    capsys: pytest.CaptureFixture[str], artifact: Path, tmp_path: Path
) -> None:
    source, target = tmp_path / "offers.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"offer_id":"a","title":"Kettle 1.7 l"}\nbroken\n')
    assert cli.main(["classify", str(source), "-o", str(target), "--model", str(artifact)]) == 0
    first, second = map(json.loads, target.read_text().splitlines())
    assert first["model"] == artifact.name
    assert 0 < first["score"] <= 1
    assert second["error"]["reason"] == "malformed JSON"
    assert "2 rows" in capsys.readouterr().err


def test_classify_takes_the_threads_of_the_quota_for_engine_and_tokeniser(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, str | None]] = []

    def load(*_: object, threads: int, **__: object) -> None:
        seen.append((threads, os.environ.get("RAYON_NUM_THREADS")))
        raise ArtifactError("enough")

    monkeypatch.setattr("classifier.artifact.resolve", lambda path: path)
    monkeypatch.setattr("classifier.model.Model.load", load)
    monkeypatch.setattr("classifier.cpu.quota", lambda: 3)
    for setting in (None, "2"):
        # Set, so that what the command sets is gone after the test, and then deleted.
        monkeypatch.setenv("RAYON_NUM_THREADS", "")
        monkeypatch.delenv("RAYON_NUM_THREADS")
        if setting:
            monkeypatch.setenv("ENGINE_THREADS", setting)
        assert cli.main(["classify", "a.jsonl"]) == 3
        one_line(capsys)
    assert seen == [(3, "3"), (2, "2")]


def test_produce_sends_the_file(
    capsys: pytest.CaptureFixture[str], kafka: str, topic: str, tmp_path: Path
) -> None:
    source = tmp_path / "offers.jsonl"
    source.write_text('{"offer_id":"a"}\nbroken\n')
    options = ["--topic", topic, "--bootstrap-servers", kafka]
    assert cli.main(["produce", str(source), *options]) == 0
    said = capsys.readouterr().err
    assert f"{topic}: 2 records sent" in said
    assert "1 of them without a readable offer_id" in said


def test_produce_sends_sample_events(
    capsys: pytest.CaptureFixture[str], kafka: str, topic: str
) -> None:
    options = ["--topic", topic, "--bootstrap-servers", kafka]
    assert cli.main(["produce", "--sample", "50", *options]) == 0
    assert f"{topic}: 50 records sent" in capsys.readouterr().err


def test_produce_says_when_a_record_was_too_large(
    capsys: pytest.CaptureFixture[str], kafka: str, topic: str, tmp_path: Path
) -> None:
    source = tmp_path / "offers.jsonl"
    source.write_text('{"offer_id":"a"}\n' + "x" * 2_000_000 + "\n")
    options = ["--topic", topic, "--bootstrap-servers", kafka]
    assert cli.main(["produce", str(source), *options]) == 1
    assert "1 too large, not sent" in capsys.readouterr().err


def test_produce_without_a_broker_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = tmp_path / "offers.jsonl"
    source.write_text('{"offer_id":"a"}\n')
    server = f"127.0.0.1:{servers.free_port()}"
    assert cli.main(["produce", str(source), "--bootstrap-servers", server]) == 1
    assert f"no Kafka broker answers at {server}" in one_line(capsys)


def test_demo_that_cannot_go_on_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def demo(options: object) -> int:
        raise DemoError("something is\nmissing")

    monkeypatch.setattr("classifier.demo.run.demo", demo)
    assert cli.main(["demo"]) == 1
    assert one_line(capsys) == "something is missing"


def test_no_line_shows_a_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ArtifactError("logged in with hunter2-sasl at mongodb://ann:hunter2@db")

    monkeypatch.setenv("KAFKA_SASL_PASSWORD", "hunter2-sasl")
    monkeypatch.setattr("classifier.model.Model.load", fail)
    monkeypatch.setattr(log, "_hidden", {})
    monkeypatch.setattr(log, "_hidden_base64", {})
    assert cli.main(["classify", str(tmp_path / "offers.jsonl")]) == 3
    assert one_line(capsys) == "logged in with *** at mongodb://ann:***@db"


def test_interrupt_is_one_line_and_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def demo(options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("classifier.demo.run.demo", demo)
    assert cli.main(["demo"]) == 130
    assert one_line(capsys) == "interrupted"


def python_m(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "classifier", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def test_python_m_is_the_same_command() -> None:
    done = python_m("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "classifier")
    failed = python_m("serve", "--workers", "0")
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1


def test_commands_start_without_torch() -> None:
    check = "import sys, classifier.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0


def test_closed_pipe_is_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "classifier", "serve", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
