"""Settings: where they come from, which wins, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from classifier.settings import Settings, SettingsError, load_settings


def test_command_line_wins_over_environment_wins_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("workers: 2\nkafka_group: from-file\nkafka_topic: from-file\n")
    monkeypatch.setenv("KAFKA_GROUP", "from-environment")
    monkeypatch.setenv("KAFKA_TOPIC", "from-environment")
    settings = load_settings(config, {"kafka_topic": "from-command-line"})
    assert settings.workers == 2
    assert settings.kafka_group == "from-environment"
    assert settings.kafka_topic == "from-command-line"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("workers: many\n", "workers"),
        ("workers: 0\n", "workers"),
        ("wrokers: 2\n", "unknown setting wrokers"),
        ("kafka_bootstrap_servers: localhost\n", "'localhost' is not host:port"),
        ("mongodb_uri: http://x\n", "mongodb_uri"),
        ("mongodb_uri: mongodb://h:99999\n", "mongodb_uri"),
        ("mongodb_uri: mongodb://u:p/w@h\n", "mongodb_uri"),
        ("mongodb_uri: mongodb://h/?tls=true&tlsCAFile=/none.pem\n", "mongodb_uri"),
        ("kafka_ssl_cafile: /none.pem\n", "kafka_ssl_cafile"),
        ("interactive_share: 1\n", "interactive_share"),
        ("kafka_dead_letter_topic: offers\n", "same topic"),
        ("kafka_security_protocol: SASL_SSL\n", "kafka_sasl_username"),
        ("revoke_seconds: 60\n", "revoke_seconds"),
        ("- a\n- b\n", "key: value"),
        ("a: [\n", "not YAML"),
    ],
)
def test_wrong_setting_is_one_line_that_names_it(tmp_path: Path, content: str, named: str) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load_settings(config)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        load_settings(tmp_path / "absent.yaml")


def test_secrets_never_show_in_errors_or_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(None, {"mongodb_uri": "mongodb://user:hunter2@db/"})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in settings.model_dump_json()
    monkeypatch.setenv("MONGODB_URI", "http://user:hunter2@db/")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


def test_broken_certificate_is_one_line(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("no certificate")
    with pytest.raises(SettingsError, match="do not go together"):
        load_settings(None, {"kafka_security_protocol": "SSL", "kafka_ssl_cafile": authority})


def test_secrets_are_all_of_them_in_clear() -> None:
    settings = load_settings(
        None,
        {
            "mongodb_uri": "mongodb://user:hunter2@db/",
            "kafka_sasl_password": "päss",
            "kafka_ssl_password": "key",
        },
    )
    assert sorted(settings.secrets()) == ["key", "mongodb://user:hunter2@db/", "päss"]
    assert Settings().secrets() == ["mongodb://127.0.0.1:27017"]


def test_worker_gets_the_very_settings_the_supervisor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    settings = load_settings(
        None, {"mongodb_uri": "mongodb://user:hunter2@db/", "kafka_ssl_cafile": authority}
    )
    monkeypatch.setenv("KAFKA_GROUP", "changed-meanwhile")
    handed = Settings.from_worker_json(settings.worker_json())
    assert handed == settings
    assert handed.mongodb_uri.get_secret_value() == "mongodb://user:hunter2@db/"
