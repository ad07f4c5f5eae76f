"""The endpoints say what holds, refuse what is wrong in one line, and cannot be made to crash."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import jsonschema
import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from classifier import http, reports
from classifier.body import MOST_BODY_BYTES
from classifier.http import BusyError, FailedError, UnavailableError
from classifier.link import Alternative, Classified, ModelInfo, Problem, Refused, Result

READY = reports.Readiness(
    ready=True,
    reasons=[],
    workers=[
        reports.WorkerReport(
            slot=0,
            state="running",
            ready=True,
            golden=True,
            joined=True,
            mongodb=True,
            waiting_on=[],
            in_flight=3,
            restarts=0,
            reasons=[],
            model=ModelInfo(
                artifact="m",
                target="onnx-cpu",
                precision="fp32",
                taxonomy="t1",
                labels=2,
                promotion=7,
                created_at="2026-01-01T00:00:00+00:00",
            ),
        )
    ],
)
KETTLE = Classified(
    offer_id="a",
    category_id="kettles",
    score=0.75,
    alternatives=[Alternative("sofas", 0.25)],
    status="classified",
    model="m",
    taxonomy="t1",
)
REFUSED = Refused(offer_id=None, error=Problem("not an offer", "no offer_id"))


class Service:
    """A service that answers what a test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.statuses: list[int] = []
        self.seated = 0
        self.failure: Exception | None = None
        self.no_seat: Exception | None = None
        self.alive = True
        self.ready = True
        self.result: Result = KETTLE

    @contextmanager
    def seat(self) -> Iterator[None]:
        if self.no_seat:
            raise self.no_seat
        self.seated += 1
        try:
            yield
        finally:
            self.seated -= 1

    async def classify(self, offers: list[bytes]) -> Sequence[Result]:
        assert self.seated
        self.asked.append(offers)
        if self.failure:
            raise self.failure
        return [self.result for _ in offers]

    def answered(self, status: int) -> None:
        self.statuses.append(status)

    def health(self) -> reports.Health:
        return reports.Health(alive=self.alive, reasons=[] if self.alive else ["worker 0 hangs"])

    def readiness(self) -> reports.Readiness:
        return READY.model_copy(update={"ready": self.ready})

    def model(self) -> reports.ModelReport:
        return reports.ModelReport(
            artifact="m",
            kind="encoder",
            target="onnx-cpu",
            precision="fp32",
            checkpoint="c",
            created_at="2026-01-01T00:00:00+00:00",
            data={"name": "two", "rows": 2},
            taxonomy="t1",
            labels=2,
            max_tokens=32,
            temperature=1.5,
            threshold=0.5,
            versions={"torch": "2"},
            promotion=7,
            workers={"0": READY.workers[0].model, "1": None},
        )

    def categories(self) -> reports.Categories:
        kettles = reports.Category(id="kettles", names={"fr": "Bouilloires"}, parents=["kitchen"])
        return reports.Categories(taxonomy="t1", categories=[kettles])

    async def exposition(self) -> bytes:
        return b"# HELP x y\n# TYPE x gauge\nx 1.0\n"


@pytest.fixture
def service() -> Service:
    return Service()


def client_of(service: Service, *, raises: bool = True) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(http.app(service), raise_app_exceptions=raises)
    return httpx.AsyncClient(transport=transport, base_url="http://service")


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(service) as client:
        yield client


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(service: Service) -> AsyncIterator[int]:
    """The endpoints on a real port: what the server itself does with bodies and headers."""
    server = uvicorn.Server(
        uvicorn.Config(
            http.app(service), host="127.0.0.1", port=0, log_config=None, lifespan="off", ws="none"
        )
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield int(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    await serving


async def post(client: httpx.AsyncClient, body: bytes, **headers: str) -> httpx.Response:
    return await client.post("/classify", content=body, headers=headers)


# Probes


async def test_health_is_200_while_alive_and_503_when_not(
    client: httpx.AsyncClient, service: Service
) -> None:
    response = await client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"alive": True, "reasons": []})
    service.alive = False
    response = await client.get("/healthz")
    assert response.status_code == 503
    assert response.json() == {"alive": False, "reasons": ["worker 0 hangs"]}


async def test_readiness_is_200_when_ready_and_503_when_not(
    client: httpx.AsyncClient, service: Service
) -> None:
    response = await client.get("/readyz")
    assert (response.status_code, response.json()) == (200, READY.model_dump())
    service.ready = False
    assert (await client.get("/readyz")).status_code == 503


async def test_metrics_come_in_the_text_format(client: httpx.AsyncClient) -> None:
    response = await client.get("/metrics")
    assert response.text.endswith("x 1.0\n")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_the_model_and_its_categories_are_shown(client: httpx.AsyncClient) -> None:
    assert (await client.get("/model")).json()["workers"]["1"] is None
    assert (await client.get("/categories")).json()["categories"] == [
        {"id": "kettles", "names": {"fr": "Bouilloires"}, "parents": ["kitchen"]}
    ]


# Classify


async def test_offers_reach_the_service_byte_by_byte(
    client: httpx.AsyncClient, service: Service
) -> None:
    body = b'{"offers": [ {"offer_id": "a" , "price": 1e999} ,{"t":"\xff"},[1],null, "x",7]}'
    response = await post(client, body)
    assert response.status_code == 200
    offers = [b'{"offer_id": "a" , "price": 1e999}', b'{"t":"\xff"}', b"[1]", b"null", b'"x"', b"7"]
    assert service.asked == [offers]
    assert len(response.json()["results"]) == 6


async def test_results_are_shown_as_documented(client: httpx.AsyncClient, service: Service) -> None:
    assert (await post(client, b'{"offers":[{}]}')).json() == {
        "results": [
            {
                "offer_id": "a",
                "category_id": "kettles",
                "score": 0.75,
                "alternatives": [{"category_id": "sofas", "score": 0.25}],
                "status": "classified",
                "model": "m",
                "taxonomy": "t1",
            }
        ]
    }
    service.result = REFUSED
    assert (await post(client, b'{"offers":[{}]}')).json() == {
        "results": [
            {"offer_id": None, "error": {"reason": "not an offer", "detail": "no offer_id"}}
        ]
    }


async def test_a_large_body_is_taken_like_a_small_one(
    client: httpx.AsyncClient, service: Service
) -> None:
    offers = [{"offer_id": str(number), "title": "x" * 3_000} for number in range(256)]
    assert (await client.post("/classify", json={"offers": offers})).status_code == 200
    assert [json.loads(offer) for offer in service.asked[0]] == offers


async def test_no_offers_are_no_results_and_no_work(
    client: httpx.AsyncClient, service: Service
) -> None:
    response = await post(client, b'{"offers":[]}')
    assert (response.status_code, response.json()) == (200, {"results": []})
    assert service.asked == []


async def test_what_is_not_a_number_is_not_sent_as_one(
    client: httpx.AsyncClient, service: Service
) -> None:
    service.result = Classified(
        offer_id="<b>",
        category_id="kettles",
        score=math.nan,
        alternatives=[Alternative("sofas", math.inf)],
        status="classified",
        model="m",
        taxonomy="t1",
    )
    response = await post(client, b'{"offers":[{}]}')

    def refuse(name: str) -> float:
        raise AssertionError(name)

    assert json.loads(response.text, parse_constant=refuse)["results"][0]["score"] is None


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"{}", 422), (b"[" * 99, 400)])
async def test_a_body_that_is_refused_is_one_line_and_gives_its_seat_back(
    client: httpx.AsyncClient, service: Service, body: bytes, status: int
) -> None:
    response = await post(client, body)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert "\n" not in response.json()["error"]
    assert service.asked == []
    assert service.statuses == [status]
    assert service.seated == 0


async def test_a_compressed_body_is_415(client: httpx.AsyncClient) -> None:
    bomb = gzip.compress(bytes(100_000_000), 1)
    response = await post(client, bomb, **{"content-encoding": "gzip"})
    assert response.status_code == 415
    assert response.json() == {"error": "send the body uncompressed"}


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (BusyError("full"), 429, "1"),
        (UnavailableError("none is ready"), 503, "5"),
        (FailedError("the engine failed"), 500, None),
    ],
)
@pytest.mark.parametrize("where", ["no_seat", "failure"])
async def test_why_there_is_no_answer_is_said_in_one_line(
    client: httpx.AsyncClient,
    service: Service,
    where: str,
    error: Exception,
    status: int,
    retry_after: str | None,
) -> None:
    setattr(service, where, error)
    began = time.perf_counter()
    response = await post(client, b'{"offers":[{}]}')
    assert time.perf_counter() - began < 1
    assert (response.status_code, response.json()) == (status, {"error": str(error)})
    assert response.headers.get("retry-after") == retry_after
    assert service.statuses == [status]


async def test_a_fault_of_our_own_shows_no_stack(service: Service) -> None:
    service.failure = RuntimeError("mongodb://ann:s3cr3t@db")
    async with client_of(service, raises=False) as client:
        response = await post(client, b'{"offers":[{}]}')
    assert (response.status_code, response.json()) == (500, {"error": "internal error"})


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/nothing", 404, "Not Found"),
        ("GET", "/classify", 405, "Method Not Allowed"),
        ("POST", "/healthz", 405, "Method Not Allowed"),
        ("GET", "/docs", 404, "Not Found"),
        ("GET", "/redoc", 404, "Not Found"),
    ],
)
async def test_other_addresses_are_refused_as_json(
    client: httpx.AsyncClient, method: str, path: str, status: int, error: str
) -> None:
    response = await client.request(method, path)
    assert (response.status_code, response.json()) == (status, {"error": error})


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["offers", "offer_id", "title"]), inner, max_size=3)
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode())
)
async def test_no_body_is_answered_otherwise_than_documented(body: bytes) -> None:
    service = Service()
    async with client_of(service) as client:
        response = await post(client, body)
    assert response.status_code in {200, 400, 413, 422}
    assert list(response.json()) == ["results" if response.status_code == 200 else "error"]


# On a real port


def chunks(total: int) -> AsyncIterator[bytes]:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(total // 65_536):
            yield b" " * 65_536

    return parts()


async def test_a_body_over_the_bound_is_413_however_it_is_sent(service: Service) -> None:
    async with listening(service) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}/classify"
        for size in (1 << 20, (1 << 20) + 65_536, 6 << 20):
            chunked = await client.post(url, content=chunks(size))
            plain = await client.post(url, content=b" " * size)
            # Blanks alone are no JSON, but they are within the bound.
            expected = 400 if size <= MOST_BODY_BYTES else 413
            assert (chunked.status_code, plain.status_code) == (expected, expected)
        assert chunked.json() == {"error": "the body is larger than 1048576 bytes"}


async def test_a_body_that_never_ends_is_cut_off(service: Service) -> None:
    async with listening(service) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + b" " * 99
        )
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n")
        assert b" 413 " in head
        writer.close()


async def test_a_body_that_trickles_gives_its_seat_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("classifier.body._BODY_SECONDS", 0.2)
    async with listening(service) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
        assert b" 408 " in head
        assert service.seated == 0
        writer.close()


async def test_a_client_that_goes_away_gives_its_seat_back(service: Service) -> None:
    async with listening(service) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        await until(lambda: bool(service.seated))
        writer.close()
        await until(lambda: not service.seated)


# The document


async def test_the_openapi_document_fits_what_is_answered(
    client: httpx.AsyncClient, service: Service
) -> None:
    document = (await client.get("/openapi.json")).json()
    assert set(document["paths"]) == {
        "/healthz",
        "/readyz",
        "/metrics",
        "/model",
        "/categories",
        "/classify",
    }

    def check(path: str, method: str, response: httpx.Response) -> None:
        described = document["paths"][path][method]["responses"][str(response.status_code)]
        schema = described["content"]["application/json"]["schema"]
        jsonschema.validate(response.json(), schema | {"components": document["components"]})

    for path in ("/healthz", "/readyz", "/model", "/categories"):
        check(path, "get", await client.get(path))
    for result in (KETTLE, REFUSED):
        service.result = result
        check("/classify", "post", await post(client, b'{"offers":[{}, {}]}'))
    for body in (b"", b"{}", b'{"offers":[' + b"1," * 300 + b"1]}"):
        check("/classify", "post", await post(client, body))
    service.alive = service.ready = False
    service.no_seat = UnavailableError("none is ready")
    check("/healthz", "get", await client.get("/healthz"))
    check("/readyz", "get", await client.get("/readyz"))
    check("/classify", "post", await post(client, b'{"offers":[{}]}'))


async def test_the_openapi_document_describes_the_request(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    media: dict[str, Any] = document["paths"]["/classify"]["post"]["requestBody"]["content"]
    schema = media["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(media["application/json"]["example"], schema)
    offer = schema["properties"]["offers"]["items"]["anyOf"][0]
    jsonschema.validate({"offer_id": "a", "title": None, "unknown": 1}, offer)
    for wrong in ({}, {"offer_id": ""}, {"offer_id": "a", "title": 7}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, offer)
    outers: list[dict[str, Any]] = [{}, {"offers": [{}] * 257}, {"offers": [], "more": 1}]
    for outer in outers:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(outer, schema)
