"""A Kafka record becomes an offer, a removal, a reject or a skip. No byte of it can raise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

import msgspec

from classifier.nesting import is_deeper
from classifier.offer import OFFER_ID_CHARACTERS, Offer

MAX_DEPTH = 64
"""Deepest nesting of a record's JSON. Python's own limit differs between versions."""

FRAME_BYTES = 5
"""A schema registry's frame: a zero byte and a four-byte schema id."""

_UTF8_BOM = b"\xef\xbb\xbf"
_OTHER_BOMS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"\xff\x06\x00\x00sNaPpY")
# Pairs and other escapes are matched so as to be passed over; the group is what stands alone.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\.",
    re.DOTALL,
)
_DECODER = msgspec.json.Decoder(Offer)


class Reason(StrEnum):
    """Why a record is a dead letter. Every reason lies in the record, never in an outage."""

    JSON = "malformed JSON"
    ENCODING = "not UTF-8"
    FRAMED = "schema registry frame"
    COMPRESSED = "compressed value"
    NESTING = "nested too deep"
    SCHEMA = "not an offer"
    REVISION = "bad revision header"
    NO_TEXT = "no text"
    TOO_LARGE = "too large"
    UNREADABLE = "no text can be made"
    INFERENCE = "no answer from the model"
    DOCUMENT = "refused by MongoDB"


NO_TEXT_DETAIL = "no field holds a word: title, brand, category_path, description"
INFERENCE_DETAIL = "the engine fails on this text alone, and answers others"


class Record(Protocol):
    """What of a consumed Kafka record is used here (aiokafka's ConsumerRecord has it)."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Iterable[tuple[str, bytes]]: ...


@dataclass(frozen=True, slots=True)
class Removal:
    """A tombstone: the classification of the offer goes. Revision None: the stored one's."""

    record: Record
    offer_id: str
    revision: int | None


@dataclass(frozen=True, slots=True)
class Reject:
    """A record to be set aside as a dead letter; `detail` is one line for a person."""

    record: Record
    reason: Reason
    detail: str


@dataclass(slots=True)
class Decoded:
    """One fetched batch, sorted by what its records are; each list keeps their order."""

    offers: list[tuple[Record, Offer]] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    skipped: int = 0  # records with neither key nor value


Framing = Literal["refuse", "strip"]


def decode_records(records: Iterable[Record], record_bytes: int, framing: Framing) -> Decoded:
    """Sorts a fetched batch. A value of more than `record_bytes` is rejected unread."""
    decoded = Decoded()
    for record in records:
        value = record.value
        if value is None:
            _decode_tombstone(record, decoded)
            continue
        if len(value) > record_bytes:
            detail = f"{len(value)} bytes; at most {record_bytes} are read"
            decoded.rejects.append(Reject(record, Reason.TOO_LARGE, detail))
            continue
        offer = decode_offer(value, framing)
        if isinstance(offer, Offer):
            decoded.offers.append((record, offer))
        else:
            decoded.rejects.append(Reject(record, *offer))
    return decoded


def decode_offer(value: bytes, framing: Framing = "refuse") -> Offer | tuple[Reason, str]:
    """The offer in a record's value, or why there is none and a line that says where.

    A UTF-8 byte order mark before the JSON is passed over.
    """
    if framing == "strip" and value[:1] == b"\x00":
        value = value[FRAME_BYTES:]
    return _decode(value.removeprefix(_UTF8_BOM), mendable=True)


def _decode(value: bytes, mendable: bool) -> Offer | tuple[Reason, str]:
    if is_deeper(value, MAX_DEPTH):
        return Reason.NESTING, f"more than {MAX_DEPTH} levels of brackets"
    try:
        return _DECODER.decode(value)
    except msgspec.ValidationError as error:
        return Reason.SCHEMA, str(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _second_look(value, str(error), mendable)


def _second_look(value: bytes, error: str, mendable: bool) -> Offer | tuple[Reason, str]:
    """What is wrong with bytes that no JSON decoder takes; one fault is mended.

    A lone surrogate escape, half of an emoji that somebody cut, becomes U+FFFD.
    """
    if not value:
        return Reason.JSON, "empty value"
    if value.startswith(_COMPRESSED):
        return Reason.COMPRESSED, "the value itself is compressed; let the producer's codec do it"
    if value.startswith(_OTHER_BOMS) or (b"\x00" in value[1:4] and value[:1] in b"{["):
        return Reason.ENCODING, "UTF-16 or UTF-32; JSON is UTF-8"
    if value[:1] == b"\x00":
        schema_id = int.from_bytes(value[1:FRAME_BYTES], "big")
        return Reason.FRAMED, f"schema id {schema_id}; set KAFKA_FRAMING=strip if JSON follows"
    try:
        value.decode()
    except UnicodeDecodeError as failure:
        return Reason.ENCODING, f"byte 0x{value[failure.start]:02x} at {failure.start}"
    if mendable:
        mended = _LONE_SURROGATE.sub(lambda found: rb"\ufffd" if found[1] else found[0], value)
        if mended != value:
            return _decode(mended, mendable=False)
    return Reason.JSON, error


def _decode_tombstone(record: Record, decoded: Decoded) -> None:
    if not record.key:
        decoded.skipped += 1
        return
    try:
        offer_id = record.key.decode()
    except UnicodeDecodeError as failure:
        detail = f"key byte 0x{record.key[failure.start]:02x} at {failure.start}"
        decoded.rejects.append(Reject(record, Reason.ENCODING, detail))
        return
    if len(offer_id) > OFFER_ID_CHARACTERS:
        detail = f"the key of the tombstone has {len(offer_id)} characters"
        decoded.rejects.append(Reject(record, Reason.SCHEMA, detail))
        return
    revision: int | None = None
    for name, content in record.headers:
        if name == "revision":
            if not (content and content.isdigit() and len(content) <= 19) or (
                int(content) > 2**63 - 1
            ):
                given = (content or b"")[:40]  # null is possible, whatever the type says
                detail = f"revision header {given!r} is not an integer from 0 to 2**63 - 1"
                decoded.rejects.append(Reject(record, Reason.REVISION, detail))
                return
            revision = int(content)
    decoded.removals.append(Removal(record, offer_id, revision))
