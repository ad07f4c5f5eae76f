"""The encoder path: the whole worker against ONNX Runtime alone on the same batches.

    python -m benchmarks.encoder [--offers 2000]

A random-weight model of six layers and 384 width, one engine thread, no cache. By wall clock, since
the worker overlaps everything else with the engine. The speed of a shared machine moves by a tenth
within a minute, so the two take turns: each of the worker's rounds is held against the mean of ONNX
Runtime just before and just after it, and the median round counts.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.bounds import command
from benchmarks.load import Record, new_offers, produce
from benchmarks.models import student_size
from benchmarks.service import Service, acknowledging, serving, until
from classifier.demo.servers import create_topic, embedded_broker
from classifier.model import Model
from classifier.offer import Offer
from classifier.record import decode_offer
from classifier.tokens import pad

REQUIRED = 0.95
ROUNDS = 3
FETCH = 500
"""Records of one fetched batch, so that both sides see the same ones."""

Feeds = dict[str, np.ndarray]


def batches(records: Sequence[Record], artifact: Path) -> list[Feeds]:
    """The engine calls that the worker makes for these records, as ONNX Runtime takes them."""
    model = Model.load(artifact, threads=1)
    calls: list[Feeds] = []
    for start in range(0, len(records), FETCH):
        offers = [decode_offer(value) for _, value in records[start : start + FETCH]]
        texts = [model.recipe.text(offer) for offer in offers if isinstance(offer, Offer)]
        question = model.prepare(texts)
        for call in question.calls:
            rows = [question.ids[row] for row in call.rows]
            ids, lengths = pad(rows, call.length, model.pad_id)
            mask = np.arange(call.length) < lengths[:, None]
            calls.append(
                {"input_ids": ids.astype(np.int64), "attention_mask": mask.astype(np.int64)}
            )
    model.close()
    return calls


def alone(artifact: Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime with its defaults and one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        str(artifact / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )


def timed(session: onnxruntime.InferenceSession, calls: Sequence[Feeds]) -> float:
    """Seconds that the session takes for the calls."""
    started = time.monotonic()
    for feeds in calls:
        session.run(None, feeds)
    return time.monotonic() - started


def measure(offers: int = 2_000) -> list[str]:
    """Prints both rates and their ratio, a round of `offers` a line; gives what falls short."""
    # The same texts in each round, under other ids.
    records = new_offers(2, ROUNDS * offers, offers)
    parts = [records[start : start + offers] for start in range(0, len(records), offers)]
    ratios = []
    with tempfile.TemporaryDirectory() as directory:
        artifact = student_size(Path(directory))
        calls, *others = (batches(part, artifact) for part in parts)
        shapes = [feeds["input_ids"].shape for feeds in calls]
        if any([feeds["input_ids"].shape for feeds in other] != shapes for other in others):
            raise RuntimeError("the rounds are not of the same texts")
        tokens = sum(rows * length for rows, length in shapes)
        print(f"{offers:,} offers a round, {tokens / offers:.1f} tokens each with padding")
        session = alone(artifact)
        session.run(None, calls[0])
        with embedded_broker() as kafka, acknowledging() as (mongodb, written):
            asyncio.run(create_topic(kafka, "offers", 1))
            settings = {"engine_threads": 1, "cache_offers": 0, "fetch_offers": FETCH}
            with serving(kafka, mongodb, artifact, **settings) as service:
                before = timed(session, calls)
                for number, part in enumerate(parts):
                    seconds = _worker(service, kafka, written, part, number * offers)
                    _same_calls(service, (number + 1) * offers, (number + 1) * tokens)
                    after = timed(session, calls)
                    ratios.append((before + after) / 2 / seconds)
                    print(
                        f"ONNX Runtime alone {offers / before:,.1f} and {offers / after:,.1f}"
                        f" offers/s, the worker {offers / seconds:,.1f}: {ratios[-1]:.3f}"
                    )
                    before = after
    ratio = statistics.median(ratios)
    print(f"ratio: {ratio:.3f} (required {REQUIRED})")
    return [f"ratio {ratio:.3f}, required {REQUIRED}"] if ratio < REQUIRED else []


def _worker(
    service: Service,
    kafka: str,
    written: Callable[[], dict[str, int]],
    records: Sequence[Record],
    already: int,
) -> float:
    """Seconds from Kafka to the acknowledged write of all records."""
    with service.stopped():
        asyncio.run(produce(kafka, records))
    started = time.monotonic()
    until(lambda: written()["ids"] == already + len(records), "all written")
    return time.monotonic() - started


def _same_calls(service: Service, offers: int, tokens: int) -> None:
    """Raises RuntimeError unless the worker's calls were as large as those of `batches`."""
    until(lambda: service.counter("classifier_offers_total") == offers, "all counted")
    found = service.counter("classifier_batch_tokens_sum")
    if found != tokens:
        raise RuntimeError(
            f"the worker computed {found:,.0f} tokens, padding included, not {tokens:,}"
        )


if __name__ == "__main__":
    command(measure)
