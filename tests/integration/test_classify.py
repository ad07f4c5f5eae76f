"""`POST /classify` beside the stream: it is answered, or told at once to come again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack

from tests.integration.harness import Place, Service, classifications, done, offer, produce, until

Serve = Callable[[dict[str, object]], Service]

QUESTION = {"offers": [{"offer_id": "a", "title": "olive oil"}]}
BODY = b'{"offers": [{"offer_id": "a", "title": "olive oil"}]}'


async def test_classify_answers_while_a_backlog_is_worked_through(
    place: Place, serve: Serve
) -> None:
    count = 2_000
    await produce(place, [{"value": offer(f"o{n}"), "partition": n % 4} for n in range(count)])
    service = serve(place.overrides(fetch_offers=100, cache_offers=0))
    await until(service.is_ready, "ready")
    answers: list[dict[str, object]] = []
    while (await asyncio.to_thread(service.counter, "classifier_offers_total")) < count:
        answer = await asyncio.to_thread(service.post, "/classify", QUESTION)
        assert answer.status_code == 200
        answers += answer.json()["results"]
    await done(place)
    assert len(answers) >= 5
    assert {answer["category_id"] for answer in answers} == {"olive-oil"}
    assert len(await classifications(place)) == count


async def test_classify_says_429_when_its_queue_is_full_and_answers_again(
    place: Place, serve: Serve
) -> None:
    service = serve(place.overrides(interactive_queue=2))
    await until(service.is_ready, "ready")
    head = b"POST /classify HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    with ExitStack() as stack:
        # Two whose bodies are on their way have all the room.
        slow = [
            stack.enter_context(socket.create_connection((service.url.host, service.url.port), 20))
            for _ in range(2)
        ]
        for connection in slow:
            connection.sendall(head % len(BODY) + BODY[:10])
        await until(lambda: service.post("/classify", QUESTION).status_code == 429, "it is full")
        refused = service.post("/classify", QUESTION)
        assert int(refused.headers["retry-after"]) >= 1
        assert "2 requests" in refused.json()["error"]
        assert service.is_ready()
        for connection in slow:
            connection.sendall(BODY[10:])
            assert connection.makefile("rb").readline().split()[1] == b"200"
    assert service.post("/classify", QUESTION).status_code == 200
    assert service.counter('classifier_requests_total{status="429"') >= 2
