"""The worker: one process, one member of the consumer group, one engine.

It loads its model and asks it the golden questions, connects to MongoDB, then joins the group; a
service that is away is waited for by name. Meanwhile it tells the supervisor how it is and answers
interactive requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from pymongo.errors import PyMongoError

from classifier import cpu, link, log
from classifier.artifact import ArtifactError
from classifier.client import CodecError, check_codecs, client_settings
from classifier.consumer import SERVICE as KAFKA
from classifier.consumer import OfferConsumer
from classifier.deadletter import DeadLetters
from classifier.engine_thread import SERVICE as ENGINE
from classifier.engine_thread import EngineThread
from classifier.engines import EngineError
from classifier.exit_codes import BAD_MODEL, BAD_SETTINGS, FAULT, STOPPED
from classifier.interactive import classify
from classifier.metrics import Metrics, for_worker
from classifier.model import Model, ModelError
from classifier.offsets import Offsets
from classifier.outage import Outages
from classifier.pipeline import Pipeline
from classifier.run_directory import SOCKET
from classifier.settings import Settings
from classifier.store import SERVICE as STORE
from classifier.store import Store
from classifier.tokens import bound_pool

STATUS_SECONDS = 1.0
CHECK_SECONDS = 2.0
START_RETRY_SECONDS = 2.0
LEAVE_SECONDS = 3.0
"""For leaving the group, the producer and MongoDB at the end, all at once."""

_log = log.get("worker")


class StalledError(Exception):
    """Records wait and none comes, though nothing that is needed is away."""


class Worker:
    """The life of one worker process."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        slot: int = 0,
        line: link.WorkerLink | None = None,
    ) -> None:
        self._settings = settings
        self.metrics = metrics
        self._slot = slot
        self._line = line
        self._outages = Outages()
        self._offsets = Offsets()
        self._running = False
        self._wrote = False  # MongoDB has taken a write
        self._stopping = asyncio.Event()
        self._engine: EngineThread | None = None
        self._consumer: OfferConsumer | None = None
        self._pipeline: Pipeline | None = None
        self._report_now = asyncio.Event()
        self._outages.on_change = self._report_now.set

    def stop(self) -> None:
        """Asks for a graceful end: no more records, what is in flight is finished, then leave."""
        self._stopping.set()
        self._report_now.set()

    async def run(self) -> None:
        """Works until `stop`.

        Raises a group of an ArtifactError, EngineError or ModelError for a model that cannot serve.
        """
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._report())]
            if self._line is not None:
                background.append(tasks.create_task(self._listen(self._line)))
            try:
                self._engine = await self._load()
                spare_the_collector()
                self._report_now.set()
                await self._serve(self._engine)
            finally:
                for task in background:
                    task.cancel()
                if self._engine is not None:
                    await asyncio.to_thread(self._engine.close)

    # Starting

    async def _load(self) -> EngineThread:
        """Loads the model and asks it its golden questions; nothing is joined before."""
        settings = self._settings
        threads = settings.engine_threads or cpu.share(settings.workers)
        bound_pool(threads)
        started = time.monotonic()
        model = await asyncio.to_thread(
            Model.load,
            settings.model,
            threads=threads,
            cache_offers=settings.cache_offers,
            batch_tokens=settings.batch_tokens,
            alternatives=settings.alternatives,
        )
        artifact = model.artifact.manifest.id
        seconds = round(time.monotonic() - started, 2)
        _log.info("model ready", artifact=artifact, threads=threads, seconds=seconds)
        loop = asyncio.get_running_loop()
        return EngineThread(model, settings.interactive_share, self._outages, self.metrics, loop)

    async def _serve(self, engine: EngineThread) -> None:
        """Connects to MongoDB, then to Kafka, each for as long as it takes, and works."""
        settings = self._settings
        store = Store(settings, self._outages, self.metrics)
        producer = AIOKafkaProducer(
            **client_settings(settings),
            acks="all",
            linger_ms=5,
            # Kafka's own limit refuses what is too large; this one must only not come before it.
            max_request_size=settings.dead_letter_bytes + settings.record_bytes,
        )
        dead_letters = DeadLetters(
            producer,
            settings.kafka_dead_letter_topic,
            settings.dead_letter_bytes,
            self._outages,
            self.metrics,
        )
        static = settings.kafka_group_instance_id
        consumer = OfferConsumer(
            settings,
            self._offsets,
            self._outages,
            self.metrics,
            f"{static}-{self._slot}" if static else None,
        )
        pipeline = Pipeline(
            settings,
            engine,
            self._offsets,
            consumer,
            store,
            dead_letters,
            self.metrics,
        )
        consumer.finish = pipeline.finished
        self._consumer, self._pipeline = consumer, pipeline
        try:
            for service, errors, start in (
                (STORE, (PyMongoError,), store.prepare),
                (KAFKA, (KafkaError, OSError), producer.start),
                (KAFKA, (KafkaError, OSError), consumer.join),
            ):
                if not await self._until(service, errors, start):
                    return
                self._wrote = True  # MongoDB is the first of them
            self._running = True
            self._report_now.set()
            async with asyncio.TaskGroup() as tasks:
                checking = tasks.create_task(self._check(consumer, store, pipeline))
                await pipeline.run(self._stopping)
                checking.cancel()
        finally:
            # Leaves the group, so that its partitions go on elsewhere at once. Bounded, since the
            # client waits for a coordinator that is away, and the supervisor does not.
            await asyncio.gather(
                *(
                    asyncio.wait_for(ending, LEAVE_SECONDS)
                    for ending in (consumer.leave(), producer.stop(), store.close())
                ),
                return_exceptions=True,
            )

    async def _until(
        self,
        service: str,
        errors: tuple[type[Exception], ...],
        start: Callable[[], Awaitable[None]],
    ) -> bool:
        """Starts something that needs a service, for as long as that is away; False on a stop."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while not stopping.done():
                starting = asyncio.ensure_future(start())
                await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():
                    starting.cancel()
                    await asyncio.gather(starting, return_exceptions=True)
                    return False
                try:
                    starting.result()
                except errors as error:
                    self._outages.began(service, str(error) or repr(error))
                else:
                    self._outages.ended(service)
                    return True
                await asyncio.wait({stopping}, timeout=START_RETRY_SECONDS)
        finally:
            stopping.cancel()
        return False

    # What the supervisor sees and asks

    async def _check(self, consumer: OfferConsumer, store: Store, pipeline: Pipeline) -> None:
        while True:
            await asyncio.gather(consumer.measure_lag(), store.check())
            still = time.monotonic() - max(pipeline.moved, consumer.assigned_at)
            if (
                any(consumer.lag.values())
                and not pipeline.offers_in_flight
                and not self._outages.services
                and still > self._settings.stall_seconds
            ):
                # Whatever went wrong in the client, a new process begins without it.
                raise StalledError(f"{sum(consumer.lag.values())} records wait, none is fetched")
            self._report_now.set()
            await asyncio.sleep(CHECK_SECONDS)

    async def _report(self) -> None:
        while self._line is not None:
            await self._line.send_status(self.status())
            self._report_now.clear()
            await _within(STATUS_SECONDS, self._report_now.wait())

    def status(self) -> link.Status:
        """How this worker is, as the supervisor is told."""
        consumer, engine = self._consumer, self._engine
        draining = self._stopping.is_set()
        golden = engine is not None and ENGINE not in self._outages
        joined = consumer is not None and consumer.joined and KAFKA not in self._outages
        reasons = list(self._outages.reasons)
        if engine is None:
            reasons.append("the model is loading")
        elif not self._wrote and STORE not in self._outages:
            reasons.append("mongodb has not answered yet")
        elif consumer is not None and not consumer.joined:
            reasons.append("the group is not joined")
        if draining:
            reasons.append("draining")
        pipeline = self._pipeline
        in_flight = pipeline.offers_in_flight if pipeline else 0
        moved = max(pipeline.moved if pipeline else 0.0, engine.last_call if engine else 0.0)
        lag = consumer.lag if consumer else {}
        return link.Status(
            slot=self._slot,
            pid=os.getpid(),
            state="draining" if draining else "running" if self._running else "starting",
            model=self._model_info(),
            golden=golden,
            joined=joined,
            mongodb=self._wrote and STORE not in self._outages,
            waiting_on=self._outages.services,
            in_flight=in_flight,
            idle_s=time.monotonic() - moved if in_flight else 0.0,
            lag={f"{p.topic}/{p.partition}": behind for p, behind in lag.items()},
            reasons=reasons,
        )

    def _model_info(self) -> link.ModelInfo | None:
        if self._engine is None:
            return None
        artifact = self._engine.model.artifact
        manifest = artifact.manifest
        return link.ModelInfo(
            artifact=manifest.id,
            target=manifest.target,
            precision=manifest.precision,
            taxonomy=manifest.taxonomy,
            labels=len(artifact.labels),
            promotion=self._settings.promotion,
            created_at=manifest.created_at,
        )

    async def _listen(self, line: link.WorkerLink) -> None:
        """Answers what the supervisor asks; without a supervisor there is nothing to work for."""
        asks: set[asyncio.Task[None]] = set()
        try:
            async for message in line:
                if isinstance(message, link.Stop):
                    self.stop()
                else:
                    ask = asyncio.create_task(self._answer(line, message))
                    asks.add(ask)
                    ask.add_done_callback(asks.discard)
            _log.warning("the supervisor is gone")
            self.stop()
        finally:
            for ask in asks:
                ask.cancel()

    async def _answer(self, line: link.WorkerLink, ask: link.Ask) -> None:
        engine = self._engine
        if engine is None or self._stopping.is_set():
            await line.refuse(ask.id, "not ready", retry=True)
        elif engine.interactive_waiting >= self._settings.interactive_queue:
            await line.refuse(ask.id, "the queue is full", retry=True)
        else:
            try:
                results = await classify(engine, ask.offers)
            except Exception:  # noqa: BLE001 a person waits for a word; the stream goes on
                _log.exception("an interactive request failed")
                await line.refuse(ask.id, "the engine failed", retry=False)
            else:
                await line.answer(ask.id, results)


async def _within(seconds: float, waited: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waited, max(0.0, seconds))


def spare_the_collector() -> None:
    """Keeps the garbage collector from walking the model's and the cache's objects all the time.

    A batch makes tens of thousands of short-lived containers, none in a cycle; at the default
    thresholds collections were the dearest part of building its updates.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


async def _main(settings: Settings, slot: int, directory: Path) -> None:
    line = await link.WorkerLink.connect(directory / SOCKET, slot, os.getpid())
    worker = Worker(settings, for_worker(slot, directory), slot, line)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    # A terminal sends Ctrl-C to every process; the supervisor alone decides what it means.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        await worker.run()
    finally:
        await line.close()


def main() -> int:
    """Runs one worker for a supervisor: settings on standard input, slot and folder by variables.

    Exit codes: 0 stopped as asked, 1 a fault of our own, from 3 on the model cannot serve here.
    """
    settings = Settings.from_worker_json(sys.stdin.read())
    slot = int(os.environ["CLASSIFIER_SLOT"])
    secrets = settings.secrets()
    log.configure(settings.log_level, settings.log_format, secrets, role="worker", slot=slot)
    code = STOPPED
    try:
        check_codecs()
        asyncio.run(_main(settings, slot, Path(os.environ["CLASSIFIER_RUN_DIR"])))
    except* (ArtifactError, EngineError, ModelError) as errors:
        first = errors.exceptions[0]
        code = first.code if isinstance(first, EngineError) else BAD_MODEL
        _log.error(f"the model cannot serve: {first}", exit_code=code)
    except* CodecError as errors:
        code = BAD_SETTINGS
        _log.error(str(errors.exceptions[0]), exit_code=code)
    except* Exception:  # noqa: BLE001 the last resort: logged as an event, not as loose lines
        code = FAULT
        _log.exception("worker failed", exit_code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
