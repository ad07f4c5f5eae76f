"""The HTTP endpoints: probes, metrics, the model and its categories, and `POST /classify`.

They run in the supervisor's process, which never computes, so a busy engine delays no probe.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from classifier import __version__, body, metrics
from classifier.link import Classified, Refused, Result
from classifier.reports import (
    Categories,
    Classifications,
    ErrorReport,
    Health,
    ModelReport,
    Readiness,
)


class BusyError(Exception):
    """There are as many interactive requests as may be; the message is for the client."""


class UnavailableError(Exception):
    """No worker can answer now; the message is for the client."""


class FailedError(Exception):
    """A worker answered that it cannot; the message is for the client."""


class Service(Protocol):
    """What the endpoints show: see pool.Pool."""

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
        openapi_extra={"requestBody": body.schema()},
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
    content: bytes | None = None
    try:
        with service.seat():
            content = await body.read(request)
            offers = await body.offers(content)
            results = await service.classify(offers) if offers else ()
    except HTTPException as error:
        return _error(error.status_code, str(error.detail))
    except ClientDisconnect:
        return _error(400, "the body ended early")
    except (BusyError, UnavailableError) as error:
        if content is None:
            await body.drop(request)
        status, seconds = (429, "1") if isinstance(error, BusyError) else (503, "5")
        return _error(status, str(error), {"Retry-After": seconds})
    except FailedError as error:
        return _error(500, str(error))
    return _json(200, {"results": [_shown(result) for result in results]})


def _shown(result: Classified | Refused) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__struct_fields__}


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
