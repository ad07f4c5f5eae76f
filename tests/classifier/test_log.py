"""One line an event, JSON unless a person is watching, and never a secret."""

from __future__ import annotations

import base64
import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import structlog
from aiokafka.protocol.admin import SaslAuthenticateRequest_v0
from hypothesis import given
from hypothesis import strategies as st

from classifier import log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    log._hidden.clear()
    log._hidden_base64.clear()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_event_is_one_line_with_its_context(out: io.StringIO) -> None:
    log.configure("info", "json", stream=out, role="worker", slot=3)
    log.get("worker").info("started", took_s=1.5, note="two\nlines")
    (line,) = lines(out)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "started",
        "level": "info",
        "logger": "worker",
        "role": "worker",
        "slot": 3,
        "took_s": 1.5,
        "note": "two\nlines",
    }


def test_a_logger_made_before_the_configuration_follows_it(out: io.StringIO) -> None:
    early = log.get("early")
    log.configure("info", "json", stream=out)
    early.info("now")
    assert lines(out)[0]["logger"] == "early"


def test_configuring_again_replaces(out: io.StringIO) -> None:
    log.configure("info", "json", stream=io.StringIO(), slot=1)
    log.configure("info", "json", stream=out, slot=2)
    log.get("x").info("once")
    (line,) = lines(out)
    assert line["slot"] == 2


def test_json_unless_a_terminal_is_watching() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    log.configure("info", "auto", stream=terminal)
    log.get("x").info("hello there")
    log.configure("info", "auto", stream=pipe)
    log.get("x").info("hello there")
    assert "hello there" in terminal.getvalue()
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(terminal.getvalue())
    assert lines(pipe)[0]["event"] == "hello there"


def test_the_level_holds_and_libraries_speak_from_warnings_on(out: io.StringIO) -> None:
    log.configure("info", "json", stream=out)
    log.get("x").debug("no")
    log.get("x").info("yes")
    logging.getLogger("aiokafka.consumer").info("no")
    logging.getLogger("aiokafka.consumer").warning("retrying %s", "b1")
    logging.getLogger("uvicorn.error").info("no")
    assert [line["event"] for line in lines(out)] == ["yes", "retrying b1"]


@pytest.mark.parametrize(
    ("level", "form", "message"),
    [
        ("loud", "json", "log level 'loud' is unknown, use debug, info, warning or error"),
        ("info", "xml", "log format 'xml' is unknown, use auto, json or console"),
    ],
)
def test_what_is_unknown_is_refused(level: str, form: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        log.configure(level, form)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("mongodb://ann:pw@host/db", "mongodb://ann:***@host/db"),
        ("mongodb+srv://ann:pw@h1,h2/?a=b", "mongodb+srv://ann:***@h1,h2/?a=b"),
        ("at mongodb://ann:p@w:o/rd@host: away", "at mongodb://ann:***@host: away"),
        ("mongodb://:pw@host", "mongodb://:***@host"),
        ("HTTPS://u:p@h and kafka://v:q@i", "HTTPS://u:***@h and kafka://v:***@i"),
        ("mongodb://ann@host/db", "mongodb://ann@host/db"),
        ("mongodb://host:27017/db", "mongodb://host:27017/db"),
        ("?tlsCertificateKeyFilePassword=pw&x=1", "?tlsCertificateKeyFilePassword=***&x=1"),
        ("sasl_password='pw', host='h'", "sasl_password='***', host='h'"),
        ('{"password": "pw", "a": 1}', '{"password": "***", "a": 1}'),
        ("AWS_SESSION_TOKEN:abc", "AWS_SESSION_TOKEN:***"),
        ("access_token=abc", "access_token=***"),
        ("password='two words', host='h'", "password='***', host='h'"),
        (r'{"password": "a\"b", "a": 1}', '{"password": "***", "a": 1}'),
        (r"sasl_auth_bytes=b'\x00ann\x00pw')", "sasl_auth_bytes=b'***')"),
        ("tokens=512, max_tokens: 128", "tokens=512, max_tokens: 128"),
        ("mail ann@host", "mail ann@host"),
        ("", ""),
    ],
)
def test_passwords_are_masked_and_the_rest_stays(text: str, masked: str) -> None:
    assert log.mask_uri(text) == masked
    assert log.mask_uri(masked) == masked


def test_no_way_into_a_line_shows_a_secret(out: io.StringIO) -> None:
    log.configure("debug", "json", ["hunter22", "mongodb://ann:pass99@db"], stream=out)
    logger = log.get("x")
    logger.info("with hunter22", uri="mongodb://ann:pass99@db", deep=[{"a": ("hunter22",)}])
    logger.info("by key", password="other", settings={"sasl_password": "other"})
    logger.info("an object", error=OSError("hunter22"))
    logging.getLogger("pymongo").warning("cannot reach %s", "mongodb://ann:pass99@db")
    try:
        raise RuntimeError("login hunter22 failed")
    except RuntimeError:
        logger.exception("failed")
        logging.getLogger("lib").exception("failed")
    assert len(lines(out)) == 6
    assert "login *** failed" in lines(out)[4]["exception"]
    assert "Traceback" in lines(out)[5]["exception"]
    for secret in ("hunter22", "pass99", "other"):
        assert secret not in out.getvalue()


HIDDEN = ["hunter22", "pässwörd", 'it\'s "mine"', "back\\slash", "p@ss/w+rd%", "\U0001f511key\n"]


@pytest.mark.parametrize("secret", HIDDEN)
def test_no_spelling_of_a_secret_shows(secret: str) -> None:
    log.hide(secret)
    octets = secret.encode()
    spellings = [
        secret,
        repr(secret),
        repr("o'clock " + secret),
        repr("\"both' " + secret),
        ascii(secret),
        repr(octets),
        repr(b"\0ann\0" + octets),
        repr(repr(b"\0ann\0" + octets)),
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        quote(secret),
        quote(secret, safe=""),
        quote(secret, safe="").lower(),
        quote_plus(secret),
        octets.hex(),
    ]
    for spelling in spellings:
        masked = log.mask_uri(f"said <{spelling}> to the broker")
        assert masked.startswith("said <")
        assert masked.endswith("> to the broker")
        assert "***" in masked
        for part in (secret, repr(secret)[1:-1], repr(octets)[2:-1], quote(secret), octets.hex()):
            assert part[:5] not in masked


# A URI without a password is no secret: of a whole one only the password is.
SECRETS = st.text(min_size=4, max_size=40).filter(
    lambda text: not text.startswith(("mongodb://", "mongodb+srv://"))
)


@given(SECRETS, st.binary(max_size=20), st.binary(max_size=20))
def test_base64_of_what_holds_a_secret_shows_no_character_of_it(
    secret: str, before: bytes, after: bytes
) -> None:
    octets = secret.encode()
    log._hidden.clear()
    log._hidden_base64.clear()
    log.hide(secret)
    whole = before + octets + after
    for code in (base64.b64encode(whole), base64.urlsafe_b64encode(whole)):
        masked = log.mask_uri(code.decode())
        left, right = len(before) * 8 // 6, -(-(len(before) + len(octets)) * 8 // 6)
        kept = code.decode()[:left] + code.decode()[right:]
        assert "***" in masked
        assert len(masked.replace("***", "")) <= len(kept.rstrip("=")) + 2


def test_a_secret_that_was_cut_shows_no_beginning(out: io.StringIO) -> None:
    log.configure("info", "json", ["hunter22-long-secret"], stream=out)
    for text in ("b'...hunter22-lo...'", "hunter22-long…", "ends in hunter22-long-secre"):
        log.get("x").info(text)
    assert [line["event"] for line in lines(out)] == ["b'...***...'", "***…", "ends in ***"]


def test_what_only_begins_like_a_secret_stays() -> None:
    log.hide("kafka-secret")
    assert log.mask_uri("kafka is away; kafka-topic too, kaf") == (
        "kafka is away; kafka-topic too, kaf"
    )


def test_the_password_of_a_uri_is_hidden_by_itself() -> None:
    log.hide("mongodb://ann:p%40ssw%C3%B6rd@db:27017/x?a=b@c")
    assert log.mask_uri("login with p@sswörd, p%40ssw%c3%b6rd failed") == (
        "login with ***, *** failed"
    )
    assert log.mask_uri("mongodb") == "mongodb"
    assert log.mask_uri("cannot reach mongodb...") == "cannot reach mongodb..."


@pytest.mark.parametrize("password", ["hunter22", "pässwörd", "it's mine", "x" * 200])
def test_the_kafka_client_shows_no_password_at_debug(out: io.StringIO, password: str) -> None:
    log.configure("debug", "json", [password], stream=out)
    request = SaslAuthenticateRequest_v0(f"\0ann\0{password}".encode())
    logging.getLogger("aiokafka.conn").debug("Request to %s:%d %d: %s", "h", 1, 2, request)
    assert out.getvalue() == ""
    logging.getLogger("aiokafka.conn").info("Authenticated as %s", "ann")
    logging.getLogger("aiokafka.consumer").debug("request: %s", request)
    authenticated, told = lines(out)
    assert authenticated["event"] == "Authenticated as ann"
    assert told["event"] == "request: SaslAuthenticateRequest_v0(sasl_auth_bytes=b'***')" or (
        told["event"] == 'request: SaslAuthenticateRequest_v0(sasl_auth_bytes=b"***")'
    )


def test_a_hidden_uri_still_says_where_it_points(out: io.StringIO) -> None:
    log.configure("info", "json", ["mongodb://ann:pass99@db:27017"], stream=out)
    log.get("x").info("away", uri="mongodb://ann:pass99@db:27017")
    assert lines(out)[0]["uri"] == "mongodb://ann:***@db:27017"


def test_a_secret_too_short_to_look_for_blots_out_nothing(out: io.StringIO) -> None:
    log.configure("info", "json", ["a", ""], stream=out)
    log.get("x").info("a cat")
    assert lines(out)[0]["event"] == "a cat"


def test_what_comes_from_outside_steers_no_terminal() -> None:
    terminal = Terminal()
    log.configure("info", "console", stream=terminal)
    hostile = "\x1b[2J\x07title\r\n2026-01-01 [info] forged"
    log.get("x").info("rejected", title=hostile)
    logging.getLogger("lib").warning(hostile)
    assert "\x1b[2J" not in terminal.getvalue()
    assert "\x07" not in terminal.getvalue()
    assert "\r" not in terminal.getvalue()


def test_a_hostile_value_does_not_fill_the_disk(out: io.StringIO) -> None:
    log.configure("info", "json", stream=out)
    log.get("x").info("rejected", title="x" * 1_000_000)
    assert lines(out)[0]["title"].endswith("... (1000000 characters)")
    assert len(out.getvalue()) < 5_000


@pytest.mark.parametrize(
    "part",
    ["x", "a://b:", "://", "password", "password=", "password ", "secret:'", "@", "a://b:c@"],
)
def test_masking_takes_time_in_proportion_to_the_text(part: str) -> None:
    text = part * (200_000 // len(part))
    began = time.perf_counter()
    log.mask_uri(text)
    assert time.perf_counter() - began < 2


def test_no_part_of_a_secret_shows_at_the_cut(out: io.StringIO) -> None:
    log.configure("info", "json", stream=out)
    log.get("x").info("long", uri="x" * 3_980 + " mongodb://ann:" + "p" * 200 + "@db")
    assert "pp" not in out.getvalue()


def test_values_of_any_kind_make_a_line(out: io.StringIO) -> None:
    log.configure("info", "json", stream=out)
    log.get("x").info("odd", lone="\udc80", raw=b"\xff", kind=int, none=None, flag=True)
    (line,) = lines(out)
    assert (line["none"], line["flag"], line["kind"]) == (None, True, "<class 'int'>")


def test_a_disk_that_is_full_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    log.configure("info", "json", stream=Full())
    log.get("x").info("lost")
    assert capsys.readouterr().err == ""
