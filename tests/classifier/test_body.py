"""A body is cut into its offers byte by byte, or refused in time and in one line."""

from __future__ import annotations

import gzip
import time

import pytest
from starlette.exceptions import HTTPException

from classifier.body import MOST_BODY_BYTES, offers


async def refused(body: bytes) -> tuple[int, str]:
    """The status and the line for a body that is refused."""
    with pytest.raises(HTTPException) as caught:
        await offers(body)
    return caught.value.status_code, caught.value.detail


async def test_a_byte_order_mark_is_no_reason_to_refuse() -> None:
    assert await offers(b'\xef\xbb\xbf{"offers":[{}]}') == [b"{}"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"offers", 400),
        (b'{"offers": [{"price": NaN}]}', 400),
        (b'{"offers": [{"price": -Infinity}]}', 400),
        (b'{"offers": [{}]} {}', 400),
        (b'{"offers": [1,2', 400),
        (b"[1,2", 400),
        (b'{"offers": 7, "x": ', 400),
        (b"\xff\xfe{\x00}\x00", 400),
        (gzip.compress(b'{"offers": []}', mtime=0), 400),
        (b"{}", 422),
        (b"[]", 422),
        (b"7", 422),
        (b"null", 422),
        (b'"offers"', 422),
        (b'{"offers": {}}', 422),
        (b'{"offers": null}', 422),
        (b'{"offers": [], "ofers": []}', 422),
    ],
)
async def test_what_is_no_json_is_400_and_of_another_shape_422(body: bytes, status: int) -> None:
    told, line = await refused(body)
    assert told == status
    assert "\n" not in line


@pytest.mark.parametrize("depth", [67, 1_000, 10_000, 500_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"offers":[{"a":'])
async def test_nesting_beyond_the_bound_is_400(depth: int, opening: bytes) -> None:
    closing = {b"[": b"]", b'{"a":': b"}", b'{"offers":[{"a":': b"}]}"}[opening]
    levels = min(depth, 1_000_000 // len(opening + closing))
    body = opening * levels + b"1" + closing * levels
    assert await refused(body) == (400, "the body has more than 66 levels of brackets")
    assert (await refused(body[: len(body) // 2]))[0] == 400


async def test_nesting_up_to_the_bound_is_the_workers_to_judge() -> None:
    offer = b'{"a":' + b"[" * 63 + b"]" * 63 + b"}"
    assert await offers(b'{"offers":[' + offer + b"]}") == [offer]


async def test_brackets_in_texts_do_not_nest() -> None:
    title = "[{" * 1_000 + '\\"' + "[" * 1_000 + "\\\\"
    offer = b'{"title":"' + title.encode() + b'"}'
    assert await offers(b'{"offers":[' + offer + b"]}") == [offer]


@pytest.mark.parametrize(
    "part", [b'"', b'\\"', b'"\\', b"[", b'["', b'[\\"', b'"[', b"\\", b'"]"[']
)
async def test_no_body_takes_long_to_refuse(part: bytes) -> None:
    for head in (b"", b"[" * 80, b"[" * 80 + b'"'):
        body = head + part * ((MOST_BODY_BYTES - len(head)) // len(part))
        began = time.perf_counter()
        assert (await refused(body))[0] == 400
        assert time.perf_counter() - began < 2


async def test_256_offers_are_taken_and_257_are_413() -> None:
    assert await offers(b'{"offers":[' + b"{}," * 255 + b"{}]}") == [b"{}"] * 256
    assert await refused(b'{"offers":[' + b"{}," * 256 + b"{}]}") == (
        413,
        "257 offers in one request; at most 256 are taken",
    )
