"""The endpoint: a test set through the production service, over Kafka, answers from MongoDB.

What was judged is what is served: the answers that evaluation reads are those that readers of the
collection would find, made by `classifier serve` from the artefact itself. They are kept as they
come, so that after a kill only the rest is asked.

answers.parquet    the set with its answers
throughput.json    what the workers did and took meanwhile: a training.throughput.Throughput; not
                   there when every answer was kept from a run that was killed
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from aiokafka import AIOKafkaConsumer, TopicPartition
from pymongo.errors import PyMongoError
from rich.console import Console

from classifier import __version__, jsonl
from classifier.artifact import Artifact, resolve
from classifier.bulk import answer_schema
from classifier.client import client_settings
from classifier.demo import DemoError
from classifier.demo.place import mongodb, place
from classifier.demo.stream import saying, stream
from classifier.jsonl import FileError
from classifier.offer import Offer
from classifier.produce import Record
from classifier.record import Reason
from classifier.settings import Settings, load_settings
from classifier.whole_file import appearing
from training import stage, throughput
from training.stage import Stage, StageError
from training.throughput import Meter

ANSWERS = "answers.parquet"

VERSION = 2

RECORD_BYTES = 1_000_000
"""A record of more is not sent: Kafka's own limit, 1 MiB with what surrounds a record, unless an
operator raised it. In production the producer would not get rid of it either."""

KEEP_SECONDS = 10.0
"""The least time between two looks for new answers to keep: so much work a kill may cost."""
KEEP_SHARE = 0.1
"""A look reads all the answers so far, and may take so much of the time at most."""

_FIELDS = Offer.__struct_fields__
_ANSWER = ("category_id", "score", "alternatives", "status", "model")
_encode = msgspec.json.Encoder().encode


def answer(model: Path, offers: Path, out: Path, console: Console) -> stage.Record:
    """Sends the offers of a Parquet set through a service that serves `model`.

    Writes `out`/answers.parquet: the set's rows and columns in their order, with the columns of
    `classifier classify`. An offer that was set aside has its dead letter's reason in `error`.
    What was measured meanwhile is in `out`/throughput.json.
    A killed run's answers are taken, and the rest is asked. Raises StageError when the set cannot
    be sent or an offer has no end, ArtifactError, DemoError.
    """
    artifact = Artifact.load(resolve(model))
    inputs = {
        "model": artifact.manifest.id,
        **stage.hash_inputs({"offers": offers}),
        **conditions(),
    }
    run = Stage("endpoint", out, None, inputs, version=VERSION)
    if record := run.done():
        return record
    parts = run.begin()
    table = _read(offers)
    say = saying(console)
    documents = _kept(parts)
    letters: dict[str, tuple[str, str]] = {}
    speed: dict[str, float | None] = {}
    results = {ANSWERS: out / ANSWERS}
    if documents:
        say(f"{len(documents):,} offers have an answer from the run that was ended")
    large = {offer_id for offer_id, value in _values(table) if len(value) > RECORD_BYTES}
    settled = large | documents.keys()
    if asked := table.num_rows - len(settled):
        meter = Meter()
        with place(artifact, say) as settings:
            records = (
                Record(offer_id.encode(), value)
                for offer_id, value in _values(table)
                if offer_id not in settled
            )
            with _keeping(settings, parts):
                ran = stream(records, asked, settings, console, meter.measuring)
            documents |= _documents(settings)
            letters = asyncio.run(_dead_letters(settings))
        measured = meter.throughput(asked, settings.workers)
        stage.write_json(out / throughput.FILE, measured)
        results[throughput.FILE] = out / throughput.FILE
        memory = measured.peak_memory_bytes
        speed = {
            "offers_per_second": round(asked / ran.seconds, 1),
            "offers_per_cpu_second": measured.offers_per_cpu_second,
            "peak_memory_megabytes": None if memory is None else round(memory / 1e6),
            "age_seconds_p50": ran.last.age(0.5),
            "age_seconds_p99": ran.last.age(0.99),
        }
    answers = [
        _too_large() if offer_id in large else _answered(offer_id, documents, letters)
        for offer_id in table["offer_id"].to_pylist()
    ]
    schema = answer_schema()
    columns = pa.Table.from_pylist(answers, schema=schema)
    for name in schema.names:
        if name in table.column_names:
            table = table.drop_columns(name)
        table = table.append_column(schema.field(name), columns[name])
    with appearing(out / ANSWERS) as file:
        pq.write_table(table, file, compression="zstd")
    summary = {
        "offers": table.num_rows,
        "dead_letters": sum("error" in row for row in answers),
        "uncertain": sum(row.get("status") == "uncertain" for row in answers),
        **speed,
    }
    return run.finish(summary, results)


def conditions() -> dict[str, str]:
    """Under which the service is asked, besides model and offers. Raises SettingsError."""
    return {"service": __version__, "alternatives": str(load_settings().alternatives)}


def _read(offers: Path) -> pa.Table:
    try:
        table = pq.read_table(offers)
    except (pa.ArrowException, OSError) as error:
        line = str(error).split("\n", 1)[0]
        raise StageError(f"{offers} is no Parquet file that can be read: {line}") from error
    if "offer_id" not in table.column_names:
        raise StageError(f"{offers} has no column offer_id")
    if not table.num_rows:
        raise StageError(f"{offers} has no row")
    ids = table["offer_id"]
    if ids.null_count or len(ids.unique()) < len(ids):
        raise StageError(f"{offers}: an offer_id is missing, or stands there twice")
    return table


def _values(table: pa.Table) -> Iterator[tuple[str, bytes]]:
    """Each offer's id, and the offer as the bytes that a shop's service would send."""
    names = [name for name in _FIELDS if name in table.column_names]
    for batch in table.select(names).to_batches(max_chunksize=2_000):
        for row in batch.to_pylist():
            value = _encode({name: field for name, field in row.items() if field is not None})
            yield row["offer_id"], value


def _documents(settings: Settings) -> dict[str, dict[str, Any]]:
    with mongodb(settings) as client:
        collection = client[settings.mongodb_database][settings.mongodb_collection]
        return {
            document["_id"]: {name: document[name] for name in _ANSWER}
            for document in collection.find({}, dict.fromkeys(_ANSWER, 1))
        }


def _kept(parts: Path) -> dict[str, dict[str, Any]]:
    """The answers that a killed run has kept, by the offers' ids."""
    rows = [msgspec.json.decode(line) for file in _files(parts) for line in jsonl.read(file)]
    return {row["offer_id"]: {name: row[name] for name in _ANSWER} for row in rows}


def _files(parts: Path) -> list[Path]:
    return sorted(parts.glob("answers-*.jsonl"))


@contextlib.contextmanager
def _keeping(settings: Settings, parts: Path) -> Iterator[None]:
    """Keeps new answers in a file of `parts` every few seconds, from a thread of its own."""
    ended = threading.Event()

    def keep() -> None:
        known: set[str] = set()
        pause = KEEP_SECONDS
        while not ended.wait(pause):
            started = time.monotonic()
            # What cannot be kept now will be later, or is asked again.
            with contextlib.suppress(PyMongoError, FileError):
                found = _documents(settings)
                if new := sorted(found.keys() - known):
                    with appearing(parts / f"answers-{len(_files(parts)):06d}.jsonl") as file:
                        file.writelines(_encode({"offer_id": i, **found[i]}) + b"\n" for i in new)
                    known.update(new)
            pause = max(KEEP_SECONDS, (time.monotonic() - started) / KEEP_SHARE)

    keeping = threading.Thread(target=keep, daemon=True)
    keeping.start()
    try:
        yield
    finally:
        ended.set()
        keeping.join()


async def _dead_letters(settings: Settings) -> dict[str, tuple[str, str]]:
    """Reason and error of each dead letter, by the hash of the key of the record that it was."""
    topic = settings.kafka_dead_letter_topic
    consumer = AIOKafkaConsumer(auto_offset_reset="earliest", **client_settings(settings))
    await consumer.start()
    found: dict[str, tuple[str, str]] = {}
    try:
        partitions = [
            TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()
        ]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        for partition in partitions:
            while await consumer.position(partition) < ends[partition]:
                batches = await consumer.getmany(partition, timeout_ms=1_000)
                for letter in (letter for batch in batches.values() for letter in batch):
                    headers = {name: value.decode() for name, value in letter.headers}
                    key = headers.get("key_sha256") or hashlib.sha256(letter.key).hexdigest()
                    found[key] = (headers["reason"], headers["error"])
    finally:
        await consumer.stop()
    return found


def _answered(
    offer_id: str,
    documents: Mapping[str, dict[str, Any]],
    letters: Mapping[str, tuple[str, str]],
) -> dict[str, Any]:
    if offer_id in documents:
        return documents[offer_id]
    if letter := letters.get(hashlib.sha256(offer_id.encode()).hexdigest()):
        reason, detail = letter
        return {"error": {"reason": reason, "detail": detail}}
    raise DemoError(f"offer {offer_id[:100]!r} has neither a classification nor a dead letter")


def _too_large() -> dict[str, Any]:
    detail = f"more than {RECORD_BYTES} bytes, so that it was not sent"
    return {"error": {"reason": str(Reason.TOO_LARGE), "detail": detail}}
