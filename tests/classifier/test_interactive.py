"""What /classify is told is what the stream would store, and nothing is stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from classifier import link, metrics
from classifier.artifact import Artifact
from classifier.engine_thread import EngineThread
from classifier.interactive import classify
from classifier.model import Model
from classifier.outage import Outages
from classifier.record import Reason
from tests.classifier import toy


def value(offer_id: str, **fields: object) -> bytes:
    return json.dumps({"offer_id": offer_id, **fields}).encode()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return toy.publish(tmp_path_factory.mktemp("toy"), threshold=0.9)


@pytest.fixture
async def engine(published: Artifact) -> AsyncIterator[EngineThread]:
    model = Model(published, toy.Engine(), cache_offers=10, batch_tokens=24, alternatives=2)
    loop = asyncio.get_running_loop()
    engine = EngineThread(model, 0.25, Outages(), metrics.in_process(), loop)
    yield engine
    await asyncio.to_thread(engine.close)


async def test_answer_has_everything_and_is_the_models_own(engine: EngineThread) -> None:
    (result,) = await classify(engine, [value("k-1", title="Kettle", description="steel")])
    (expected,) = engine.model.predict(["Kettle | steel"])
    assert expected is not None
    assert result == link.Classified(
        offer_id="k-1",
        category_id="kettles",
        score=expected.score,
        alternatives=[link.Alternative(*other) for other in expected.alternatives],
        status=expected.status,
        model=engine.model.artifact.manifest.id,
        taxonomy="toy-1",
    )


async def test_answers_come_in_the_order_of_the_offers_bad_ones_in_their_places(
    engine: EngineThread,
) -> None:
    results = await classify(
        engine,
        [
            value("1", title="Sofa"),
            b"{",
            value("2", title="4012345678901"),
            value("3", title="Crash"),
            b'{"title": "Sofa"}',
            value("4", title="Tent"),
            b"[" * 100,
            value("5", title="Sofa"),
            '{"offer_id": "é"}'.encode("latin-1"),
        ],
    )
    told = [
        (result.offer_id, result.category_id)
        if isinstance(result, link.Classified)
        else (result.offer_id, result.error.reason)
        for result in results
    ]
    assert told == [
        ("1", "sofas"),
        (None, Reason.JSON.value),
        ("2", Reason.NO_TEXT.value),
        ("3", Reason.INFERENCE.value),
        (None, Reason.SCHEMA.value),
        ("4", "tents"),
        (None, Reason.NESTING.value),
        ("5", "sofas"),
        (None, Reason.ENCODING.value),
    ]
    assert all(result.error.detail for result in results if isinstance(result, link.Refused))


async def test_no_offers_are_no_answers(engine: EngineThread) -> None:
    assert await classify(engine, []) == []
    assert await classify(engine, [b"{"]) != []


async def test_offer_seen_before_is_answered_without_the_engine(engine: EngineThread) -> None:
    first = await classify(engine, [value("1", title="Sofa")])
    moved = engine.last_call
    again = await classify(engine, [value("1", title="Sofa", revision=7)])
    assert again == first
    assert engine.last_call == moved


async def test_status_is_that_of_the_artefacts_threshold(engine: EngineThread) -> None:
    sure, unsure = await classify(
        engine, [value("1", title="Sofa"), value("2", title="steel steel steel Sofa")]
    )
    assert isinstance(sure, link.Classified)
    assert isinstance(unsure, link.Classified)
    assert (sure.status, unsure.status) == ("classified", "uncertain")


async def test_many_may_ask_at_once(engine: EngineThread) -> None:
    names = {"Sofa": "sofas", "Tent": "tents", "Kettle": "kettles"}
    asks = [
        (name, classify(engine, [value(f"{turn}", title=f"{name} {'blue ' * (turn % 3)}")]))
        for turn in range(20)
        for name in names
    ]
    answers = await asyncio.gather(*(ask for _, ask in asks))
    for (name, _), (result,) in zip(asks, answers, strict=True):
        assert isinstance(result, link.Classified)
        assert result.category_id == names[name]
