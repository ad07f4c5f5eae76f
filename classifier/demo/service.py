"""The production service as a process of its own, watched over its own HTTP endpoints."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from classifier.demo import DemoError
from classifier.demo.servers import tied

_COMMAND = (sys.executable, "-m", "classifier", "serve")
_READY_SECONDS = 90.0
_STOP_SECONDS = 60.0


class EndedError(DemoError):
    """The service ended by itself, with an exit code of classifier.exit_codes."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Snapshot:
    """What the metrics said at one moment, summed over the workers."""

    outcomes: Mapping[str, int]  # records that are done, by what became of them
    lag: int  # records on the topic that are not done
    ages: tuple[tuple[float, float], ...]  # offer age: (at most so many seconds, how many offers)

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())

    def age(self, quantile: float) -> float | None:
        """Seconds from an offer's Kafka timestamp to its acknowledged write, within a bucket by
        linear interpolation, as Prometheus' histogram_quantile does. None without any offer.
        """
        total = self.ages[-1][1] if self.ages else 0.0
        if not total:
            return None
        lower = below = 0.0
        for upper, count in self.ages:
            if count >= quantile * total:
                if upper == float("inf"):
                    return lower
                share = (quantile * total - below) / (count - below) if count > below else 1.0
                return lower + (upper - lower) * share
            lower, below = upper, count
        return lower


def snapshot(exposition: str) -> Snapshot:
    """Read a snapshot from Prometheus' text format."""
    outcomes: dict[str, int] = {}
    lag = 0.0
    ages: list[tuple[float, float]] = []
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == "classifier_offers_total":
                outcomes[sample.labels["outcome"]] = int(sample.value)
            elif sample.name == "classifier_lag_records":
                lag += sample.value
            elif sample.name == "classifier_offer_age_seconds_bucket":
                ages.append((float(sample.labels["le"]), sample.value))
    return Snapshot(outcomes, int(lag), tuple(sorted(ages)))


class Service:
    """A service that runs."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self._log = log
        self.port = port
        self.pid = process.pid

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an endpoint; status 0 while nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def snapshot(self) -> Snapshot | None:
        """The metrics now; None when they cannot be read at this moment."""
        self.check()
        status, body = self.get("/metrics")
        return snapshot(body) if status == 200 else None

    def check(self) -> None:
        """Raises EndedError when the process has ended."""
        code = self._process.poll()
        if code is not None:
            message = f"the service ended with exit code {code}: {self._last_line()}"
            raise EndedError(code, message)

    def wait_until_ready(self) -> None:
        """Raises DemoError with the service's own reasons when it does not get ready in time."""
        deadline = time.monotonic() + _READY_SECONDS
        body = ""
        while time.monotonic() < deadline:
            self.check()
            status, body = self.get("/readyz")
            if status == 200:
                return
            time.sleep(0.1)
        raise DemoError(f"the service did not get ready in {_READY_SECONDS:.0f} s: {reasons(body)}")

    def stop(self) -> None:
        """Ask it to end, and wait. Raises DemoError unless it ends with 0."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the service did not end within {_STOP_SECONDS:.0f} s") from None
        if code:
            raise DemoError(f"the service ended with exit code {code}: {self._last_line()}")

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        # What it says at the end is that it stopped; the reason is the first error before that.
        return next((line for line in lines if "[error " in line), lines[-1])[:500]


def reasons(readyz: str) -> str:
    """What the body of /readyz says is missing."""
    try:
        said = json.loads(readyz)
        listed = [
            *said["reasons"],
            *(why for worker in said["workers"] for why in worker["reasons"]),
        ]
    except (ValueError, KeyError, TypeError):
        return "it does not answer"
    return "; ".join(dict.fromkeys(map(str, listed))) or "it gives no reason"


@contextlib.contextmanager
def running(settings: Mapping[str, str]) -> Iterator[Service]:
    """`classifier serve` with these settings as environment variables; ended with the context."""
    with tempfile.TemporaryDirectory(prefix="classifier-demo-") as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*tied("SIGTERM"), *_COMMAND],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings},
                # Ctrl-C is for the demo, which then stops the service in its own order.
                start_new_session=True,
            )
        try:
            yield Service(process, int(settings["HTTP_PORT"]), log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        # Its workers see their supervisor go, and end by themselves.
        process.kill()
        process.wait()
