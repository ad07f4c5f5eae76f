"""The body of `POST /classify`: offers, within bounds of size, time, number and depth.

What an offer means is not decided here: its bytes go to a worker as they came, and are decoded
there by the code that decodes Kafka's records. Whatever is wrong with a body is an HTTPException,
with the status and one line for the client.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from classifier import offer
from classifier.nesting import is_deeper
from classifier.record import MAX_DEPTH

MOST_OFFERS: Final = 256
MOST_BODY_BYTES: Final = 1 << 20
# A client that trickles its body holds a seat that others wait for.
_BODY_SECONDS: Final = 10.0
# The body's own two levels, then an offer's.
_MOST_DEPTH: Final = MAX_DEPTH + 2
# A body that takes more than a few milliseconds to look through is looked through beside the loop.
_LARGE_BYTES: Final = 1 << 16
# What is left of a body that is refused is read and dropped, up to here and for so long, since a
# client that is cut off while it writes never sees why.
_DROPPED_BYTES: Final = 8 << 20
_DROPPED_SECONDS: Final = 2.0

_UTF8_BOM: Final = b"\xef\xbb\xbf"


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    offers: list[msgspec.Raw]


_BODY: Final = msgspec.json.Decoder(_Body)
_ANY_JSON: Final = msgspec.json.Decoder(msgspec.Raw)


async def read(request: Request) -> bytes:
    """Give the whole body. Raises HTTPException 408, 413 or 415, or ClientDisconnect."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise HTTPException(415, "send the body uncompressed")
    too_large = HTTPException(413, f"the body is larger than {MOST_BODY_BYTES} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MOST_BODY_BYTES:
        await drop(request)
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BODY_BYTES:
                    break
    except TimeoutError:
        raise HTTPException(
            408, f"the body did not arrive within {_BODY_SECONDS:.0f} seconds"
        ) from None
    if len(body) > MOST_BODY_BYTES:
        await drop(request)
        raise too_large
    return bytes(body)


async def drop(request: Request) -> None:
    """Read what is left of a body that is refused, within bounds."""
    dropped = 0
    try:
        async with asyncio.timeout(_DROPPED_SECONDS):
            while dropped < _DROPPED_BYTES:
                message = await request.receive()
                dropped += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def offers(body: bytes) -> list[bytes]:
    """Give each offer's bytes, one JSON value each, of whatever kind: a worker judges them.

    Raises HTTPException 400, 413 or 422.
    """
    if len(body) > _LARGE_BYTES:
        return await asyncio.to_thread(_split, body)
    return _split(body)


def schema() -> dict[str, Any]:
    """Give the body's description, as OpenAPI wants it."""
    each = {key: value for key, value in offer.schema().items() if key != "$schema"}
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["offers"],
                    "additionalProperties": False,
                    "properties": {
                        "offers": {
                            "type": "array",
                            "maxItems": MOST_OFFERS,
                            "items": {
                                "anyOf": [
                                    each,
                                    {"description": "Answered with an error in its place."},
                                ]
                            },
                        }
                    },
                },
                "example": {"offers": [{"offer_id": "shop-1/4711", "title": "USB-C cable 2 m"}]},
            }
        },
    }


def _split(body: bytes) -> list[bytes]:
    body = body.removeprefix(_UTF8_BOM)
    if is_deeper(body, _MOST_DEPTH):
        raise HTTPException(400, f"the body has more than {_MOST_DEPTH} levels of brackets")
    try:
        offers = _BODY.decode(body)
    except msgspec.ValidationError as error:
        # The shape is judged as it is read: what is wrong further on may be the syntax.
        _check_syntax(body)
        raise HTTPException(422, f'the body is not {{"offers": [...]}}: {error}') from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    if len(offers.offers) > MOST_OFFERS:
        raise HTTPException(
            413, f"{len(offers.offers)} offers in one request; at most {MOST_OFFERS} are taken"
        )
    return [bytes(raw) for raw in offers.offers]


def _check_syntax(body: bytes) -> None:
    try:
        _ANY_JSON.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
