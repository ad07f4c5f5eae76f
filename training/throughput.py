"""Throughput: what a worker of the service did and took while a test set went through it.

Seconds of the clock hold whatever else the machine did: broker, database, whoever else ran there.
Processor seconds are the worker's own, so they tell models on a CPU apart where the clock cannot.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from classifier import cpu
from classifier.demo.service import Service
from training.stage import StageError

FILE = "throughput.json"

_PROC = Path("/proc")
_WORKER = b"classifier.worker"


class Throughput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """throughput.json: of a run of the service, from the first record sent to the last one done."""

    offers: int  # that were sent; fewer than the test set has where a killed run was gone on with
    workers: int
    seconds: float
    offers_per_second: float  # of one worker
    cpu_seconds: float | None  # of all workers, since they were ready; None: it cannot be told
    offers_per_cpu_second: float | None
    peak_memory_bytes: int | None  # of the largest worker, since its start
    stage_seconds: dict[str, float]  # classifier.metrics.STAGES, summed over batches and workers
    machine: str  # only what one machine measured is compared


@dataclass
class Meter:
    """What is measured while `measuring` is open; filled in at its end."""

    seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    stage_seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def measuring(self, service: Service) -> Iterator[None]:
        """Measures a service that is ready, until the block ends well."""
        before = _cpu_seconds(service.pid)
        started = time.perf_counter()
        yield
        self.seconds = time.perf_counter() - started
        after = _cpu_seconds(service.pid)
        # A worker that was replaced took its seconds with it.
        if before and before.keys() == after.keys():
            self.cpu_seconds = sum(after[pid] - before[pid] for pid in after)
        self.peak_memory_bytes = max(map(_peak, after), default=None)
        status, exposition = service.get("/metrics")
        if status == 200:
            self.stage_seconds = stage_seconds(exposition)

    def throughput(self, offers: int, workers: int) -> Throughput:
        """Of so many offers that so many workers have done."""
        return Throughput(
            offers=offers,
            workers=workers,
            seconds=round(self.seconds, 3),
            offers_per_second=round(offers / self.seconds / workers, 1),
            cpu_seconds=None if self.cpu_seconds is None else round(self.cpu_seconds, 2),
            offers_per_cpu_second=round(offers / self.cpu_seconds, 1) if self.cpu_seconds else None,
            peak_memory_bytes=self.peak_memory_bytes,
            stage_seconds=self.stage_seconds,
            machine=machine(),
        )


def read(path: Path) -> Throughput:
    """Reads throughput.json. Raises StageError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Throughput)
    except OSError as error:
        raise StageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StageError(f"{path}: is not what the endpoint stage wrote: {error}") from error


def machine() -> str:
    """This machine, as far as speed depends on it: the processor and how many may be used."""
    name = cpu.described().get("model name") or platform.machine()
    return f"{name}, {cpu.quota():g} CPUs"


def stage_seconds(exposition: str) -> dict[str, float]:
    """Seconds by stage from the service's metrics in Prometheus' text format."""
    return {
        sample.labels["stage"]: round(sample.value, 3)
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name == "classifier_stage_seconds_sum"
    }


def _cpu_seconds(ancestor: int) -> dict[int, float]:
    """User and system seconds of every worker below a process; none where there is no /proc."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for pid in _below(ancestor):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if _WORKER in (_PROC / str(pid) / "cmdline").read_bytes():
                user, system = _stat(pid)[11:13]
                found[pid] = (int(user) + int(system)) / tick
    return found


def _below(ancestor: int) -> list[int]:
    """All processes that descend from one."""
    parents: dict[int, int] = {}
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    below, latest = [], [ancestor]
    while latest:
        latest = [pid for pid, parent in parents.items() if parent in latest]
        below += latest
    return below


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything: the state first."""
    return (_PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def _peak(pid: int) -> int:
    """The most resident bytes that a process ever had; 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
