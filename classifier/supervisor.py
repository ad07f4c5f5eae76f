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
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from classifier import address, http, link, log
from classifier.address import AddressError
from classifier.artifact import Artifact, ArtifactError, resolve
from classifier.backoff import Backoff
from classifier.exit_codes import BAD_MODEL, BAD_SETTINGS, FAULT, NOT_MENDED, STOPPED
from classifier.pool import Pool
from classifier.run_directory import SOCKET, run_directory
from classifier.server import Server
from classifier.settings import Settings
from classifier.slot import Slot

WORKER: Final = (sys.executable, "-m", "classifier.worker")

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
    """Keeps the pool's slots filled with workers, and serves the endpoints over the pool."""

    def __init__(
        self,
        settings: Settings,
        artifact: Artifact,
        directory: Path,
        argv: Sequence[str] = WORKER,
        timing: Timing | None = None,
    ):
        self._settings = settings
        self._directory = directory
        self._argv = argv
        self._timing = timing or Timing()
        self._ever_ready = False
        self._code = STOPPED
        self._stopping = asyncio.Event()
        self.pool = Pool(
            settings,
            artifact,
            directory,
            self._stopping,
            fresh=self._timing.fresh,
            answer=self._timing.answer,
        )
        self._hurry = asyncio.Event()
        self.url = ""
        self.listening = asyncio.Event()

    async def serve(self, *, signals: bool = False) -> int:
        """Serve until `stop`, or a signal where `signals` is set; give the exit code.

        Raises AddressError where the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        listener = address.listen(self._settings.http_host, self._settings.http_port)
        tasks: list[asyncio.Task[None]] = []
        server = Server(http.app(self.pool))
        try:
            lines = await asyncio.start_unix_server(self._connected, self._directory / SOCKET)
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self.stop)
            keepers = [asyncio.create_task(self._keep(slot)) for slot in self.pool.slots]
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

    # The workers

    async def _keep(self, slot: Slot) -> None:
        """Keep the slot filled until the service stops."""
        loop, timing = asyncio.get_running_loop(), self._timing
        backoff = Backoff(timing.first_backoff, timing.most_backoff, timing.steady)
        while not self._stopping.is_set():
            started = loop.time()
            code = await self._live(slot)
            if self._stopping.is_set():
                return
            why = slot.end(code)
            if code in NOT_MENDED and not self._ever_ready:
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
        if not isinstance(hello, link.Hello) or not 0 <= hello.slot < len(self.pool.slots):
            return None
        slot = self.pool.slots[hello.slot]
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
                for slot in self.pool.slots:
                    slot.heard += now - last
                    slot.connect_by += now - last
            last = now
            for slot in self.pool.slots:
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
        for slot in self.pool.slots:
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
        for slot in self.pool.slots:
            if slot.process is not None:
                _log.warning("worker did not finish in time and is killed", slot=slot.number)

    async def _kill_all(self) -> None:
        for slot in self.pool.slots:
            process = slot.process
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), 5)

    async def _announce(self, server: Server, listener: socket.socket) -> None:
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


async def _waited(event: asyncio.Event) -> None:
    await event.wait()
