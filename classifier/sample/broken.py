"""Messages that are no offers, each in one of the ways in which real feeds break."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Literal

import msgspec

Defect = Literal[
    "cut",
    "latin-1",
    "utf-16",
    "array",
    "empty",
    "no id",
    "empty id",
    "no text",
    "framed",
    "wrong type",
    "not json",
    "gzipped",
    "bad revision",
]

DEFECTS: tuple[Defect, ...] = (
    "cut",
    "latin-1",
    "utf-16",
    "array",
    "empty",
    "no id",
    "empty id",
    "no text",
    "framed",
    "wrong type",
    "not json",
    "gzipped",
    "bad revision",
)

_TEXTS = ("title", "description", "category_path", "brand")


def broken(value: bytes, which: int, pick: int) -> tuple[Defect, bytes]:
    """A good offer's bytes, spoilt in one way; `which` says in which, `pick` how exactly."""
    defect = DEFECTS[which % len(DEFECTS)]
    return defect, _spoil(value, defect, pick)


def _spoil(value: bytes, defect: Defect, pick: int) -> bytes:
    match defect:
        case "cut":
            return value[: 1 + pick % (len(value) - 1)]
        case "latin-1":
            fields = _fields(value) | {"title": "Größe 38, café crème, señal"}
            return msgspec.json.encode(fields).decode().encode("latin-1", "replace")
        case "utf-16":
            mark = "\ufeff" if pick & 1 else ""
            return (mark + value.decode()).encode("utf-16-le")
        case "array":
            return b"[" + value + b"]"
        case "empty":
            return b""
        case "no text":
            kept = {name: text for name, text in _fields(value).items() if name not in _TEXTS}
            return msgspec.json.encode(kept | {"title": ("", " \t ", "<br/>", None)[pick & 3]})
        case "framed":
            return b"\x00" + (pick & 0xFFFF).to_bytes(4, "big") + value
        case "not json":
            return (b"<offer/>", b"offer_id;title;price", b"NaN", b"{'offer_id': '1'}")[pick & 3]
        case "gzipped":
            return _gzip(value)
        case _:
            return msgspec.json.encode(_misfit(_fields(value), defect, pick))


def _gzip(value: bytes) -> bytes:
    """A gzip archive of one stored block: zlib's own output differs between its builds."""
    header = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    block = struct.pack("<BHH", 1, len(value), len(value) ^ 0xFFFF)
    return header + block + value + struct.pack("<II", zlib.crc32(value), len(value))


def _misfit(fields: dict[str, Any], defect: Defect, pick: int) -> dict[str, Any]:
    match defect:
        case "no id":
            del fields["offer_id"]
        case "empty id":
            fields["offer_id"] = ""
        case "bad revision":
            fields["revision"] = (-1, "7", 1.5, 2**63)[pick & 3]
        case _:
            fields["title"] = (4711, ["a", "b"], {"de": "x"}, True)[pick & 3]
    return fields


def _fields(value: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(value)
    return fields
