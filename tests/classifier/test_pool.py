"""One endpoint asks and shows all workers: whom a request goes to, and what is said of them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from classifier.supervisor import Timing
from tests.classifier.standin_service import until

OFFER = {"offer_id": "a", "title": "kettle"}


# Requests


async def test_classify_gives_one_result_an_offer_in_order(serve: Any) -> None:
    async with serve() as running:
        await running.ready()
        response = await running.classify(OFFER, {"title": "no id"}, {"offer_id": "b"}, 7)
        assert response.status_code == 200
        assert "server" not in response.headers
        kettle = {
            "category_id": "kettles",
            "score": 0.75,
            "alternatives": [{"category_id": "sofas", "score": 0.25}],
            "status": "classified",
            "model": "0" * 16,
            "taxonomy": "t1",
        }
        refused = {
            "offer_id": None,
            "error": {"reason": "not an offer", "detail": "no offer_id"},
        }
        assert response.json() == {
            "results": [{"offer_id": "a", **kettle}, refused, {"offer_id": "b", **kettle}, refused]
        }


async def test_requests_go_to_the_worker_with_the_fewest(serve: Any) -> None:
    async with serve(workers=2) as running:
        await running.ready(2)
        asks = [asyncio.create_task(running.classify({"offer_id": "slow"})) for _ in range(6)]
        await until(lambda: sum(len(slot.asks) for slot in running.slots) == 6)
        assert [len(slot.asks) for slot in running.slots] == [3, 3]
        assert [(await ask).status_code for ask in asks] == [200] * 6


async def test_a_full_queue_answers_429_and_when_to_come_back(serve: Any) -> None:
    async with serve(interactive_queue=2) as running:
        await running.ready()
        asks = [asyncio.create_task(running.classify({"offer_id": "slow"})) for _ in range(2)]
        await until(lambda: running.supervisor.pool._seated == 2)
        refused = await running.classify(OFFER)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json() == {"error": "2 requests are being answered or wait; try again"}
        assert [(await ask).status_code for ask in asks] == [200, 200]
        assert (await running.classify(OFFER)).status_code == 200
        assert await running.total("classifier_requests_total", status="429") == 1
        assert await running.total("classifier_requests_total", status="200") == 3


async def test_without_a_ready_worker_the_answer_is_503_and_when_to_come_back(serve: Any) -> None:
    async with serve("unready") as running:
        await until(lambda: running.slots[0].status is not None)
        refused = await running.classify(OFFER)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert refused.json() == {"error": "no worker is ready; /readyz says why"}


async def test_a_request_whose_worker_dies_goes_to_another_one(serve: Any) -> None:
    async with serve(workers=2) as running:
        await running.ready(2)
        ask = asyncio.create_task(running.classify({"offer_id": "slow"}))
        await until(lambda: any(slot.asks for slot in running.slots))
        (busy,) = (slot.number for slot in running.slots if slot.asks)
        running.process(busy).kill()
        assert (await ask).status_code == 200


async def test_a_request_that_kills_its_workers_ends_as_503_and_spares_the_third(
    serve: Any,
) -> None:
    async with serve(workers=3) as running:
        await running.ready(3)
        response = await running.classify({"offer_id": "x", "title": "die"})
        assert response.status_code == 503
        assert await running.total("classifier_workers", state="ready") >= 1
        await until(lambda: sum(slot.restarts["killed"] for slot in running.slots) == 2)


async def test_a_request_whose_only_worker_dies_ends_as_503(serve: Any) -> None:
    async with serve() as running:
        await running.ready()
        response = await running.classify({"offer_id": "x", "title": "die"})
        assert response.status_code == 503
        assert response.json() == {"error": "no worker was left to answer; /readyz says why"}


async def test_a_request_without_an_answer_ends_in_time(serve: Any) -> None:
    timing = Timing(answer=0.3, margin=0, tick=0.05)
    async with serve(timing=timing, drain_seconds=0) as running:
        await running.ready()
        response = await running.classify({"offer_id": "x", "title": "hang"})
        assert response.status_code == 503
        assert response.json() == {"error": "the worker did not answer within 0 seconds"}


@pytest.mark.parametrize(
    ("mode", "status", "error"),
    [
        ("full", 429, "the worker's own queue is full"),
        ("broken", 500, "the engine failed"),
        ("short", 500, "the worker did not answer every offer"),
    ],
)
async def test_a_refusal_of_the_worker_reaches_the_client(
    serve: Any, mode: str, status: int, error: str
) -> None:
    async with serve(mode) as running:
        await running.ready()
        response = await running.classify(OFFER)
        assert (response.status_code, response.json()) == (status, {"error": error})


# Probes and reports


async def test_readiness_names_what_each_worker_lacks_without_its_secrets(serve: Any) -> None:
    async with serve("unready", workers=2) as running:
        await until(lambda: all(slot.status for slot in running.slots))
        response = await running.client.get("/readyz")
        assert response.status_code == 503
        content = response.json()
        assert content["ready"] is False
        assert content["reasons"] == [
            "worker 0: mongodb://ann:***@db is away",
            "worker 1: mongodb://ann:***@db is away",
        ]
        assert "s3cr3t" not in response.text
        assert [worker["joined"] for worker in content["workers"]] == [True, True]
        assert [worker["mongodb"] for worker in content["workers"]] == [False, False]


async def test_one_ready_worker_makes_the_service_ready(serve: Any) -> None:
    async with serve(workers=2) as running:
        await running.ready(2)
        os.kill(running.process(1).pid, signal.SIGKILL)
        await until(lambda: running.slots[1].process is None)
        assert (await running.client.get("/readyz")).status_code == 200


async def test_a_silent_worker_is_not_ready_before_it_is_killed(serve: Any) -> None:
    timing = Timing(fresh=0.5, margin=0, tick=0.05)
    async with serve(timing=timing, drain_seconds=0) as running:
        await running.ready()
        os.kill(running.process().pid, signal.SIGSTOP)
        await running.ready(0)
        (reason,) = (await running.get("/readyz"))["reasons"]
        assert reason.startswith("worker 0: silent for ")


async def test_liveness_is_false_while_a_killed_worker_does_not_die(serve: Any) -> None:
    async with serve() as running:
        await running.ready()
        running.slots[0].killed = "silent for 300 s"
        response = await running.client.get("/healthz")
        assert response.status_code == 503
        assert response.json() == {
            "alive": False,
            "reasons": ["worker 0 is silent for 300 s and does not die"],
        }
        running.slots[0].killed = ""


async def test_model_and_categories_are_those_of_the_artefact(
    serve: Any, unrun_model: Path
) -> None:
    async with serve(promotion=7) as running:
        await running.ready()
        report = await running.get("/model")
        assert report["artifact"] == unrun_model.name
        assert report["labels"] == 2
        assert report["promotion"] == 7
        assert report["workers"]["0"]["artifact"] == "0" * 16
        assert await running.get("/categories") == {
            "taxonomy": "t1",
            "categories": [
                {
                    "id": "kettles",
                    "names": {"en": "Kettles", "fr": "Bouilloires"},
                    "parents": ["kitchen"],
                },
                {"id": "sofas", "names": {}, "parents": []},
            ],
        }


async def test_probes_answer_while_every_worker_computes(serve: Any) -> None:
    async with serve(workers=2) as running:
        await running.ready(2)
        asks = [
            asyncio.create_task(running.classify({"offer_id": "x", "title": "hang"}))
            for _ in range(2)
        ]
        await until(lambda: running.supervisor.pool._seated == 2)
        took = []
        for _ in range(20):
            began = time.perf_counter()
            assert (await running.client.get("/healthz")).status_code == 200
            assert (await running.client.get("/metrics")).status_code == 200
            took.append(time.perf_counter() - began)
        assert max(took) < 1
        for slot in running.slots:
            assert slot.process is not None
            slot.process.kill()
        assert [(await ask).status_code for ask in asks] == [503, 503]
