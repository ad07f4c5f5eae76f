"""Any record becomes exactly one thing, and no bytes whatever can raise."""

from __future__ import annotations

import codecs
import gzip
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.offer import Offer
from classifier.record import (
    MAX_DEPTH,
    Decoded,
    Framing,
    Reason,
    Reject,
    Removal,
    decode_offer,
    decode_records,
)
from tests.classifier.records import Record

KETTLE = b'{"offer_id": "k-1", "title": "Kettle"}'
FRAME = b"\x00\x00\x00\x00\x2a"


def refusal(value: bytes, framing: Framing = "refuse") -> tuple[Reason, str]:
    answer = decode_offer(value, framing)
    assert not isinstance(answer, Offer)
    reason, detail = answer
    assert detail
    assert "\n" not in detail
    return reason, detail


def title(value: bytes, framing: Framing = "refuse") -> str | None:
    answer = decode_offer(value, framing)
    assert isinstance(answer, Offer), answer
    return answer.title


def nested(levels: int) -> bytes:
    """An offer with so many levels of brackets, its own among them."""
    return b'{"offer_id": "n", "title": "deep", "x": %s%s}' % (
        b"[" * (levels - 1),
        b"]" * (levels - 1),
    )


# What cannot be read is named for what it is


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", Reason.JSON),
        (b"   ", Reason.JSON),
        (b'{"offer_id": "o-3", "title": "Ka', Reason.JSON),
        (KETTLE + KETTLE, Reason.JSON),
        (KETTLE[:-1] + b",}", Reason.JSON),
        (b'{"offer_id": "1", "title": "a\nb"}', Reason.JSON),
        (b'{"offer_id": "1", "price": NaN}', Reason.JSON),
        (b'{"offer_id": "1", "price": -Infinity}', Reason.JSON),
        (b'{"offer_id": "1", "revision": NaN}', Reason.JSON),
        (b'{"offer_id": "1", "price": 01}', Reason.JSON),
        (b"[]", Reason.SCHEMA),
        (b'"ok"', Reason.SCHEMA),
        (b"null", Reason.SCHEMA),
        (b"12", Reason.SCHEMA),
        (b"{}", Reason.SCHEMA),
        (b'{"offer_id": ""}', Reason.SCHEMA),
        (b'{"offer_id": "%s"}' % (b"x" * 513), Reason.SCHEMA),
        (b'{"offer_id": 12}', Reason.SCHEMA),
        (b'{"offer_id": "1", "title": 1e999}', Reason.SCHEMA),
        (b'{"offer_id": "1", "revision": 1e999}', Reason.SCHEMA),
        (b'{"offer_id": "1", "revision": 1.0}', Reason.SCHEMA),
        (b'{"offer_id": "1", "revision": %s}' % (b"9" * 5_000), Reason.SCHEMA),
        ('{"offer_id": "1", "title": "Café"}'.encode("latin-1"), Reason.ENCODING),
        (b'{"offer_id": "1", "title": "\xed\xa0\xbd"}', Reason.ENCODING),
        (KETTLE.decode().encode("utf-16"), Reason.ENCODING),
        (KETTLE.decode().encode("utf-16-le"), Reason.ENCODING),
        (KETTLE.decode().encode("utf-32"), Reason.ENCODING),
        (gzip.compress(KETTLE, mtime=0), Reason.COMPRESSED),
        (b"\x28\xb5\x2f\xfd" + KETTLE, Reason.COMPRESSED),
        (FRAME + KETTLE, Reason.FRAMED),
        (FRAME + b"\x06k-1\x0cKettle", Reason.FRAMED),
        (b"\x06k-1\x0cKettle", Reason.JSON),
        (codecs.BOM_UTF8, Reason.JSON),
        (codecs.BOM_UTF8 * 2 + KETTLE, Reason.JSON),
        (codecs.BOM_UTF8 * 300_000, Reason.JSON),
    ],
)
def test_bytes_that_are_no_offer_are_refused_by_the_right_reason(
    value: bytes, reason: Reason
) -> None:
    assert refusal(value)[0] is reason


def test_refusal_says_where() -> None:
    assert refusal(b'{"offer_id": "1", "title": 5}')[1].endswith("at `$.title`")
    assert refusal('{"offer_id": "é"}'.encode("latin-1")) == (Reason.ENCODING, "byte 0xe9 at 14")
    assert refusal(FRAME + KETTLE)[1].startswith("schema id 42;")


def test_frame_is_stripped_when_told_and_plain_neighbours_are_left_alone() -> None:
    assert title(FRAME + KETTLE, "strip") == "Kettle"
    assert title(KETTLE, "strip") == "Kettle"
    assert title(FRAME + codecs.BOM_UTF8 + KETTLE, "strip") == "Kettle"
    assert refusal(FRAME, "strip")[0] is Reason.JSON
    assert refusal(FRAME + b"\x06k-1\x0cKettle", "strip")[0] is Reason.JSON
    assert refusal(FRAME + FRAME + KETTLE, "strip")[0] is Reason.FRAMED


# What can be read is read


def test_byte_order_mark_is_passed_over() -> None:
    assert title(codecs.BOM_UTF8 + KETTLE) == "Kettle"


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    assert title(b'{"title": "A", "offer_id": "1", "title": "B"}') == "B"


@pytest.mark.parametrize(
    "field",
    [
        b'"price": 1e999',
        b'"seller": ' + b"9" * 5_000,
        b'"attributes": {"size.cm": 4, "$price": 1, "a\\u0000b": null, "": []}',
        b'"Title": 5',
    ],
)
def test_unknown_fields_pass_by(field: bytes) -> None:
    assert title(b'{"offer_id": "1", %s, "title": "Kettle"}' % field) == "Kettle"


@pytest.mark.parametrize(
    ("escaped", "expected"),
    [
        (r"cut \ud83d", "cut \ufffd"),
        (r"\uDE00 first", "\ufffd first"),
        (r"\ud83d\ud83d\ude00", "\ufffd\N{GRINNING FACE}"),
        (r"\ud83d\ude00\ude00", "\N{GRINNING FACE}\ufffd"),
        (r"\ud83d \ude00", "\ufffd \ufffd"),
        (r"\\ud83d\ude00", "\\ud83d\ufffd"),
        (r"\\ud83d \ude00", "\\ud83d \ufffd"),
        (r"\\\ud83d", "\\\ufffd"),
    ],
)
def test_half_an_emoji_becomes_the_replacement_character(escaped: str, expected: str) -> None:
    value = b'{"offer_id": "1", "title": "%s"}' % escaped.encode()
    assert title(value) == expected
    assert title(codecs.BOM_UTF8 + value) == expected


def test_whole_emoji_in_escapes_is_kept() -> None:
    assert title(rb'{"offer_id": "1", "title": "\ud83d\ude00"}') == "\N{GRINNING FACE}"


# Nesting


def test_nesting_at_the_limit_is_read_and_one_beyond_is_not() -> None:
    assert title(nested(MAX_DEPTH)) == "deep"
    assert refusal(nested(MAX_DEPTH + 1))[0] is Reason.NESTING
    assert refusal(nested(10_000))[0] is Reason.NESTING
    assert refusal(b"[" * 100_000)[0] is Reason.NESTING
    assert refusal(b'{"a":' * 50_000)[0] is Reason.NESTING


def test_brackets_side_by_side_or_within_strings_are_no_nesting() -> None:
    many = b", ".join([b"[{}]"] * 100)
    assert title(b'{"offer_id": "1", "title": "wide", "x": [%s]}' % many) == "wide"
    text = b"[" * 200 + rb" \" [ \\"
    assert title(b'{"offer_id": "1", "title": "%s"}' % text) == "[" * 200 + ' " [ \\'


def test_brackets_after_a_string_that_ends_in_a_backslash_count() -> None:
    assert refusal(rb'{"offer_id": "\\", "x": ' + b"[" * 64 + b"]" * 64 + b"}")[0] is Reason.NESTING


@pytest.mark.parametrize(
    "value",
    [
        b'{"offer_id": "1", "t": "' + b"[" * 65 + b'\\"' * 400_000,
        b'{"offer_id": "1", "t": "' + b"[" * 65 + b"\\" * 800_001,
        b'"' * 500_000 + b"[" * 65,
        b'{"offer_id": "1", "t": "' + b"\\ud83d" * 130_000,
        b'"[' * 400_000,
    ],
)
def test_no_value_takes_long_to_refuse(value: bytes) -> None:
    started = time.process_time()
    assert not isinstance(decode_offer(value), Offer)
    assert time.process_time() - started < 3


# Any bytes

FRAGMENTS = st.sampled_from(
    [
        KETTLE, FRAME, codecs.BOM_UTF8, codecs.BOM_UTF16_LE, b"\x1f\x8b", b'{"offer_id": "', b'"',
        b"\\", b"\\ud83d", b"\\ude00", b"[", b"{", b"]", b"}", b":", b",", b"NaN", b"1e999",
        b'"title"', b'"revision"', b"\x00", b"\xff", b"[" * 65, b"9" * 50,
    ]
)  # fmt: skip


@given(
    st.binary(max_size=40) | st.lists(FRAGMENTS | st.binary(max_size=3), max_size=12).map(b"".join),
    st.sampled_from(["refuse", "strip"]),
)
def test_no_bytes_raise(value: bytes, framing: Framing) -> None:
    answer = decode_offer(value, framing)
    if isinstance(answer, Offer):
        assert 1 <= len(answer.offer_id) <= 512
        answer.offer_id.encode()
    else:
        assert isinstance(answer[0], Reason)
        assert answer[1]


@given(st.text(), st.none() | st.text(), st.none() | st.integers(0, 2**63 - 1), st.booleans())
def test_every_offer_comes_through_as_it_was_sent(
    offer_id: str, words: str | None, revision: int | None, ascii_only: bool
) -> None:
    sent = {"offer_id": f"o{offer_id}"[:512], "title": words, "revision": revision}
    value = json.dumps(sent, ensure_ascii=ascii_only)
    answer = decode_offer(value.encode())
    assert answer == Offer(offer_id=f"o{offer_id}"[:512], title=words, revision=revision)


# Records


def sort(*records: Record, record_bytes: int = 1_000, framing: Framing = "refuse") -> Decoded:
    return decode_records(records, record_bytes, framing)


def test_batch_is_sorted_by_what_its_records_are_in_their_order() -> None:
    batch = [
        Record(KETTLE, b"k-1"),
        Record(None, b"k-2"),
        Record(b"[]"),
        Record(b'{"offer_id": "k-3"}'),
        Record(None, None),
        Record(None, b""),
        Record(b"", b"k-4"),
    ]
    decoded = sort(*batch)
    assert [(record, offer.offer_id) for record, offer in decoded.offers] == [
        (batch[0], "k-1"),
        (batch[3], "k-3"),
    ]
    assert decoded.removals == [Removal(batch[1], "k-2", None)]
    assert [(reject.record, reject.reason) for reject in decoded.rejects] == [
        (batch[2], Reason.SCHEMA),
        (batch[6], Reason.JSON),
    ]
    assert decoded.skipped == 2


@pytest.mark.parametrize("key", [None, b"", b"other", b"\xff"])
def test_id_in_the_body_counts_whatever_the_key_says(key: bytes | None) -> None:
    ((_, offer),) = sort(Record(KETTLE, key)).offers
    assert offer.offer_id == "k-1"


def test_value_at_the_size_limit_is_read_and_one_byte_more_is_rejected_unread() -> None:
    assert len(sort(Record(KETTLE), record_bytes=len(KETTLE)).offers) == 1
    (reject,) = sort(Record(KETTLE), record_bytes=len(KETTLE) - 1).rejects
    assert reject.reason is Reason.TOO_LARGE
    assert reject.detail == "38 bytes; at most 37 are read"


@pytest.mark.parametrize(
    ("header", "revision"),
    [(b"0", 0), (b"7", 7), (b"007", 7), (b"9223372036854775807", 2**63 - 1)],
)
def test_tombstone_takes_its_revision_from_the_header(header: bytes, revision: int) -> None:
    record = Record(None, b"k", headers=(("trace", b"\xff"), ("revision", header)))
    assert sort(record).removals == [Removal(record, "k", revision)]


@pytest.mark.parametrize(
    "header",
    [None, b"", b"-1", b"+1", b"1.0", b" 1", b"1_0", b"x", b"\xb2", "٣".encode(),
     b"9223372036854775808", b"1" * 5_000],
)  # fmt: skip
def test_tombstone_with_a_bad_revision_is_rejected(header: bytes | None) -> None:
    # Null as a header's value is possible in Kafka, though the client's types deny it.
    headers = (("trace", None), ("revision", header))
    decoded = sort(Record(None, b"k", headers=headers))  # type: ignore[arg-type]
    assert decoded.removals == []
    assert decoded.rejects[0].reason is Reason.REVISION
    assert len(decoded.rejects[0].detail) < 300


def test_tombstone_without_a_usable_key_is_rejected() -> None:
    decoded = sort(Record(None, b"k\xff"), Record(None, b"x" * 513), Record(None, b"x" * 512))
    assert [reject.reason for reject in decoded.rejects] == [Reason.ENCODING, Reason.SCHEMA]
    assert decoded.rejects[0].detail == "key byte 0xff at 1"
    assert [removal.offer_id for removal in decoded.removals] == ["x" * 512]


RECORDS = st.builds(
    Record,
    value=st.none() | st.just(KETTLE) | st.binary(max_size=50),
    key=st.none() | st.binary(max_size=5),
    offset=st.integers(0, 9),
    headers=st.lists(st.tuples(st.sampled_from(["revision", "x"]), st.binary(max_size=20))).map(
        tuple
    ),
)


@given(st.lists(RECORDS, max_size=6))
def test_every_record_is_exactly_one_thing(records: list[Record]) -> None:
    decoded = decode_records(records, 45, "refuse")
    kept = [
        *(record for record, _ in decoded.offers),
        *(removal.record for removal in decoded.removals),
        *(reject.record for reject in decoded.rejects),
    ]
    assert len(kept) + decoded.skipped == len(records)
    assert len({id(record) for record in kept}) == len(kept)
    assert {id(record) for record in kept} <= {id(record) for record in records}


def test_reject_keeps_the_record_itself() -> None:
    record = Record(b"{", b"k", offset=9)
    (reject,) = sort(record).rejects
    assert isinstance(reject, Reject)
    assert reject.record is record
