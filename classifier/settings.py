"""Every setting of the service: an environment variable (upper case) and a YAML key (lower case).

Read once at the start. The supervisor hands what it read to its workers, so that no two processes
of one service can disagree.
"""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any, Literal

import pymongo
import yaml
from pydantic import Field, FilePath, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import PydanticBaseSettingsSource as Source


class SettingsError(Exception):
    """A setting is wrong; the message is one line that says which and why."""


class Settings(BaseSettings):
    """What can be set, with units and defaults. Durations are seconds unless the name says ms."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, case_sensitive=False, hide_input_in_errors=True
    )

    kafka_bootstrap_servers: str = Field(
        "127.0.0.1:9092", min_length=1, description="Kafka brokers, host:port, comma-separated"
    )
    kafka_topic: str = Field("offers", min_length=1, description="topic the offers come from")
    kafka_dead_letter_topic: str = Field(
        "offers.dead-letters", min_length=1, description="topic for records that cannot be used"
    )
    kafka_group: str = Field("offer-classifier", min_length=1, description="consumer group")
    kafka_group_instance_id: str | None = Field(
        None, description="static membership: a name that outlives restarts; the slot is appended"
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how to speak to the brokers"
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "PLAIN", description="SASL mechanism, with SASL_PLAINTEXT or SASL_SSL"
    )
    kafka_sasl_username: str | None = Field(None, description="SASL user")
    kafka_sasl_password: SecretStr | None = Field(None, description="SASL password")
    kafka_ssl_cafile: FilePath | None = Field(None, description="PEM file of the brokers' CA")
    kafka_ssl_certfile: FilePath | None = Field(None, description="PEM file of our own certificate")
    kafka_ssl_keyfile: FilePath | None = Field(None, description="PEM file of our own key")
    kafka_ssl_password: SecretStr | None = Field(None, description="password of the key file")
    kafka_session_timeout_ms: int = Field(
        30_000, ge=1_000, description="a member that is silent for so long leaves the group"
    )
    kafka_max_poll_interval_ms: int = Field(
        300_000, ge=1_000, description="longest time between two polls; polls go on under pauses"
    )
    kafka_framing: Literal["refuse", "strip"] = Field(
        "refuse",
        description="records framed by a schema registry (a zero byte and a 4-byte id before the "
        "JSON): dead letters, or stripped of the frame",
    )

    mongodb_uri: SecretStr = Field(
        SecretStr("mongodb://127.0.0.1:27017"), description="MongoDB connection string"
    )
    mongodb_database: str = Field("offers", min_length=1, description="database")
    mongodb_collection: str = Field(
        "classifications", min_length=1, description="collection of the classifications"
    )
    mongodb_timeout_ms: int = Field(
        20_000, ge=100, description="longest wait for one bulk write before it is tried again"
    )
    marker_ttl_seconds: int = Field(
        30 * 86_400, ge=60, description="how long the marker of a removed offer is kept"
    )

    model: Path = Field(Path("models/demo"), description="folder of the artefact to serve")
    promotion: int = Field(
        0, ge=0, description="promotion number of the model: at an equal event the higher one wins"
    )
    alternatives: int = Field(3, ge=0, le=20, description="next best categories kept per offer")

    workers: int = Field(1, ge=1, le=256, description="worker processes")
    engine_threads: int = Field(
        0, ge=0, le=256, description="threads of one engine; 0: the CPU quota over the workers"
    )
    fetch_offers: int = Field(
        2_000, ge=1, le=100_000, description="most records of one fetched batch"
    )
    fetch_wait_ms: int = Field(
        50, ge=0, le=10_000, description="longest wait for a batch to fill after its first record"
    )
    batches_in_flight: int = Field(
        4, ge=1, le=64, description="fetched batches between Kafka and the commit"
    )
    batch_tokens: int = Field(
        2_048, ge=8, description="token budget of one engine call, padding included"
    )
    cache_offers: int = Field(
        100_000, ge=0, description="predictions kept by text, about 0.6 kB each; 0: none"
    )
    record_bytes: int = Field(
        1_048_576, ge=1_024, description="a record of more bytes is a dead letter"
    )
    dead_letter_bytes: int = Field(
        900_000, ge=1_024, description="a dead letter's value is cut to so many bytes"
    )
    drain_seconds: float = Field(
        20, ge=0, description="on SIGTERM: longest time to finish what is in flight"
    )
    revoke_seconds: float = Field(
        10, ge=0, description="on a rebalance: longest time to finish what is in flight"
    )
    stall_seconds: float = Field(
        300, ge=1, description="a worker whose work stood still for so long is restarted"
    )

    http_host: str = Field("127.0.0.1", description="address of the HTTP endpoints")
    http_port: int = Field(8080, ge=0, le=65_535, description="port of them; 0: any free one")
    interactive_queue: int = Field(
        32, ge=1, le=10_000, description="requests to /classify that may wait; more get 429"
    )
    interactive_share: float = Field(
        0.2, gt=0, lt=1, description="share of the engine's calls that /classify may take"
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: JSON unless standard error is a terminal"
    )

    @field_validator("kafka_bootstrap_servers")
    @classmethod
    def _brokers(cls, value: str) -> str:
        for broker in value.split(","):
            host, _, port = broker.strip().rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"{broker.strip()!r} is not host:port")
        return value

    @field_validator("mongodb_uri")
    @classmethod
    def _uri(cls, value: SecretStr) -> SecretStr:
        uri = value.get_secret_value()
        if not uri.startswith(("mongodb://", "mongodb+srv://")):
            raise ValueError("not a mongodb:// or mongodb+srv:// address")
        if uri.startswith("mongodb://"):  # the other kind would ask a name server
            try:
                pymongo.MongoClient(uri, connect=False).close()
            except Exception as error:  # noqa: BLE001 a bad URI raises a dozen kinds
                # The driver's own words may quote a password that was not escaped.
                raise ValueError(
                    f"the driver refuses the connection string ({type(error).__name__}): escape "
                    "user and password by RFC 3986, check hosts, ports, options and files"
                ) from None
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.kafka_topic == self.kafka_dead_letter_topic:
            raise ValueError("kafka_topic and kafka_dead_letter_topic are the same topic")
        if self.kafka_security_protocol.startswith("SASL") and not (
            self.kafka_sasl_username and self.kafka_sasl_password
        ):
            raise ValueError("SASL needs kafka_sasl_username and kafka_sasl_password")
        if self.kafka_security_protocol.endswith("SSL"):
            try:
                self.kafka_ssl_context()
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"the kafka_ssl files do not go together: {error}") from None
        # The broker waits for this member's part of a rebalance only as long as its session.
        if self.revoke_seconds * 1000 >= self.kafka_session_timeout_ms:
            raise ValueError("revoke_seconds must be shorter than kafka_session_timeout_ms")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: Source,
        env_settings: Source,
        dotenv_settings: Source,
        file_secret_settings: Source,
    ) -> tuple[Source, ...]:
        """Only what is given: `load_settings` alone reads the environment and the file."""
        return (init_settings,)

    def secrets(self) -> list[str]:
        """All secrets in clear, for the logs to mask."""
        return [value.get_secret_value() for _, value in self if isinstance(value, SecretStr)]

    def kafka_ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for the brokers, None without TLS. Raises OSError or ssl.SSLError."""
        if not self.kafka_security_protocol.endswith("SSL"):
            return None
        context = ssl.create_default_context(cafile=self.kafka_ssl_cafile)
        if self.kafka_ssl_certfile:
            password = self.kafka_ssl_password
            context.load_cert_chain(
                self.kafka_ssl_certfile,
                self.kafka_ssl_keyfile,
                password.get_secret_value() if password else "",
            )
        return context

    def worker_json(self) -> str:
        """All settings as JSON, secrets in clear: for a pipe to a worker, nowhere else."""
        revealed = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in self
        }
        return json.dumps(revealed, default=str)

    @classmethod
    def from_worker_json(cls, text: str) -> Settings:
        """What `worker_json` wrote; the environment is not read."""
        return cls.model_validate_json(text)


def load_settings(config: Path | None = None, overrides: dict[str, Any] | None = None) -> Settings:
    """Settings from, in falling rank, `overrides`, the environment, the YAML file, the defaults.

    Raises SettingsError with one line that names the setting, never its value.
    """
    from_file = _read_yaml(config) if config else {}

    class Sources(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: Source,
            env_settings: Source,
            dotenv_settings: Source,
            file_secret_settings: Source,
        ) -> tuple[Source, ...]:
            return (init_settings, env_settings, InitSettingsSource(settings_cls, from_file))

    try:
        return Settings(**dict(Sources(**(overrides or {}))))
    except ValidationError as error:
        raise SettingsError(_one_line(error, config)) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise SettingsError(f"the settings file {path} is not YAML{line}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"the settings file {path} must hold `key: value` lines")
    return content


def _one_line(error: ValidationError, config: Path | None) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        where = f" in {config}" if config else ""
        return f"unknown setting {name}{where}; `classifier serve --help` lists them all"
    return f"setting {name}: {message}" if name else f"settings: {message}"
