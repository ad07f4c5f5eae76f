"""Records through the running service, watched until the last one is done."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from classifier import produce as producing
from classifier.client import client_settings
from classifier.demo import DemoError, report, service
from classifier.demo.place import WINDOW
from classifier.produce import Record
from classifier.settings import Settings

STALL_SECONDS = 90.0
"""With no record done for so long, something is broken."""
_LOOK_SECONDS = 0.2
_LINE_SECONDS = 5.0

_PATHS = ("/healthz", "/readyz", "/model", "/metrics")


def stream(
    records: Iterator[Record],
    total: int | None,
    settings: Settings,
    console: Console,
    measuring: Callable[[service.Service], AbstractContextManager[object]] = nullcontext,
) -> report.Run:
    """Start the service, send the records, and watch until the last is done.

    `total` is how many there will be, where that is known. `measuring` is open from before the
    first record to when the last one is done. Raises DemoError when the service ends, does not get
    ready or does nothing for STALL_SECONDS.
    """
    say = saying(console)
    environment = {
        name.upper(): value
        for name, value in msgspec.json.decode(settings.worker_json()).items()
        if value is not None
    }
    with service.running({name: str(value) for name, value in environment.items()}) as serving:
        serving.wait_until_ready()
        say(f"service at http://127.0.0.1:{serving.port}, ready")
        with measuring(serving):
            started = time.perf_counter()
            sending = _Sending(records, settings)
            try:
                last = _watch(serving, sending, total, console)
            finally:
                sending.stop()
            seconds = time.perf_counter() - started
        answers = {}
        for path in _PATHS:
            status, body = serving.get(path)
            url = f"http://127.0.0.1:{serving.port}{path}"
            answers[url] = (status, _beginning(body))
        serving.stop()
    return report.Run(seconds, last, answers)


def _beginning(body: str) -> str:
    """The first line that is no comment."""
    lines = (line for line in body.splitlines() if not line.startswith("#"))
    return next(lines, "")[:80]


class _Sending:
    """Sends the records from a thread, no more than WINDOW ahead of the service."""

    def __init__(self, records: Iterator[Record], settings: Settings) -> None:
        self._records = records
        self._settings = settings
        self._may_go = threading.Condition()
        self._done = 0
        self._drawn = 0
        self._stopped = False
        self._error: Exception | None = None
        self.too_large = 0
        self.finished = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        """Records that were sent so far, or are about to be."""
        return self._drawn - self.too_large

    def done(self, count: int) -> None:
        """So many are done; more may be sent. Raises what the sending ended with."""
        if self._error is not None:
            raise DemoError(str(self._error)) from self._error
        with self._may_go:
            self._done = count
            self._may_go.notify()

    def stop(self) -> None:
        """End, whatever is left to send."""
        with self._may_go:
            self._stopped = True
            self._may_go.notify()
        self._thread.join(30)

    def _held_back(self) -> Iterator[Record]:
        for record in self._records:
            # The producer draws a record only when those before its chunk are acknowledged, so
            # its loop has nothing to do while this waits.
            with self._may_go:
                self._may_go.wait_for(lambda: self._stopped or self._drawn - self._done < WINDOW)
                if self._stopped:
                    return
            self._drawn += 1
            yield record

    def _run(self) -> None:
        try:
            counts = asyncio.run(
                producing.produce(
                    self._held_back(), self._settings.kafka_topic, client_settings(self._settings)
                )
            )
            self.too_large = counts.too_large
            self.finished = True
        except Exception as error:  # noqa: BLE001 raised again where the demo waits for it
            self._error = error


def _watch(
    serving: service.Service, sending: _Sending, total: int | None, console: Console
) -> service.Snapshot:
    """Show the progress until all is done; gives the last metrics."""
    started = moved = spoken = time.perf_counter()
    done = 0
    last = service.Snapshot({}, 0, ())
    with Live(console=console, transient=True, refresh_per_second=8) as live:
        while not (sending.finished and done >= sending.count):
            time.sleep(_LOOK_SECONDS)
            now = time.perf_counter()
            last = serving.snapshot() or last
            if last.done > done:
                done, moved = last.done, now
            sending.done(done)
            line = _line(last, sending.count, total, done / (now - started))
            live.update(Text(line, no_wrap=True, overflow="ellipsis"))
            if not console.is_terminal and now - spoken > _LINE_SECONDS:
                spoken = now
                saying(console)(line)
            if now - moved > STALL_SECONDS:
                _, body = serving.get("/readyz")
                raise DemoError(
                    f"no record was done for {STALL_SECONDS:.0f} s, after {done:,}: "
                    f"{service.reasons(body)}"
                )
    return last


def _line(last: service.Snapshot, sent: int, total: int | None, rate: float) -> str:
    outcomes = last.outcomes
    of = f" of {total:,}" if total else ""
    return (
        f"{last.done:,}{of} records done, {rate:,.0f}/s, "
        f"{max(0, sent - last.done):,} on their way, lag {last.lag:,}, "
        f"{outcomes.get('uncertain', 0):,} uncertain, "
        f"{outcomes.get('dead_letter', 0):,} dead letters"
    )


def saying(console: Console) -> Callable[[str], None]:
    """Prints lines as they are, whatever they hold."""
    return lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)
