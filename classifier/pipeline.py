"""The pipeline: what becomes of a fetched batch.

    fetch -> prepare -> compute -> write -> commit

A batch passes through these in order; while one is computed, the next is fetched and tokenised and
the last is written. Only so many are in flight at once, so that a slow end reaches back to Kafka,
where the partitions pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import numpy as np

from classifier import log
from classifier.classification import Answered, Answerer, Event, document, remove, upsert, waves
from classifier.consumer import OfferConsumer
from classifier.deadletter import DeadLetters
from classifier.engine_thread import EngineThread
from classifier.metrics import Metrics
from classifier.model import Asked, Question
from classifier.offsets import Claim, Offsets
from classifier.patience import AbandonedError
from classifier.record import (
    INFERENCE_DETAIL,
    NO_TEXT_DETAIL,
    Decoded,
    Reason,
    Record,
    Reject,
    decode_records,
)
from classifier.settings import Settings
from classifier.store import Store, Written

FULL_SECONDS = 1.0
"""A pipeline that is full for longer pauses the partitions."""

_log = log.get("pipeline")


@dataclass(slots=True)
class Batch:
    """One fetched batch on its way, and what has become of its records so far."""

    records: Sequence[Record]
    claims: list[Claim]
    decoded: Decoded = field(default_factory=Decoded)
    asked: Asked = field(default_factory=lambda: Asked([], Question([], []), 0))


class Pipeline:
    """The stages between one engine and one membership in the group."""

    def __init__(
        self,
        settings: Settings,
        engine: EngineThread,
        offsets: Offsets,
        consumer: OfferConsumer,
        store: Store,
        dead_letters: DeadLetters,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._model = engine.model
        manifest = self._model.artifact.manifest
        self._answerer = Answerer(manifest.id, settings.promotion, manifest.taxonomy)
        self._offsets = offsets
        self._consumer = consumer
        self._store = store
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._preparing = ThreadPoolExecutor(1, "prepare")
        self._in_flight: list[Batch] = []
        self._left = asyncio.Event()  # set, and replaced, whenever a batch leaves
        self.moved = time.monotonic()
        """When a batch was fetched or left a stage for the last time."""

    @property
    def offers_in_flight(self) -> int:
        """Records fetched and not yet committed."""
        return sum(len(batch.records) for batch in self._in_flight)

    async def run(self, stopping: asyncio.Event) -> None:
        """Runs the stages until `stopping`, then finishes what is in flight within the bound."""
        fetched: asyncio.Queue[Batch] = asyncio.Queue()
        prepared: asyncio.Queue[Batch] = asyncio.Queue()
        computed: asyncio.Queue[Batch] = asyncio.Queue()
        try:
            async with asyncio.TaskGroup() as tasks:
                fetching = tasks.create_task(self._fetch(fetched))
                stages = [
                    tasks.create_task(self._prepare_each(fetched, prepared)),
                    tasks.create_task(self._compute_each(prepared, computed)),
                    tasks.create_task(self._write_each(computed)),
                ]
                await stopping.wait()
                fetching.cancel()
                _log.info("draining", batches=len(self._in_flight))
                try:
                    async with asyncio.timeout(self._settings.drain_seconds):
                        await self.finished()
                except TimeoutError:
                    _log.warning("drain: work in flight dropped", batches=len(self._in_flight))
                for stage in stages:
                    stage.cancel()
        finally:
            self._preparing.shutdown(cancel_futures=True)

    async def finished(self) -> None:
        """Waits until nothing is in flight."""
        while self._in_flight:
            await self._left.wait()

    async def _fetch(self, fetched: asyncio.Queue[Batch]) -> None:
        """Takes batches while there is room; without room it only stays in the group."""
        full_since: float | None = None
        while True:
            if len(self._in_flight) < self._settings.batches_in_flight:
                full_since = None
                got = await self._consumer.fetch()
                if got is not None:
                    batch = Batch(got.records, got.claims)
                    self._in_flight.append(batch)
                    self.moved = time.monotonic()
                    fetched.put_nowait(batch)
                continue
            full_since = full_since or time.monotonic()
            patience = full_since + FULL_SECONDS - time.monotonic()
            if patience > 0:
                # Most waits are short, and over as soon as a batch has left.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._left.wait(), patience)
            else:
                await self._consumer.idle()

    async def _prepare_each(
        self, fetched: asyncio.Queue[Batch], prepared: asyncio.Queue[Batch]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await fetched.get()
            if self._wanted(batch):
                try:
                    await loop.run_in_executor(self._preparing, self._prepare, batch)
                except Exception:
                    _log.error("a batch cannot be prepared", spans=_spans(batch))
                    raise
                self.moved = time.monotonic()
            prepared.put_nowait(batch)

    def _prepare(self, batch: Batch) -> None:
        """Decodes a batch, makes its texts, and looks them up or tokenises them."""
        try:
            decoded, asked = self._ask(batch.records)
        except Exception as error:  # noqa: BLE001 whatever a decoder or tokeniser may raise
            decoded, asked = self._ask_sound(batch.records, error)
        batch.decoded, batch.asked = decoded, asked
        with_text = set(asked.indexes)
        decoded.rejects += [
            Reject(record, Reason.NO_TEXT, NO_TEXT_DETAIL)
            for index, (record, _) in enumerate(decoded.offers)
            if index not in with_text
        ]

    def _ask(self, records: Sequence[Record]) -> tuple[Decoded, Asked]:
        settings, seconds = self._settings, self._metrics.stage_seconds
        started = time.monotonic()
        decoded = decode_records(records, settings.record_bytes, settings.kafka_framing)
        between = time.monotonic()
        asked = self._model.ask(offer for _, offer in decoded.offers)
        seconds.observe("decode", between - started)
        seconds.observe("tokenise", time.monotonic() - between)
        return decoded, asked

    def _ask_sound(self, records: Sequence[Record], error: Exception) -> tuple[Decoded, Asked]:
        """Sets aside the records that fail alone, too, so that they cost their neighbours nothing.

        Raises `error` where known texts fail: then no record is to blame.
        """
        try:
            self._model.prepare([question.text for question in self._model.artifact.golden])
        except Exception:  # noqa: BLE001
            raise error from None
        sound: list[Record] = []
        rejects: list[Reject] = []
        for record in records:
            try:
                self._ask([record])
            except MemoryError:
                raise  # the machine's, not the record's
            except Exception as own:  # noqa: BLE001
                rejects.append(Reject(record, Reason.UNREADABLE, repr(own)))
            else:
                sound.append(record)
        decoded, asked = self._ask(sound)
        decoded.rejects += rejects
        return decoded, asked

    async def _compute_each(
        self, prepared: asyncio.Queue[Batch], computed: asyncio.Queue[Batch]
    ) -> None:
        while True:
            batch = await prepared.get()
            if self._wanted(batch):
                await self._engine.compute(batch.asked.question, partial(self._wanted, batch))
                self.moved = time.monotonic()
            computed.put_nowait(batch)

    async def _write_each(self, computed: asyncio.Queue[Batch]) -> None:
        while True:
            batch = await computed.get()
            try:
                if self._wanted(batch):
                    await self._write(batch)
            except AbandonedError:
                pass
            except Exception:
                _log.error("a batch cannot be written", spans=_spans(batch))
                raise
            finally:
                # Whoever waits for this batch sees it gone only after its offsets are committed.
                self._in_flight.remove(batch)
                self.moved = time.monotonic()
                self._left.set()
                self._left = asyncio.Event()

    async def _write(self, batch: Batch) -> None:
        """Everything of a batch is acknowledged, then its offsets are committed, then counted."""
        wanted = partial(self._wanted, batch)
        rejects = batch.decoded.rejects
        answered = self._answered(batch)
        started = time.monotonic()
        events: list[Event] = [*answered, *batch.decoded.removals]
        if batch.decoded.removals:
            events.sort(key=lambda event: (event.record.partition, event.record.offset))
        account = _Account()
        outdone = len(events)  # by a newer offer of the same id in this batch
        at = datetime.now(UTC)
        for wave in waves(events):
            updates = [
                upsert(document(event, self._answerer, at))
                if isinstance(event, Answered)
                else remove(event, at)
                for event in wave
            ]
            written = await self._store.write(updates, wanted)
            refused = dict(written.refused)
            for index, detail in written.refused:
                rejects.append(Reject(wave[index].record, Reason.DOCUMENT, detail))
            account.written(written, [e for i, e in enumerate(wave) if i not in refused])
            outdone -= len(wave)
        acknowledged = time.time()
        self._metrics.stage_seconds.observe("write", time.monotonic() - started)
        await self._dead_letters.send(rejects, wanted)
        started = time.monotonic()
        for claim in batch.claims:
            self._offsets.settle(claim)
        if await self._consumer.commit():
            self._metrics.stage_seconds.observe("commit", time.monotonic() - started)
            self._count(batch, account, outdone, acknowledged)

    def _answered(self, batch: Batch) -> list[Answered]:
        """The batch's offers with their answers; those the engine cannot answer are set aside."""
        answered: list[Answered] = []
        question = batch.asked.question
        hashes, answers = question.hashes, question.answers
        indexes = batch.asked.indexes
        for index, text, prediction in zip(indexes, hashes, answers, strict=True):
            record, offer = batch.decoded.offers[index]
            if prediction is None:
                batch.decoded.rejects.append(Reject(record, Reason.INFERENCE, INFERENCE_DETAIL))
            else:
                answered.append(Answered(record, offer, prediction, text.hex()))
        return answered

    def _count(self, batch: Batch, account: _Account, outdone: int, acknowledged: float) -> None:
        """Raises the counters, once the batch is committed, and so once for each record."""
        metrics = self._metrics
        decoded, question = batch.decoded, batch.asked.question
        for outcome, count in (
            ("classified", account.classified),
            ("uncertain", account.uncertain),
            ("removed", account.removed),
            ("superseded", outdone),
            ("skipped", decoded.skipped),
            ("dead_letter", len(decoded.rejects)),
        ):
            metrics.offers.inc(outcome, count)
        metrics.writes.inc("inserted", account.inserted)
        metrics.writes.inc("updated", account.updated)
        metrics.writes.inc("unchanged", account.unchanged)
        metrics.dead_letters.inc_many(str(reject.reason) for reject in decoded.rejects)
        metrics.predictions.inc_many(account.categories)
        metrics.score.observe_many(np.array(account.scores))
        metrics.cache.inc("hit", question.hits)
        metrics.cache.inc("miss", len(question.ids))
        real, padding = question.tokens()
        metrics.tokens.inc("real", real)
        metrics.tokens.inc("padding", padding)
        metrics.truncated.inc("characters", batch.asked.cut)
        metrics.truncated.inc("tokens", question.cut)
        sent = np.array(account.sent, np.float64)
        # A producer's clock may run ahead of ours; an offer is never younger than nothing.
        ages = np.maximum(acknowledged - sent[sent >= 0] / 1000, 0)
        metrics.offer_age_seconds.observe_many(ages)

    def _wanted(self, batch: Batch) -> bool:
        """Whether the batch still belongs to this member."""
        return all(map(self._offsets.is_valid, batch.claims))


@dataclass(slots=True)
class _Account:
    """What MongoDB acknowledged of one batch."""

    classified: int = 0
    uncertain: int = 0
    removed: int = 0
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    categories: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)  # Kafka timestamps, ms; -1: the record has none

    def written(self, written: Written, events: list[Event]) -> None:
        """Adds one bulk: its results, and the events that it took."""
        self.inserted += written.inserted
        self.updated += written.updated
        self.unchanged += written.unchanged
        for event in events:
            if not isinstance(event, Answered):
                self.removed += 1
                continue
            if event.prediction.status == "classified":
                self.classified += 1
            else:
                self.uncertain += 1
            self.categories.append(event.prediction.category_id)
            self.scores.append(event.prediction.score)
            self.sent.append(event.record.timestamp)


def _spans(batch: Batch) -> list[str]:
    """Where a batch came from, for a person who looks for the record that did it."""
    return [
        f"{p.topic}/{p.partition} {first} to {end}"
        for claim in batch.claims
        for p, (first, end) in claim.spans.items()
    ]
