"""Structured logs: one line an event, JSON unless a person is watching, secrets never."""

from __future__ import annotations

import base64
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TextIO
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["auto", "json", "console"]

MASK = "***"

# Every repetition is bounded, so that no hostile text takes longer than its length explains.
# Up to the last "@" before a blank, since a password may hold one: rather too much than too little.
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{0,20}://[^\s:/@]{0,200}):\S{0,800}@")
_PARAMETER = re.compile(
    # "token" alone is a word of this trade: "tokens=512" is no secret.
    r"((?:password|passwd|passphrase|secret|credential|sasl_auth_bytes"
    r"|(?:access|api|auth|session)_?token)\w{0,40}['\"]?\s{0,4}[=:]\s{0,4})"
    # Up to the end of its quotes, bytes' too, or else of the word.
    r"(?:(b?(['\"]))(?:\\.|(?!\3)[^\\\n])*|[^\s&'\",;]+)",
    re.IGNORECASE,
)
_SECRET_KEY = re.compile(
    r"password|passwd|passphrase|secret|credential|authorization|sasl_auth_bytes", re.IGNORECASE
)
# Escape sequences in a message from outside must not steer a person's terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
# A secret shorter than this is not looked for: it would blot out half of every line.
_SHORTEST_SECRET = 4
# A line is for reading; one hostile record must not fill the disk.
_LONGEST_VALUE = 4_000
_LONGEST_TRACEBACK = 20_000

# Clients that repeat themselves at INFO with every poll or rebalance.
_CHATTY = ("aiokafka", "asyncio", "httpx", "pymongo", "uvicorn", "uvicorn.error")
# At DEBUG it writes every request as it goes to the broker, the one with the password included.
_REVEALING = "aiokafka.conn"

_hidden: dict[str, str] = {}
"""Every spelling of a secret, and what is shown in its place."""
_hidden_base64: dict[str, re.Pattern[str]] = {}
"""What of a secret's base64 does not depend on its neighbours, and that with the edges that do."""


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Give a logger; `log.get("worker").info("started", slot=0)` is one line."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def configure(
    level: str = "info",
    log_format: Format = "auto",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
    **context: object,
) -> None:
    """Send this process's logs, its libraries' included, to standard error; again replaces.

    `log_format` "auto" is JSON unless standard error is a terminal. `secrets` are masked wherever
    they turn up, in tracebacks too; passwords in URIs are masked without being told. `context` goes
    on every line (role="worker", slot=0). Raises ValueError for an unknown level or format.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is unknown, use debug, info, warning or error")
    if log_format not in ("auto", "json", "console"):
        raise ValueError(f"log format {log_format!r} is unknown, use auto, json or console")
    for secret in secrets:
        hide(secret)

    out = stream if stream is not None else sys.stderr
    as_json = log_format == "json" or (log_format == "auto" and not out.isatty())
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add(context),
    ]
    last: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _mask,
    ]
    if as_json:
        last += [_ordered, structlog.processors.JSONRenderer(default=str)]
    else:
        last.append(structlog.dev.ConsoleRenderer(colors=out.isatty()))

    handler = _Quiet(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=last)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING) if number > 10 else number)
    logging.getLogger(_REVEALING).setLevel(max(number, logging.INFO))
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def hide(secret: str) -> None:
    """Mask this text from now on wherever it would be logged by this process.

    As it is, and as a repr, JSON, a URL, hexadecimal or base64 spells it. Of MongoDB's URIs the
    password is a secret of its own, and the rest is still shown.
    """
    if secret.startswith(("mongodb://", "mongodb+srv://")):
        # A whole URI that was hidden still says where it points.
        _hidden[secret] = _PARAMETER.sub(rf"\1\2{MASK}", _userinfo_masked(secret))
        for password in _passwords(secret):
            hide(password)
    elif len(secret) >= _SHORTEST_SECRET:
        for spelling in _spellings(secret):
            _hidden[spelling] = MASK
        for core in _base64_cores(secret.encode(errors="replace")):
            _hidden_base64[core] = re.compile(rf"[\w+/\-]?{re.escape(core)}[\w+/\-]?={{0,2}}")


def mask_uri(text: str) -> str:
    """Give the text with the passwords of the URIs in it masked.

    "mongodb://ann:pw@host/db" becomes "mongodb://ann:***@host/db"; secrets among the parameters
    go too, and so do the texts that were given to `hide`. Any text may be passed.
    """
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, _hidden[secret])
        if _hidden[secret] == MASK:
            text = _beginning_masked(text, secret)
    for core, pattern in _hidden_base64.items():
        if core in text:
            text = pattern.sub(MASK, text)
    return _PARAMETER.sub(rf"\1\2{MASK}", _userinfo_masked(text))


def _passwords(uri: str) -> Iterator[str]:
    """The password in a URI, as it stands there and decoded."""
    rest = uri.partition("://")[2]
    # An unescaped "/" in a password is wrong, and a driver refuses it: in words that quote it.
    for authority in {rest.partition("/")[0], rest}:
        password = authority.rpartition("@")[0].partition(":")[2]
        yield from {password, unquote(password), unquote_plus(password)}


def _spellings(secret: str) -> set[str]:
    """The secret as it is, and as the formats that a message may quote it in spell it."""
    octets = secret.encode(errors="replace")
    plain = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    for quoted in (repr(secret), ascii(secret), repr(octets).removeprefix("b")):
        # Which quotes stand around a repr, and so which are escaped in it, the neighbours decide.
        bare = quoted[1:-1].replace("\\'", "'")
        plain |= {bare, bare.replace("'", "\\'")}
    for encoded in (quote(octets), quote(octets, safe=""), quote_plus(octets)):
        plain |= {encoded, re.sub("%..", lambda match: match[0].lower(), encoded)}
    plain |= {octets.hex(), octets.hex().upper()}
    # A repr, or JSON, of what holds one already.
    again = {spelling.replace("\\", "\\\\") for spelling in plain}
    again |= {spelling.replace(mark, "\\" + mark) for spelling in again for mark in "'\""}
    return plain | again


def _base64_cores(secret: bytes) -> set[str]:
    """The characters that the secret alone decides, at each of the three places it may begin at."""
    cores = set()
    for before in range(3):
        code = base64.b64encode(bytes(before) + secret).decode()
        core = code[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6]
        cores |= {core, core.translate(str.maketrans("+/", "-_"))}
    return cores


def _beginning_masked(text: str, secret: str) -> str:
    """Mask the beginning of a secret where the text was cut within it."""
    at = text.find(secret[:_SHORTEST_SECRET])
    while at >= 0:
        end = at
        while end < len(text) and end - at < len(secret) and text[end] == secret[end - at]:
            end += 1
        if end == len(text) or text.startswith(("...", "\N{HORIZONTAL ELLIPSIS}"), end):
            text = text[:at] + MASK + text[end:]
            end = at + len(MASK)
        at = text.find(secret[:_SHORTEST_SECRET], end)
    return text


def _userinfo_masked(text: str) -> str:
    return _USERINFO.sub(rf"\1:{MASK}@", text)


def _add(context: dict[str, object]) -> Processor:
    def add(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
        for key, value in context.items():
            event.setdefault(key, value)
        return event

    return add


def _ordered(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    """When, how bad and what come first: a person reads these lines, too."""
    first = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return {**first, **event}


def _mask(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        event[key] = MASK if _SECRET_KEY.search(key) else _masked(value, key)
    return event


def _masked(value: Any, key: str = "") -> Any:
    if isinstance(value, str):
        most = _LONGEST_TRACEBACK if key == "exception" else _LONGEST_VALUE
        # Cut after the masking, or half a secret would show; what is far beyond is never looked at.
        text = mask_uri(value[: 2 * most])
        if len(value) > 2 * most and len(text) < most:
            text = text[: text.rfind(" ") + 1]  # masks were so short that the cut itself shows
        text = text[:most]
        text = _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
        return text if len(value) <= most else f"{text}... ({len(value)} characters)"
    if isinstance(value, dict):
        return {
            str(key): MASK if _SECRET_KEY.search(str(key)) else _masked(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _masked(str(value))


class _Quiet(logging.StreamHandler[TextIO]):
    """Drops a line that cannot be written: a full disk or a closed pipe must not stop the work."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        del record
