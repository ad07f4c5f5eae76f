"""Interactive requests: offers of `POST /classify`, answered now and stored nowhere."""

from __future__ import annotations

import asyncio

from classifier import link
from classifier.engine_thread import EngineThread
from classifier.offer import Offer
from classifier.record import INFERENCE_DETAIL, NO_TEXT_DETAIL, Reason, decode_offer


async def classify(engine: EngineThread, offers: list[bytes]) -> list[link.Result]:
    """The same way as a record's: decode, text, cache, tokens, engine; but nothing stored."""
    model, manifest = engine.model, engine.model.artifact.manifest
    decoded = [decode_offer(value) for value in offers]
    good = [offer for offer in decoded if isinstance(offer, Offer)]
    asked = await asyncio.to_thread(model.ask, good)
    await engine.compute(asked.question, lambda: True, interactive=True)
    answers = dict(zip(asked.indexes, asked.question.answers, strict=True))
    results: list[link.Result] = []
    number = 0
    for offer in decoded:
        if not isinstance(offer, Offer):
            results.append(_refused(None, *offer))
            continue
        if number not in answers:
            results.append(_refused(offer.offer_id, Reason.NO_TEXT, NO_TEXT_DETAIL))
        elif (prediction := answers[number]) is None:
            results.append(_refused(offer.offer_id, Reason.INFERENCE, INFERENCE_DETAIL))
        else:
            results.append(
                link.Classified(
                    offer_id=offer.offer_id,
                    category_id=prediction.category_id,
                    score=prediction.score,
                    alternatives=[link.Alternative(*other) for other in prediction.alternatives],
                    status=prediction.status,
                    model=manifest.id,
                    taxonomy=manifest.taxonomy,
                )
            )
        number += 1
    return results


def _refused(offer_id: str | None, reason: Reason, detail: str) -> link.Refused:
    return link.Refused(offer_id=offer_id, error=link.Problem(str(reason), detail))
