"""The engine's thread: the one owner of the engine, which everybody else hands questions to.

Fetched batches are computed in their order. Between two engine calls a question from a person or a
service that waits for the answer may go first, for at most a set share of the calls.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from classifier.batching import Call
from classifier.metrics import Metrics
from classifier.model import DeviceError, Model, Question
from classifier.outage import Outages

SERVICE = "engine"
RETRY_SECONDS = 1.0
DEVICE_SECONDS = 60.0
"""A device that fails for longer is given up, and with it the process."""


@dataclass(slots=True, eq=False)
class _Job:
    question: Question
    wanted: Callable[[], bool]
    asked_at: float
    calls: deque[Call]
    interactive: bool
    future: Future[None] = field(default_factory=Future)
    seconds: float = 0.0
    started: bool = False


class EngineThread:
    """Computes questions, one engine call after the other."""

    def __init__(
        self,
        model: Model,
        interactive_share: float,
        outages: Outages,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.model = model
        self._share = interactive_share
        self._outages = outages
        self._metrics = metrics
        self._loop = loop
        self._stream: deque[_Job] = deque()
        self._interactive: deque[_Job] = deque()
        self._credit = 0.0
        self._failing_since: float | None = None
        self._changed = threading.Condition()
        self._closed = False
        self.last_call = time.monotonic()
        """When a call of the stream ended: people's questions do not hide a stream that stands."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def compute(
        self, question: Question, wanted: Callable[[], bool], *, interactive: bool = False
    ) -> None:
        """Waits until the question is answered, or left unanswered since `wanted` said no."""
        if not question.calls:
            return
        job = _Job(question, wanted, time.monotonic(), deque(question.calls), interactive)
        with self._changed:
            self._queue(job).append(job)
            self._changed.notify()
        await asyncio.wrap_future(job.future)

    @property
    def interactive_waiting(self) -> int:
        """Interactive questions that are not answered yet."""
        return len(self._interactive)

    def close(self) -> None:
        """Ends the thread after the engine call that is running, and frees the engine."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self.model.close()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._turn(job)
            except BaseException as error:  # noqa: BLE001 the asker gets it, the thread lives on
                self._done(job, error)

    def _next(self) -> _Job | None:
        """The job whose call goes next; waits for one, None at the end.

        While both queues wait, every stream call earns the interactive queue its share of a call.
        """
        with self._changed:
            while not (self._stream or self._interactive or self._closed):
                self._changed.wait()
            if self._closed:
                return None
            if not self._interactive:
                self._credit = 1.0
                return self._stream[0]
            if not self._stream or self._credit >= 1.0:
                self._credit = max(0.0, self._credit - 1.0)
                return self._interactive[0]
            self._credit += self._share / (1 - self._share) if self._share < 1 else 1.0
            return self._stream[0]

    def _turn(self, job: _Job) -> None:
        started = time.monotonic()
        if not job.started:
            job.started = True
            self._metrics.stage_seconds.observe("queue", started - job.asked_at)
        if job.future.cancelled() or not job.wanted():
            self._done(job)
            return
        call = job.calls[0]
        try:
            self.model.compute(job.question, call)
        except DeviceError as error:
            # The offers are innocent: they wait, under the outage's name, for the device. Some
            # faults of a device stay with the process, so that in the end only a new one helps.
            self._failing_since = self._failing_since or started
            if started - self._failing_since > DEVICE_SECONDS:
                raise
            self._loop.call_soon_threadsafe(self._outages.began, SERVICE, str(error))
            self._metrics.retries.inc(SERVICE)
            time.sleep(RETRY_SECONDS)
            return
        self._failing_since = None
        if SERVICE in self._outages:
            self._loop.call_soon_threadsafe(self._outages.ended, SERVICE)
        ended = time.monotonic()
        job.seconds += ended - started
        if not job.interactive:
            self.last_call = ended
        self._metrics.batch_offers.observe(len(call.rows))
        self._metrics.batch_tokens.observe(len(call.rows) * call.length)
        job.calls.popleft()
        if not job.calls:
            self._metrics.stage_seconds.observe("infer", job.seconds)
            self._done(job)

    def _queue(self, job: _Job) -> deque[_Job]:
        return self._interactive if job.interactive else self._stream

    def _done(self, job: _Job, error: BaseException | None = None) -> None:
        with self._changed:
            self._queue(job).remove(job)
        if not job.future.set_running_or_notify_cancel():
            return  # the asker was cancelled meanwhile
        if error is None:
            job.future.set_result(None)
        else:
            job.future.set_exception(error)
