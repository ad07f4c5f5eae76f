"""The campaign: offers go in while the plan's faults are done to what classifies them."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from classifier.demo import servers
from classifier.model import Model
from tests.faults.database import Database
from tests.faults.injection import MissedError, inject
from tests.faults.kafka_wire import KafkaWire
from tests.faults.ledger import Ledger, read
from tests.faults.machine import Machine
from tests.faults.mongo_wire import MongoWire
from tests.faults.plan import KINDS, SESSION_SECONDS, Fault, Plan
from tests.faults.stream import RECORD_BYTES, Producers, Stream, texts
from tests.faults.trace import Trace
from tests.faults.verifier import DeadLetter, Verdict, verify
from tests.faults.watch import Watch
from tests.faults.wire import Network

PARTITIONS = 6
FETCH_OFFERS = 200
BATCHES_IN_FLIGHT = 3
IN_FLIGHT = FETCH_OFFERS * BATCHES_IN_FLIGHT
"""Records that one worker may hold, and do again when it dies."""
WINDOW = 3_000
"""So many records may be on their way: enough to have work at every moment of a fault."""
TRICKLE = 40
PIECE = 100
"""Records sent at once, with one codec."""
RECOVERY_SECONDS = 120.0
"""Within which everything is ready again without a hand, and what waited is done. A worker that
died again and again stays away for up to 38 seconds; a half-open connection is found out by the
client within its request timeout, session and ten seconds."""
START_SECONDS = 90.0
MOST_BYTES = 512 << 20
"""Of one worker with the small model, whatever is sent to it."""

Say = Callable[[str], None]


class NotWholeError(Exception):
    """The service did not come back within its time; the message says how it is."""


@dataclass
class Outcome:
    """What a campaign found."""

    plan: Plan
    verdict: Verdict
    injected: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    explained: int = 0
    events: int = 0
    most_bytes: int = 0
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean


class Campaign:
    """Servers, machines, the stream, and what is done to them."""

    EXPIRED_RECORDS = 300
    """So many records are read again when a committed offset has expired."""

    def __init__(self, plan: Plan, artifact: Path, directory: Path, say: Say) -> None:
        self.plan = plan
        self._artifact = artifact
        self._directory = directory
        self._say = say
        self.topic = f"offers-{uuid.uuid4().hex[:8]}"
        self.dead_letter_topic = f"{self.topic}.dead-letters"
        self.group = f"{self.topic}.group"
        self.database_name = self.topic.replace("-", "_")
        self.trace = Trace()
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.machines: list[Machine] = []
        self.spare: Machine
        """Comes and goes."""
        self.changing_database = asyncio.Lock()
        """Held by whoever kills it, or sets what it fails by."""
        self.database = Database(directory)
        self.broker: str
        self._producers: Producers
        self._stream: Stream
        self._left = plan.offers
        self.outcome = Outcome(plan, Verdict())

    async def run(self) -> Outcome:
        began = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            await self._prepare(stack)
            watch = Watch(self.machines)
            watching = asyncio.create_task(watch.run())
            try:
                await self._start()
                for number, episode in enumerate(self.plan.episodes):
                    await self._episode(number, episode)
                await self._produce(self._left)
                await self._settle()
            except NotWholeError as error:
                self.broken("not whole again", str(error))
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await self._stop()
            await self._judge(watch)
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # Making the place

    async def _prepare(self, stack: contextlib.AsyncExitStack) -> None:
        """Starts everything but the machines; all of it ends with the stack."""
        stack.callback(self.ledger.close)
        self.broker = stack.enter_context(servers.embedded_broker())
        stack.callback(self.database.kill)
        self.database.start()
        network = Network()
        stack.callback(network.close)
        broker_port = int(self.broker.rpartition(":")[2])
        for number in range(self.plan.machines + 1):
            kafka = KafkaWire(network, broker_port, self.topic, self.dead_letter_topic, self.trace)
            stack.callback(kafka.close)
            mongodb = MongoWire(network, self.database.port, self.topic, self.trace)
            stack.callback(mongodb.close)
            machine = Machine(
                f"machine-{number}", kafka, mongodb, self._settings(), self._directory
            )
            stack.push_async_callback(machine.close)
            self.machines.append(machine)
        self.spare = self.machines.pop()
        await servers.create_topic(self.broker, self.topic, PARTITIONS)
        await servers.create_topic(self.broker, self.dead_letter_topic, 1)
        model = await asyncio.to_thread(Model.load, self._artifact, threads=1)
        known = await asyncio.to_thread(texts, model)
        model.close()
        self._stream = Stream(self.plan.seed, PARTITIONS, known)
        self._producers = Producers(self.broker, self.topic, self.ledger)
        stack.push_async_callback(self._producers.stop)
        await self._producers.start()

    def _settings(self) -> dict[str, object]:
        return {
            "kafka_topic": self.topic,
            "kafka_dead_letter_topic": self.dead_letter_topic,
            "kafka_group": self.group,
            "mongodb_database": self.database_name,
            "mongodb_timeout_ms": 8_000,
            "model": self._artifact,
            "workers": 1,
            "engine_threads": 1,
            "fetch_offers": FETCH_OFFERS,
            "batches_in_flight": BATCHES_IN_FLIGHT,
            "fetch_wait_ms": 20,
            # Every text is asked anew, so that there is a moment to die in.
            "cache_offers": 0,
            "record_bytes": RECORD_BYTES,
            "dead_letter_bytes": RECORD_BYTES // 4,
            "kafka_session_timeout_ms": round(SESSION_SECONDS * 1000),
            "revoke_seconds": SESSION_SECONDS - 1,
            "drain_seconds": 10,
        }

    async def _start(self) -> None:
        for machine in self.machines:
            machine.start()
        await self._until(self._all_ready, START_SECONDS, "the machines are not ready")

    # What goes on

    async def _episode(self, number: int, episode: tuple[Fault, ...]) -> None:
        quota = self._left // (len(self.plan.episodes) - number + 1)
        injecting = asyncio.gather(*(self._one(fault) for fault in episode))
        producing = asyncio.create_task(self._produce_during(quota, injecting))
        try:
            self._explain(episode)
            line = " + ".join(map(str, episode))
            if any(await injecting):
                line += f": whole after {await self._recover():.1f} s"
            await producing
        finally:
            for task in (injecting, producing):
                task.cancel()
            await asyncio.gather(injecting, producing, return_exceptions=True)
        lag = self.ledger.count - sum(self.trace.committed.values())
        self._say(
            f"{number + 1}/{len(self.plan.episodes)}  {line}, "
            f"{self.ledger.count} acknowledged, {lag} behind"
        )

    async def _produce_during(self, quota: int, injecting: asyncio.Future[list[bool]]) -> None:
        """The episode's share of the offers, and then a few all the time while faults last."""
        await self._produce(quota)
        while not injecting.done():
            await self._produce(TRICKLE)
            await asyncio.sleep(0.2)

    async def _one(self, fault: Fault) -> bool:
        await asyncio.sleep(fault.after)
        try:
            await inject(self, fault)
        except MissedError as missed:
            self.outcome.missed[fault.kind] += 1
            self._say(f"  no chance for: {fault.kind} ({missed})")
            return False
        self.outcome.injected[fault.kind] += 1
        return True

    def _explain(self, episode: tuple[Fault, ...]) -> None:
        """Adds what these faults may have been done twice for."""
        workers = len(self.machines)
        for fault in episode:
            disturbs = KINDS[fault.kind].disturbs if len(episode) == 1 else "all"
            disturbed = {"none": 0, "worker": 1, "machine": 1, "all": workers}[disturbs]
            self.outcome.explained += disturbed * IN_FLIGHT
            if fault.kind == "a committed offset has expired":
                self.outcome.explained += self.EXPIRED_RECORDS

    async def _recover(self) -> float:
        """Waits until all are ready again and what was acknowledged by now is committed.

        Gives the seconds that it took.
        """
        began = time.monotonic()
        await self._produce(PARTITIONS * 10)
        ends = dict(self.ledger.ends)

        async def whole() -> bool:
            done = all(self.trace.committed.get(p, 0) >= end for p, end in ends.items())
            return done and await self._all_ready()

        await self._until(whole, RECOVERY_SECONDS, "not whole again")
        seconds = time.monotonic() - began
        self.outcome.recoveries.append(seconds)
        return seconds

    async def _produce(self, count: int) -> None:
        """Sends so many events more, as the window allows."""
        while count > 0:
            if self.ledger.count - sum(self.trace.committed.values()) > WINDOW:
                await asyncio.sleep(0.05)
                continue
            piece = min(PIECE, count)
            await self._producers.send(self._stream.take(piece))
            self._left -= piece
            count -= piece

    async def _all_ready(self) -> bool:
        ready = await asyncio.gather(*(machine.is_ready() for machine in self.machines))
        return all(ready)

    async def _until(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            for machine in self.machines:
                if machine.wanted and not machine.is_running:
                    raise NotWholeError(f"{machine.name} ended by itself: see its log")
            if time.monotonic() > deadline:
                states = [await machine.readiness() for machine in self.machines]
                raise NotWholeError(f"{what} within {seconds:.0f} s: {states}")
            await asyncio.sleep(0.1)

    # The end

    async def _settle(self) -> None:
        def done() -> bool:
            return self.trace.committed == self.ledger.ends

        await self._until(done, RECOVERY_SECONDS, "not everything is committed")

    async def _stop(self) -> None:
        running = [machine for machine in self.machines if machine.is_running]
        codes = await asyncio.gather(*(machine.stop() for machine in running))
        if any(codes):
            self.broken("exit code of an orderly stop", str(codes))

    def broken(self, promise: str, how: str) -> None:
        """Notes what the verifier cannot see."""
        self.outcome.verdict.found(promise, how)

    async def _judge(self, watch: Watch) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.broker, group_id=self.group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            committed = {p.partition: await consumer.committed(p) or 0 for p in partitions}
            # Read, not asked for: the embedded broker does not know the end of a large batch.
            ends = dict(self.ledger.ends)
        finally:
            await consumer.stop()
        letters = await self._dead_letters()
        stored = await asyncio.to_thread(lambda: dict(self.database.documents(self.database_name)))
        self.trace.save(self._directory / "trace")
        verdict = await asyncio.to_thread(
            verify,
            self.topic,
            read(self._directory / "ledger.jsonl"),
            stored,
            letters,
            committed,
            ends,
            self.trace,
            self.outcome.explained,
        )
        verdict.violations |= self.outcome.verdict.violations
        for when in watch.not_alive:
            verdict.found("not alive", when)
        if watch.most_bytes > MOST_BYTES:
            verdict.found("memory", f"a worker had {watch.most_bytes / 1e6:.0f} MB")
        self.outcome.verdict = verdict
        self.outcome.events = self.ledger.count
        self.outcome.most_bytes = watch.most_bytes

    async def _dead_letters(self) -> list[DeadLetter]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.broker, enable_auto_commit=False)
        await consumer.start()
        try:
            partition = TopicPartition(self.dead_letter_topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            found = []
            while more := await consumer.getmany(timeout_ms=1_000):
                for record in more[partition]:
                    named = {name: content.decode() for name, content in record.headers}
                    found.append(
                        DeadLetter(
                            named["topic"],
                            int(named["partition"]),
                            int(named["offset"]),
                            named["reason"],
                            record.value,
                            named.get("sha256", ""),
                        )
                    )
        finally:
            await consumer.stop()
        return found
