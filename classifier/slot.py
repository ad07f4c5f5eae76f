"""A slot: the place of one worker, the process that fills it now, and what that one says."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter
from dataclasses import dataclass, field

from classifier import log
from classifier.link import Answer, Ask, ModelInfo, Status, SupervisorLink
from classifier.reports import WorkerReport

_numbers = itertools.count(1)


@dataclass(eq=False)
class Slot:
    """One worker's place. Times are the event loop's clock, in seconds."""

    number: int
    # A worker that was silent for so long gets no requests; for so long, it hangs.
    fresh: float
    stall: float

    process: asyncio.subprocess.Process | None = None
    line: SupervisorLink | None = None
    status: Status | None = None
    # When it last spoke.
    heard: float = 0
    # By when it must be connected, while it is not.
    connect_by: float = 0
    asks: dict[int, asyncio.Future[Answer | None]] = field(default_factory=dict)
    # Why it was killed, until it is dead.
    killed: str = ""
    # Why the last one ended, until the next is ready.
    ended: str = ""
    restarts: Counter[str] = field(default_factory=Counter)

    def connect(self, line: SupervisorLink, now: float) -> None:
        self.line, self.heard = line, now

    def disconnect(self, connect_by: float = 0) -> None:
        """Forget what the worker said; whoever waits for an answer gets None."""
        self.line = self.status = None
        self.connect_by = connect_by
        for answer in self.asks.values():
            if not answer.done():
                answer.set_result(None)

    def tell(self, status: Status) -> bool:
        """Take a worker's word; True where it is ready now and was not before."""
        before = self.status is not None and self.status.ready
        self.status = status
        if status.ready:
            self.ended = ""
        return status.ready and not before

    def answer(self, answer: Answer) -> None:
        """Hand an answer to whoever waits for it, if anyone still does."""
        waiting = self.asks.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def ask(self, offers: list[bytes], seconds: float) -> Answer | None:
        """Give the worker's answer, or None where it is gone. Raises TimeoutError."""
        if self.line is None:
            return None
        number = next(_numbers)
        answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self.asks[number] = answer
        try:
            async with asyncio.timeout(seconds):
                if not await self.line.send(Ask(number, offers)):
                    return None
                return await answer
        finally:
            del self.asks[number]

    def end(self, code: int) -> str:
        """Take note that the process ended with this code; give "exited", "killed" or "stalled"."""
        why = "stalled" if self.killed else "killed" if code < 0 else "exited"
        self.ended = self.killed or _ending(code)
        self.killed = ""
        return why

    def ready(self, now: float) -> bool:
        """Say whether it may be asked: it says that it is ready, and said so just now."""
        return (
            self.line is not None
            and self.status is not None
            and self.status.ready
            and not self.killed
            and now - self.heard <= min(self.fresh, self.stall)
        )

    def hanging(self, now: float) -> str:
        """Say how the worker hangs; nothing where it does not, or an outage explains it."""
        if self.process is None:
            return ""
        if self.line is None:
            return "not connected in time" if now > self.connect_by else ""
        if now - self.heard > self.stall:
            return f"silent for {now - self.heard:.0f} s"
        status = self.status
        if status is None or not status.in_flight or status.waiting_on:
            return ""
        if status.idle_s > self.stall:
            return f"stuck with {status.in_flight} offers for {status.idle_s:.0f} s"
        return ""

    def report(self, now: float) -> WorkerReport:
        status, ready = self.status, self.ready(now)
        state = status.state if status else "starting" if self.process else "absent"
        return WorkerReport(
            slot=self.number,
            state=state,
            ready=ready,
            golden=status is not None and status.golden,
            joined=status is not None and status.joined,
            mongodb=status is not None and status.mongodb,
            waiting_on=status.waiting_on if status else [],
            in_flight=status.in_flight if status else 0,
            restarts=self.restarts.total(),
            reasons=[] if ready else self._reasons(now) or [f"is {state}"],
            model=self.model(),
        )

    def model(self) -> ModelInfo | None:
        return self.status.model if self.status is not None else None

    def _reasons(self, now: float) -> list[str]:
        reasons = [log.mask_uri(reason) for reason in self.status.reasons] if self.status else []
        if self.killed:
            reasons.append(f"{self.killed}, killed")
        elif self.ended:
            reasons.append(f"the last one {self.ended}")
        if self.process is not None and self.line is None:
            reasons.append("has not connected yet")
        elif self.status is not None and self.status.ready:
            reasons.append(f"silent for {now - self.heard:.0f} s")
        return reasons


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
