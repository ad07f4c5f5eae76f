"""Interactive requests: offers of `POST /classify`, answered now and stored nowhere."""

from __future__ import annotations

import asyncio

from classifier import link
from classifier.engine_thread import EngineThread
from classifier.offer import Offer
from classifier.pipeline import INFERENCE_DETAIL, NO_TEXT_DETAIL
from classifier.record import Reason, decode_offer


async def classify(engine: EngineThread, offers: list[bytes]) -> list[link.Result]:
    """The same road as a record's: decode, text, cache, tokens, engine; but nothing stored."""
    model, manifest = engine.model, engine.model.artifact.manifest
    results: list[link.Result | None] = []
    asked: list[tuple[int, Offer]] = []
    texts: list[str] = []
    for index, value in enumerate(offers):
        offer = decode_offer(value)
        if not isinstance(offer, Offer):
            results.append(_refused(None, *offer))
            continue
        text = model.recipe.text(offer)
        if text:
            asked.append((index, offer))
            texts.append(text)
            results.append(None)
        else:
            results.append(_refused(offer.offer_id, Reason.NO_TEXT, NO_TEXT_DETAIL))
    question = await asyncio.to_thread(model.prepare, texts)
    await engine.compute(question, lambda: True, interactive=True)
    for (index, offer), prediction in zip(asked, question.answers, strict=True):
        if prediction is None:
            results[index] = _refused(offer.offer_id, Reason.INFERENCE, INFERENCE_DETAIL)
            continue
        results[index] = link.Classified(
            offer_id=offer.offer_id,
            category_id=prediction.category_id,
            score=prediction.score,
            alternatives=[link.Alternative(*other) for other in prediction.alternatives],
            status=prediction.status,
            model=manifest.id,
            taxonomy=manifest.taxonomy,
        )
    return [result for result in results if result is not None]


def _refused(offer_id: str | None, reason: Reason, detail: str) -> link.Refused:
    return link.Refused(offer_id=offer_id, error=link.Problem(str(reason), detail))
