"""The Kafka client's settings and codecs."""

from __future__ import annotations

import pytest
from aiokafka import codec
from pydantic import SecretStr

from classifier.client import CodecError, check_codecs, client_settings
from classifier.settings import Settings


def test_every_codec_is_at_hand() -> None:
    check_codecs()


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_codec_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(codec, f"has_{name}", lambda: False)
    with pytest.raises(CodecError, match=f"no codec for {name}; pip install cramjam"):
        check_codecs()


def test_clients_are_made_as_the_settings_say() -> None:
    plain = client_settings(Settings(kafka_bootstrap_servers="a:9092, b:9092"))
    assert plain == {
        "bootstrap_servers": ["a:9092", "b:9092"],
        "security_protocol": "PLAINTEXT",
        "ssl_context": None,
    }
    secure = client_settings(
        Settings(
            kafka_security_protocol="SASL_SSL",
            kafka_sasl_mechanism="SCRAM-SHA-512",
            kafka_sasl_username="ann",
            kafka_sasl_password=SecretStr("hunter2"),
        )
    )
    assert secure["ssl_context"] is not None
    assert secure["sasl_mechanism"] == "SCRAM-SHA-512"
    assert secure["sasl_plain_username"] == "ann"
    assert secure["sasl_plain_password"] == "hunter2"
