"""The encoder path: the whole worker against ONNX Runtime alone on the same batches.

    python -m benchmarks.encoder [--offers 5000]

A random-weight model of six layers and 384 width, one engine thread, no cache. By wall clock, since
the worker overlaps everything else with the engine; ONNX Runtime is timed before and after it, and
the faster of the two is what the worker is held against.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.bounds import command
from benchmarks.load import Record, new_offers, produce
from benchmarks.models import student_size
from benchmarks.service import acknowledging, serving, until
from classifier.demo.servers import create_topic, embedded_broker
from classifier.model import Model
from classifier.offer import Offer
from classifier.record import decode_offer
from classifier.tokens import pad

REQUIRED = 0.95
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


def alone(artifact: Path, calls: Sequence[Feeds]) -> float:
    """Seconds that ONNX Runtime takes for the calls, with its defaults and one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(artifact / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, calls[0])
    started = time.monotonic()
    for feeds in calls:
        session.run(None, feeds)
    return time.monotonic() - started


def measure(offers: int = 5_000) -> list[str]:
    """Prints both rates and their ratio; gives what falls short."""
    records = new_offers(2, offers, offers)
    with tempfile.TemporaryDirectory() as directory:
        artifact = student_size(Path(directory))
        calls = batches(records, artifact)
        before = alone(artifact, calls)
        with embedded_broker() as kafka, acknowledging() as (mongodb, written):
            asyncio.run(create_topic(kafka, "offers", 1))
            settings = {"engine_threads": 1, "cache_offers": 0, "fetch_offers": FETCH}
            with serving(kafka, mongodb, artifact, **settings) as service:
                with service.stopped():
                    asyncio.run(produce(kafka, records))
                started = time.monotonic()
                until(lambda: written()["ids"] == offers, "all written")
                seconds = time.monotonic() - started
        after = alone(artifact, calls)
    reference = min(before, after)
    tokens = sum(feeds["input_ids"].size for feeds in calls)
    print(f"{offers:,} offers, {tokens / offers:.1f} tokens each with padding, {len(calls)} calls")
    print(f"ONNX Runtime alone: {offers / before:,.1f} and {offers / after:,.1f} offers/s")
    print(f"the worker, Kafka to acknowledged write: {offers / seconds:,.1f} offers/s")
    ratio = reference / seconds
    print(f"ratio: {ratio:.3f} (required {REQUIRED})")
    return [f"ratio {ratio:.3f}, required {REQUIRED}"] if ratio < REQUIRED else []


if __name__ == "__main__":
    command(measure)
