"""A start that cannot be: one line that says why, and an exit code for the scripts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.harness import Place, Service, until

Serve = Callable[[dict[str, object]], Service]


@pytest.fixture
def nowhere(artifact: Path) -> Place:
    """A place whose servers nobody should ask."""
    return Place("127.0.0.1:1", "mongodb://127.0.0.1:1", "none", "none", artifact)


def only_line(service: Service) -> str:
    (line,) = service.log.splitlines()
    return line


async def test_second_service_on_the_same_port(nowhere: Place, serve: Serve) -> None:
    first = serve(nowhere.overrides())
    await until(first.is_up, "the first answers")
    second = serve(nowhere.overrides(http_port=first.url.port))
    assert second.wait() == 2
    line = only_line(second)
    assert f"port {first.url.port}: Address already in use" in line
    assert "HTTP_PORT" in line
    assert first.is_up()


def test_model_that_is_not_there(nowhere: Place, serve: Serve, tmp_path: Path) -> None:
    service = serve(nowhere.overrides(model=tmp_path / "no-model"))
    assert service.wait() == 3
    assert str(tmp_path / "no-model") in only_line(service)


def test_model_with_one_byte_changed(nowhere: Place, serve: Serve, tmp_path: Path) -> None:
    copy = tmp_path / nowhere.model.name
    shutil.copytree(nowhere.model, copy)
    file = copy / "model.onnx"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(content)
    service = serve(nowhere.overrides(model=copy))
    assert service.wait() == 3
    assert "model.onnx" in only_line(service)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mongodb_uri": "mongodb://h:99999"}, "mongodb_uri"),
        ({"mongodb_uri": "postgres://h"}, "mongodb_uri"),
        (
            {"kafka_security_protocol": "SSL", "kafka_ssl_cafile": "/none.pem"},
            "kafka_ssl_cafile",
        ),
        ({"kafka_bootstrap_servers": "h"}, "kafka_bootstrap_servers"),
        ({"workers": "many"}, "workers"),
        ({"kafka_topic": "t", "kafka_dead_letter_topic": "t"}, "kafka_dead_letter_topic"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_setting_that_is_wrong(
    nowhere: Place, serve: Serve, wrong: dict[str, object], named: str
) -> None:
    service = serve(nowhere.overrides(**wrong))
    assert service.wait() == 2
    assert named in only_line(service)
