"""The HTTP endpoints: probes, metrics, the model and its categories, and `POST /classify`.

They run in the supervisor's process, which never computes, so a busy engine delays no probe. What
an offer means is not decided here: its bytes go to a worker as they came, and are decoded there by
the code that decodes Kafka's records.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from classifier import __version__, metrics, offer
from classifier.link import Alternative, Classified, ModelInfo, Problem, Refused, Result
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
# An open string reaches to the end, so that no input is scanned twice.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_NESTING: Final = np.zeros(256, dtype=np.int8)
_NESTING[list(b"[{")] = 1
_NESTING[list(b"]}")] = -1


class BusyError(Exception):
    """There are as many interactive requests as may be; the message is for the client."""


class UnavailableError(Exception):
    """No worker can answer now; the message is for the client."""


class FailedError(Exception):
    """A worker answered that it cannot; the message is for the client."""


class WorkerReport(BaseModel):
    """One worker, as it says itself."""

    slot: int
    state: str = Field(description="absent, starting, running or draining")
    ready: bool
    golden: bool = Field(description="the model answered its golden questions")
    joined: bool = Field(description="the consumer group is joined")
    mongodb: bool = Field(description="MongoDB takes writes")
    waiting_on: list[str] = Field(description="outages that explain why work stands still")
    in_flight: int = Field(description="offers fetched and not yet committed")
    restarts: int
    reasons: list[str] = Field(description="why it is not ready")
    model: ModelInfo | None


class Health(BaseModel):
    """Alive: the loop turns, and no worker hangs that cannot be replaced."""

    alive: bool
    reasons: list[str]


class Readiness(BaseModel):
    """Ready: at least one worker has a sound model, its partitions, and a MongoDB that writes."""

    ready: bool
    reasons: list[str]
    workers: list[WorkerReport]


class ModelReport(BaseModel):
    """The artefact the service was started with, and what each worker has loaded."""

    artifact: str
    kind: str
    target: str
    precision: str
    checkpoint: str
    created_at: str
    data: dict[str, str | int]
    taxonomy: str
    labels: int
    max_tokens: int
    temperature: float
    threshold: float
    versions: dict[str, str]
    promotion: int
    workers: dict[str, ModelInfo | None] = Field(description="by slot")


class Category(BaseModel):
    """A category that the model can answer."""

    id: str
    names: dict[str, str] = Field(description="by language")
    parents: list[str] = Field(description="category ids, the nearest first")


class Categories(BaseModel):
    """All categories that the model can answer."""

    taxonomy: str
    categories: list[Category]


# The two below describe link.Classified and link.Refused, whose tags, which tell them apart between
# the processes, no client is shown: neither pydantic nor msgspec describes them without.
class ClassifiedReport(BaseModel):
    """An offer's category."""

    offer_id: str
    category_id: str
    score: float = Field(description="calibrated probability")
    alternatives: list[Alternative]
    status: str = Field(description="classified, or uncertain below the category's threshold")
    model: str
    taxonomy: str


class RefusedReport(BaseModel):
    """An offer that cannot be classified; its neighbours are not touched."""

    offer_id: str | None
    error: Problem


class Classifications(BaseModel):
    """One result an offer, in the order of the offers."""

    results: list[ClassifiedReport | RefusedReport]


class ErrorReport(BaseModel):
    """What is wrong with a request, in one line."""

    error: str


class Service(Protocol):
    """What the endpoints show; the supervisor has it."""

    def seat(self) -> AbstractContextManager[None]:
        """Hold a seat for one interactive request. Raises BusyError, or UnavailableError."""
        ...

    async def classify(self, offers: list[bytes]) -> Sequence[Result]:
        """Give one result an offer. Raises BusyError, UnavailableError or FailedError."""
        ...

    def answered(self, status: int) -> None:
        """Count a request to /classify by its HTTP status."""
        ...

    def health(self) -> Health: ...
    def readiness(self) -> Readiness: ...
    def model(self) -> ModelReport: ...
    def categories(self) -> Categories: ...
    async def exposition(self) -> bytes:
        """Give all metrics in Prometheus' text format."""
        ...


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    offers: list[msgspec.Raw]


_BODY: Final = msgspec.json.Decoder(_Body)
_ANY_JSON: Final = msgspec.json.Decoder(msgspec.Raw)


def app(service: Service) -> FastAPI:
    """Make the endpoints over a service. No page loads anything from elsewhere."""
    endpoints = FastAPI(
        title="Offer classifier", version=__version__, docs_url=None, redoc_url=None
    )
    endpoints.add_exception_handler(HTTPException, _refuse)
    endpoints.add_exception_handler(Exception, _fail)

    @endpoints.get("/healthz", responses={503: {"model": Health}})
    async def healthz(response: Response) -> Health:
        """Is a restart of no use? 503 when the service cannot help itself."""
        health = service.health()
        response.status_code = 200 if health.alive else 503
        return health

    @endpoints.get("/readyz", responses={503: {"model": Readiness}})
    async def readyz(response: Response) -> Readiness:
        """Can the service do its work? 503 when it cannot, with the reasons."""
        readiness = service.readiness()
        response.status_code = 200 if readiness.ready else 503
        return readiness

    @endpoints.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def prometheus() -> Response:
        """Everything counted, summed over the workers, for Prometheus."""
        return Response(await service.exposition(), media_type=metrics.CONTENT_TYPE)

    @endpoints.get("/model")
    async def model() -> ModelReport:
        """What answers."""
        return service.model()

    @endpoints.get("/categories")
    async def categories() -> Categories:
        """What can be answered."""
        return service.categories()

    @endpoints.post(
        "/classify",
        response_model=Classifications,
        responses={
            code: {"model": ErrorReport, "description": description}
            for code, description in _ERRORS.items()
        },
        openapi_extra={"requestBody": _request_body()},
    )
    async def classify(request: Request) -> Response:
        """Classify up to 256 offers, in a body of at most 1 MiB, without storing anything."""
        response = await _classify(service, request)
        service.answered(response.status_code)
        return response

    return endpoints


_ERRORS: Final[dict[int | str, str]] = {
    400: "The body is not JSON, or is nested too deep",
    408: "The body took too long to arrive",
    413: "The body is too large, or has too many offers",
    415: "The body is compressed",
    422: 'The body is not {"offers": [...]}',
    429: "Too many requests at once; try again after the seconds in Retry-After",
    500: "The offers could not be classified",
    503: "No worker is ready; try again after the seconds in Retry-After",
}


async def _classify(service: Service, request: Request) -> Response:
    body: bytes | None = None
    try:
        with service.seat():
            body = await _read(request)
            if len(body) > _LARGE_BYTES:
                offers = await asyncio.to_thread(_offers, body)
            else:
                offers = _offers(body)
            results = await service.classify(offers) if offers else ()
    except HTTPException as error:
        return _error(error.status_code, str(error.detail))
    except ClientDisconnect:
        return _error(400, "the body ended early")
    except (BusyError, UnavailableError) as error:
        if body is None:
            await _drop(request)
        status, seconds = (429, "1") if isinstance(error, BusyError) else (503, "5")
        return _error(status, str(error), {"Retry-After": seconds})
    except FailedError as error:
        return _error(500, str(error))
    return _json(200, {"results": [_shown(result) for result in results]})


def _shown(result: Classified | Refused) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__struct_fields__}


async def _read(request: Request) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise HTTPException(415, "send the body uncompressed")
    too_large = HTTPException(413, f"the body is larger than {MOST_BODY_BYTES} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MOST_BODY_BYTES:
        await _drop(request)
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
        await _drop(request)
        raise too_large
    return bytes(body)


async def _drop(request: Request) -> None:
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


def _offers(body: bytes) -> list[bytes]:
    """Give each offer's bytes, one JSON value each, of whatever kind: a worker judges them."""
    body = body.removeprefix(_UTF8_BOM)
    if _depth(body) > _MOST_DEPTH:
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


def _depth(body: bytes) -> int:
    """Give the deepest nesting of brackets outside strings, in time that grows with the length."""
    if body.count(b"[") + body.count(b"{") <= _MOST_DEPTH:
        return 0
    steps = _NESTING[np.frombuffer(_STRING.sub(b"", body), dtype=np.uint8)]
    return int(steps.cumsum(dtype=np.int32).max(initial=0))


def _json(status: int, content: Any, headers: dict[str, str] | None = None) -> Response:
    # msgspec writes a NaN as null: the output is JSON whatever a worker sends.
    return Response(
        msgspec.json.encode(content), status, headers=headers, media_type="application/json"
    )


def _error(status: int, line: str, headers: dict[str, str] | None = None) -> Response:
    return _json(status, {"error": line}, headers)


def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, str(error.detail), dict(error.headers or {}))


def _fail(_request: Request, _error_: Exception) -> Response:
    # The server logs the traceback; a client never sees it.
    return _error(500, "internal error")


def _request_body() -> dict[str, Any]:
    schema = {key: value for key, value in offer.schema().items() if key != "$schema"}
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
                                    schema,
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
