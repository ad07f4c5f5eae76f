"""The service: worker processes that are kept running, and one HTTP endpoint in front of them.

The supervisor computes nothing, so its loop always turns. Workers are spawned, never forked: no
library's threads or connections are ever copied. Each has a slot, which names its metrics; its
settings, secrets included, come over its standard input and appear in no argument, environment or
file. A worker that dies, or whose work stands still with no outage to explain it, is replaced. When
the supervisor dies, the workers see the end of their line to it, finish what they hold and leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from classifier import address, http, link, log, metrics
from classifier.address import AddressError
from classifier.artifact import Artifact, ArtifactError, resolve
from classifier.exit_codes import BAD_MODEL, BAD_SETTINGS, FAULT, STOPPED
from classifier.gauges import Gauges
from classifier.http import BusyError, FailedError, UnavailableError
from classifier.reports import Categories, Category, Health, ModelReport, Readiness
from classifier.run_directory import SOCKET, run_directory
from classifier.settings import Settings
from classifier.slot import Slot

WORKER: Final = (sys.executable, "-m", "classifier.worker")

# A request that kills a worker may be the cause: it gets one more, not all of them.
_MOST_DEATHS: Final = 1

_log = log.get("supervisor")


@dataclass(frozen=True)
class Timing:
    """The supervisor's own patience, in seconds."""

    # Restarts: at once would spin on a fault that stays; for ever longer would keep a worker away
    # after an outage is over.
    first_backoff: float = 1
    most_backoff: float = 30
    # A worker that ran for so long failed for a new reason.
    steady: float = 60
    # From the spawn to the worker's first word: an interpreter and its imports, on a busy machine.
    start: float = 120
    # A worker speaks about once a second; one that was silent for so long gets no requests.
    fresh: float = 10
    # Longest wait for the answer to an interactive request.
    answer: float = 30
    # What a worker gets beyond drain_seconds, to leave the group and exit.
    margin: float = 5
    tick: float = 0.5


class Backoff:
    """How long a worker that ended stays away."""

    def __init__(self, timing: Timing):
        self._timing = timing
        self._next = timing.first_backoff

    def after(self, lived: float) -> float:
        """Give the seconds to wait after a worker that lived for so many."""
        if lived >= self._timing.steady:
            self._next = self._timing.first_backoff
        # Workers that died together do not come back together: each return is a rebalance.
        wait = self._next * random.uniform(1, 1.25)
        self._next = min(self._next * 2, self._timing.most_backoff)
        return wait


def run(settings: Settings, *, argv: Sequence[str] = WORKER, timing: Timing | None = None) -> int:
    """Serve until SIGTERM or SIGINT, and give the exit code, one of exit_codes.

    Call it from the main thread; it sets up the logs. Where it cannot start it logs one line.
    `argv` is the worker's command line. With CLASSIFIER_ENDPOINT_FILE in the environment, the base
    URL is written to that file once the endpoints answer, which is how a caller learns which port
    `http_port=0` became.
    """
    secrets = settings.secrets()
    log.configure(settings.log_level, settings.log_format, secrets, role="supervisor")
    try:
        path = resolve(settings.model)
        artifact = Artifact.load(path)
    except ArtifactError as error:
        _log.error(f"the model cannot be served: {error}", exit_code=BAD_MODEL)
        return BAD_MODEL
    # All workers serve this artefact, whatever "current" says when one of them is restarted.
    settings = settings.model_copy(update={"model": path.absolute()})
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(run_directory())
        except OSError as error:
            _log.error(f"no directory for temporary files: {error}; see TMPDIR", exit_code=FAULT)
            return FAULT
        try:
            supervisor = Supervisor(settings, artifact, directory, argv, timing or Timing())
            return asyncio.run(supervisor.serve(signals=True))
        except AddressError as error:
            _log.error(str(error), exit_code=BAD_SETTINGS)
            return BAD_SETTINGS


class Supervisor:
    """Keeps the workers running and answers for them: see http.Service."""

    def __init__(
        self,
        settings: Settings,
        artifact: Artifact,
        directory: Path,
        argv: Sequence[str] = WORKER,
        timing: Timing | None = None,
    ):
        self._settings = settings
        self._artifact = artifact
        self._directory = directory
        self._argv = argv
        self._timing = timing or Timing()
        self._slots = [
            Slot(number, self._timing.fresh, settings.stall_seconds)
            for number in range(settings.workers)
        ]
        self._seated = 0
        self._requests: Counter[int] = Counter()
        self._ever_ready = False
        self._code = STOPPED
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self.url = ""
        self.listening = asyncio.Event()
        self._categories = Categories(
            taxonomy=artifact.manifest.taxonomy,
            categories=[
                Category(id=label.id, names=label.names, parents=list(label.parents))
                for label in artifact.labels
            ],
        )

    async def serve(self, *, signals: bool = False) -> int:
        """Serve until `stop`, or a signal where `signals` is set; give the exit code.

        Raises AddressError where the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        listener = address.listen(self._settings.http_host, self._settings.http_port)
        tasks: list[asyncio.Task[None]] = []
        server = _Server(
            uvicorn.Config(
                http.app(self),
                lifespan="off",
                http="h11",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=2,
                h11_max_incomplete_event_size=16_384,
            )
        )
        try:
            lines = await asyncio.start_unix_server(self._connected, self._directory / SOCKET)
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self.stop)
            keepers = [asyncio.create_task(self._keep(slot)) for slot in self._slots]
            watch = asyncio.create_task(self._watch())
            front = asyncio.create_task(server.serve([listener]), name=_FRONT)
            told = asyncio.create_task(self._announce(server, listener))
            stopping = asyncio.create_task(_waited(self._stopping))
            tasks = [*keepers, watch, front, told, stopping]

            while not stopping.done():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                self._check(done)
                tasks = [task for task in tasks if task not in done]
            await self._drain(keepers)
            server.should_exit = True
            await asyncio.wait([front], timeout=5)
            lines.close()
        finally:
            self._stopping.set()
            for task in tasks:
                task.cancel()
            await self._kill_all()
            await asyncio.gather(*tasks, return_exceptions=True)
            listener.close()
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(number)
        _log.info("stopped", exit_code=self._code)
        return self._code

    def stop(self) -> None:
        """Let the workers finish what they hold, then stop; a second time, stop at once."""
        if self._stopping.is_set():
            self._hurry.set()
        else:
            _log.info("stopping", drain_seconds=self._settings.drain_seconds)
        self._stopping.set()

    # What the endpoints show

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
                answer = await slot.ask(offers, self._timing.answer)
            except TimeoutError:
                raise UnavailableError(
                    f"the worker did not answer within {self._timing.answer:.0f} seconds"
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
            for slot in self._slots
            if slot.killed
        ]
        return Health(alive=not reasons, reasons=reasons)

    def readiness(self) -> Readiness:
        """Give what each worker needs, and whether one of them has it all."""
        now = asyncio.get_running_loop().time()
        workers = [slot.report(now) for slot in self._slots]
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
            workers={str(slot.number): slot.model() for slot in self._slots},
        )

    def categories(self) -> Categories:
        """Give what the artefact of the start can answer."""
        return self._categories

    async def exposition(self) -> bytes:
        """Give what the workers counted, in all their lives, and how they are now."""
        now = asyncio.get_running_loop().time()
        gauges = Gauges(self._slots, now, self._seated, self._requests)
        return await asyncio.to_thread(metrics.scrape, self._directory, gauges)

    # The workers

    async def _keep(self, slot: Slot) -> None:
        """Keep the slot filled until the service stops."""
        loop, backoff = asyncio.get_running_loop(), Backoff(self._timing)
        while not self._stopping.is_set():
            started = loop.time()
            code = await self._live(slot)
            if self._stopping.is_set():
                return
            why = slot.end(code)
            if code in (BAD_SETTINGS, BAD_MODEL) and not self._ever_ready:
                _log.error(
                    f"worker {slot.number} cannot start and says why above; stopping",
                    exit_code=code,
                )
                self._code = code
                self._stopping.set()
                return
            wait = backoff.after(loop.time() - started)
            _log.warning(
                "worker ended", slot=slot.number, why=slot.ended, restart_in_s=round(wait, 2)
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)
            slot.restarts[why] += 1

    async def _live(self, slot: Slot) -> int:
        """Give the slot a process, and its exit code once it is dead."""
        environment = {
            # glibc gives each thread a heap of its own, and what one thread frees another cannot
            # use: a worker's memory grew by a hundred megabytes for it, at no gain in speed.
            "MALLOC_ARENA_MAX": "1",
            **os.environ,
            "CLASSIFIER_SLOT": str(slot.number),
            "CLASSIFIER_RUN_DIR": str(self._directory),
        }
        # An endpoint file is this process's business, and metric files by process are no one's.
        environment.pop(address.ENDPOINT_FILE, None)
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        slot.disconnect(connect_by=asyncio.get_running_loop().time() + self._timing.start)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                env=environment,
                # Ctrl-C at the terminal is for the supervisor, which then drains the workers.
                start_new_session=True,
            )
        except OSError as error:
            _log.error("worker cannot be started", slot=slot.number, why=error.strerror)
            return FAULT
        slot.process = process
        _log.info("worker started", slot=slot.number, pid=process.pid)
        try:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it died before it read
                process.stdin.write(self._settings.worker_json().encode())
                await process.stdin.drain()
            process.stdin.close()
            return await process.wait()
        finally:
            if process.returncode is not None:
                slot.process = None
                slot.disconnect()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listen to a worker for as long as its line holds."""
        loop = asyncio.get_running_loop()
        line = link.SupervisorLink.accept(reader, writer)
        slot: Slot | None = None
        try:
            hello = await asyncio.wait_for(line.receive(), self._timing.start)
            slot = self._greeted(hello)
            if slot is None:
                _log.warning("a stranger on the workers' socket was turned away")
                return
            slot.connect(line, loop.time())
            if self._stopping.is_set():
                await line.send(link.Stop())
            async for message in line:
                if slot.line is not line:  # it is dead, these are words it left behind
                    return
                slot.heard = loop.time()
                if isinstance(message, link.Status):
                    if slot.tell(message):
                        self._ever_ready = True
                        _log.info("worker ready", slot=slot.number)
                elif isinstance(message, link.Answer):
                    slot.answer(message)
        except (link.LinkError, TimeoutError) as error:
            number = slot.number if slot else None
            _log.error("the line to a worker is broken", slot=number, why=str(error))
        finally:
            if slot is not None and slot.line is line:
                # It sees the end of the line and leaves, or else is made to.
                patience = self._settings.drain_seconds + self._timing.margin
                slot.disconnect(connect_by=loop.time() + patience)
            await line.close()

    def _greeted(self, hello: link.FromWorker | None) -> Slot | None:
        """Give the slot of a worker that was started here and is not connected yet."""
        if not isinstance(hello, link.Hello) or not 0 <= hello.slot < len(self._slots):
            return None
        slot = self._slots[hello.slot]
        known = slot.process is not None and slot.process.pid == hello.pid
        return slot if known and slot.line is None else None

    async def _watch(self) -> None:
        """Kill workers that hang, so that their slots are filled anew."""
        loop, timing = asyncio.get_running_loop(), self._timing
        last = loop.time()
        while not self._stopping.is_set():
            await asyncio.sleep(timing.tick)
            now = loop.time()
            if now - last > timing.tick + 1:
                # This process itself stood still (a suspended machine, a debugger), and what the
                # workers said meanwhile is yet to be read: no worker is to blame for that time.
                for slot in self._slots:
                    slot.heard += now - last
                    slot.connect_by += now - last
            last = now
            for slot in self._slots:
                why = slot.hanging(now)
                if why and slot.process is not None and not slot.killed:
                    try:
                        slot.process.kill()
                    except ProcessLookupError:  # it died by itself just now
                        continue
                    _log.error("worker hangs and is killed", slot=slot.number, why=why)
                    slot.killed = why

    async def _drain(self, keepers: Iterable[asyncio.Task[None]]) -> None:
        """Let every worker finish what it holds, within bounds."""
        posts: list[asyncio.Task[bool]] = []
        for slot in self._slots:
            if slot.line is not None:
                # Not awaited: one that does not read must not hold up the others.
                posts.append(asyncio.create_task(slot.line.send(link.Stop())))
            elif slot.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    slot.process.terminate()  # it holds nothing yet
        hurry = asyncio.create_task(_waited(self._hurry))
        pending = {keeper for keeper in keepers if not keeper.done()}
        deadline = self._settings.drain_seconds + self._timing.margin
        end = asyncio.get_running_loop().time() + deadline
        while pending and not hurry.done():
            left = end - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(
                {*pending, hurry}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            pending -= done
            if not done:
                break
        for task in (hurry, *posts):
            task.cancel()
        for slot in self._slots:
            if slot.process is not None:
                _log.warning("worker did not finish in time and is killed", slot=slot.number)

    async def _kill_all(self) -> None:
        for slot in self._slots:
            process = slot.process
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 5)

    def _next(self, tried: set[int]) -> Slot | None:
        """Give the ready slot with the fewest requests that was not tried."""
        if self._stopping.is_set():
            return None
        now = asyncio.get_running_loop().time()
        ready = (slot for slot in self._slots if slot.number not in tried and slot.ready(now))
        return min(ready, key=lambda slot: len(slot.asks), default=None)

    async def _announce(self, server: _Server, listener: socket.socket) -> None:
        """Say where the endpoints are, once they answer."""
        await server.up.wait()
        self.url = address.url(listener)
        _log.info("listening", url=self.url)
        if path := os.environ.get(address.ENDPOINT_FILE):
            address.publish(Path(path), self.url)
        self.listening.set()

    def _check(self, done: Iterable[asyncio.Task[None]]) -> None:
        """Stop where a part ended that never should."""
        for task in done:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, AddressError):
                _log.error(str(error), exit_code=BAD_SETTINGS)
                self._code = BAD_SETTINGS
            elif error is not None:
                _log.error("a part of the supervisor failed; stopping", exc_info=error)
                self._code = FAULT
            elif task.get_name() == _FRONT and not self._stopping.is_set():
                _log.error("the HTTP server ended by itself; stopping")
                self._code = FAULT
            else:
                continue
            self._stopping.set()


_FRONT: Final = "front"


class _Server(uvicorn.Server):
    """A server that leaves the signals to the supervisor and says when it is up."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


async def _waited(event: asyncio.Event) -> None:
    await event.wait()
