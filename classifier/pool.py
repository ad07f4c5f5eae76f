"""The pool: all workers together, as the endpoints ask them and show them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from classifier import link, log, metrics
from classifier.artifact import Artifact
from classifier.gauges import Gauges
from classifier.http import BusyError, FailedError, UnavailableError
from classifier.reports import Categories, Category, Health, ModelReport, Readiness
from classifier.settings import Settings
from classifier.slot import Slot

# A request that kills a worker may be the cause: it gets one more, not all of them.
_MOST_DEATHS: Final = 1


class Pool:
    """The slots of all workers, and what they are asked and say together: see http.Service.

    `directory` holds their metrics. Once `stopping` is set, none is asked. Seconds: a worker that
    was silent for `fresh` is not asked, and an answer is waited for no longer than `answer`.
    """

    def __init__(
        self,
        settings: Settings,
        artifact: Artifact,
        directory: Path,
        stopping: asyncio.Event,
        *,
        fresh: float,
        answer: float,
    ):
        self._settings = settings
        self._artifact = artifact
        self._directory = directory
        self._stopping = stopping
        self._patience = answer
        self.slots = [
            Slot(number, fresh, settings.stall_seconds) for number in range(settings.workers)
        ]
        self._seated = 0
        self._requests: Counter[int] = Counter()
        self._categories = Categories(
            taxonomy=artifact.manifest.taxonomy,
            categories=[
                Category(id=label.id, names=label.names, parents=list(label.parents))
                for label in artifact.labels
            ],
        )

    @contextmanager
    def seat(self) -> Iterator[None]:
        """Hold a seat for one interactive request, from before its body is read to its answer."""
        if self._next(set()) is None:
            raise UnavailableError("no worker is ready; /readyz says why")
        most = self._settings.interactive_queue
        if self._seated >= most:
            raise BusyError(f"{most} requests are being answered or wait; try again")
        self._seated += 1
        try:
            yield
        finally:
            self._seated -= 1

    async def classify(self, offers: list[bytes]) -> Sequence[link.Result]:
        """Have a ready worker, the one with the fewest requests, classify the offers.

        A request whose worker dies, or is full or leaving, goes to another one.
        """
        tried: set[int] = set()
        deaths, refusal = 0, ""
        while deaths <= _MOST_DEATHS and (slot := self._next(tried)) is not None:
            tried.add(slot.number)
            try:
                answer = await slot.ask(offers, self._patience)
            except TimeoutError:
                raise UnavailableError(
                    f"the worker did not answer within {self._patience:.0f} seconds"
                ) from None
            if answer is None:
                deaths += 1
            elif answer.results is None:
                refusal = log.mask_uri(answer.error or "no reason given")
                if not answer.retry:
                    raise FailedError(refusal)
            elif len(answer.results) != len(offers):
                raise FailedError("the worker did not answer every offer")
            else:
                return answer.results
        if refusal:
            raise BusyError(refusal)
        raise UnavailableError("no worker was left to answer; /readyz says why")

    def answered(self, status: int) -> None:
        """Count a request to /classify by its HTTP status."""
        self._requests[status] += 1

    def health(self) -> Health:
        """Dead only where the container must be restarted: a worker hangs and survives its kill.

        A worker that crashes, waits on an outage or is being replaced is no reason.
        """
        reasons = [
            f"worker {slot.number} is {slot.killed} and does not die"
            for slot in self.slots
            if slot.killed
        ]
        return Health(alive=not reasons, reasons=reasons)

    def readiness(self) -> Readiness:
        """Give what each worker needs, and whether one of them has it all."""
        now = asyncio.get_running_loop().time()
        workers = [slot.report(now) for slot in self.slots]
        reasons = [
            f"worker {worker.slot}: {reason}" for worker in workers for reason in worker.reasons
        ]
        if self._stopping.is_set():
            reasons.insert(0, "the service is stopping")
        ready = not self._stopping.is_set() and any(worker.ready for worker in workers)
        return Readiness(ready=ready, reasons=reasons, workers=workers)

    def model(self) -> ModelReport:
        """Give the artefact of the start and what each worker has loaded."""
        manifest = self._artifact.manifest
        return ModelReport(
            artifact=manifest.id,
            kind=manifest.kind,
            target=manifest.target,
            precision=manifest.precision,
            checkpoint=manifest.checkpoint,
            created_at=manifest.created_at,
            data=manifest.data,
            taxonomy=manifest.taxonomy,
            labels=len(self._artifact.labels),
            max_tokens=manifest.max_tokens,
            temperature=manifest.temperature,
            threshold=manifest.threshold,
            versions=manifest.versions,
            promotion=self._settings.promotion,
            workers={str(slot.number): slot.model() for slot in self.slots},
        )

    def categories(self) -> Categories:
        """Give what the artefact of the start can answer."""
        return self._categories

    async def exposition(self) -> bytes:
        """Give what the workers counted, in all their lives, and how they are now."""
        now = asyncio.get_running_loop().time()
        gauges = Gauges(self.slots, now, self._seated, self._requests)
        return await asyncio.to_thread(metrics.scrape, self._directory, gauges)

    def _next(self, tried: set[int]) -> Slot | None:
        """Give the ready slot with the fewest requests that was not tried."""
        if self._stopping.is_set():
            return None
        now = asyncio.get_running_loop().time()
        ready = (slot for slot in self.slots if slot.number not in tried and slot.ready(now))
        return min(ready, key=lambda slot: len(slot.asks), default=None)
