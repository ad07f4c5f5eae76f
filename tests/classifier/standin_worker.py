"""A worker without Kafka, MongoDB or a model: it speaks the supervisor's line and counts.

Its argument says how it behaves; an offer whose title is a command makes it do that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from classifier import link

MODEL = link.ModelInfo(
    artifact="0" * 16,
    target="onnx-cpu",
    precision="fp32",
    taxonomy="t1",
    labels=2,
    promotion=7,
    created_at="2026-01-01T00:00:00+00:00",
)


def classified(offer: bytes) -> link.Result:
    try:
        content = msgspec.json.decode(offer)
        offer_id = content["offer_id"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return link.Refused(offer_id=None, error=link.Problem("not an offer", "no offer_id"))
    title = content.get("title", "")
    if title == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if title == "hang":
        time.sleep(600)
    return link.Classified(
        offer_id=offer_id,
        category_id="kettles",
        score=0.75,
        alternatives=[link.Alternative("sofas", 0.25)],
        status="classified",
        model=MODEL.artifact,
        taxonomy=MODEL.taxonomy,
    )


async def main(mode: str) -> int:
    settings = msgspec.json.decode(sys.stdin.read())
    assert settings["mongodb_uri"] == "mongodb://ann:s3cr3t@db"
    slot, directory = int(os.environ["CLASSIFIER_SLOT"]), Path(os.environ["CLASSIFIER_RUN_DIR"])
    # The secret came over standard input and by no other way.
    assert "s3cr3t" not in str(os.environ) + str(sys.argv)
    if mode.isdigit():
        return int(mode)
    if mode == "deaf":
        await asyncio.sleep(600)
    if mode == "counting":
        from classifier import metrics

        counted = metrics.for_worker(slot, directory)
    line = await link.WorkerLink.connect(
        directory / "supervisor.sock", slot, os.getpid() + (mode == "lying")
    )
    marker = Path(os.environ["STANDIN_MARKS"]) / f"{slot}.{os.getpid()}"
    marker.write_text("started")
    status = link.Status(
        slot=slot,
        pid=os.getpid(),
        state="running",
        model=MODEL,
        golden=True,
        joined=True,
        mongodb=mode != "unready",
        lag={f"offers/{slot}": 5 + slot},
        reasons=["mongodb://ann:s3cr3t@db is away"] if mode == "unready" else [],
    )
    if mode == "stuck":
        status = msgspec.structs.replace(status, in_flight=10, idle_s=99.0)
    if mode == "waiting":
        status = msgspec.structs.replace(
            status, in_flight=10, idle_s=99.0, waiting_on=["mongodb"], mongodb=False
        )

    async def report() -> None:
        while True:
            await line.send_status(status)
            if mode == "silent":
                return
            await asyncio.sleep(0.05)

    reports = asyncio.create_task(report())
    answers: set[asyncio.Task[None]] = set()

    async def answer(ask: link.Ask) -> None:
        if mode == "full":
            await line.refuse(ask.id, "the worker's own queue is full", retry=True)
            return
        if mode == "broken":
            await line.refuse(ask.id, "the engine failed", retry=False)
            return
        if mode == "short":
            await line.answer(ask.id, [])
            return
        if any(b'"slow"' in offer for offer in ask.offers):
            await asyncio.sleep(0.5)
        results = [classified(offer) for offer in ask.offers]
        if mode == "counting":
            counted.offers.inc("classified", len(results))
        await line.answer(ask.id, results)

    async for message in line:
        if isinstance(message, link.Stop):
            if mode == "stubborn":
                continue
            reports.cancel()
            await asyncio.gather(*answers)
            marker.write_text("drained")
            return 0
        task = asyncio.create_task(answer(message))
        answers.add(task)
        task.add_done_callback(answers.discard)
    marker.write_text("orphaned")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
