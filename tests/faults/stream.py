"""The stream: offers, changes, stale ones, removals, and every kind of record that hurts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from aiokafka import AIOKafkaProducer

from classifier.model import Model
from classifier.offer import Offer
from tests.faults.ledger import Entry, Kind, Ledger
from training.tiny import tiny_offers

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
LIVING = 20_000
"""So many offers are remembered, to be changed and removed."""
RECORD_BYTES = 262_144
"""The service's own limit in a campaign; a larger record is a dead letter."""
MARGIN = 0.05
"""A text whose two best categories are closer may fall either way beside other neighbours."""

IDS = ("$where", "$set", "a.b", "../x", "nul\0inside", " ", "null", '{"$gt": ""}', "ü" * 512)


@dataclass(frozen=True)
class Event:
    """A record to send, and what must become of it."""

    kind: Kind
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    timestamp: int | None = None
    offer_id: str = ""
    revision: int | None = None
    expected: str = ""


@dataclass
class _Life:
    """What was sent of one offer last."""

    offer_id: str
    revision: int | None
    removed: bool = False
    jumps: bool = False  # sent with wrong clocks, never removed
    scattered: bool = False  # without a key, over all partitions, never removed


class Stream:
    """An endless stream of events; the same seed and texts give the same one."""

    def __init__(self, seed: int, partitions: int, texts: Mapping[str, str]) -> None:
        """`texts`: titles with the category that the model gives each."""
        self._random = random.Random(f"stream {seed}")
        self._partitions = partitions
        self._texts = list(texts.items())
        self._lives: list[_Life] = []
        self._number = 0
        self._kinds = (
            (self._new, 70),
            (self._changed, 12),
            (self._stale, 4),
            (self._removed, 5),
            (self._scattered, 3),
            (self._jumping, 2),
            (self._bad, 2.5),
            (self._empty, 0.5),
            (self._hostile, 0.7),
            (self._huge, 0.3),
        )

    def take(self, count: int) -> list[Event]:
        makers = self._random.choices(
            [maker for maker, _ in self._kinds], [share for _, share in self._kinds], k=count
        )
        return [maker() for maker in makers]

    def _name(self) -> str:
        self._number += 1
        return f"o{self._number}"

    def _offer(self, life: _Life, revision: int | None, **more: object) -> Event:
        title, category = self._random.choice(self._texts)
        fields: dict[str, object] = {"offer_id": life.offer_id, "title": title, "shop_id": "s1"}
        if revision is not None:
            fields["revision"] = revision
            if life.revision is None or revision >= life.revision:
                life.revision, life.removed = revision, False
        partition = self._random.randrange(self._partitions) if life.scattered else None
        timestamp = None
        if life.jumps:
            hours = self._random.uniform(-48, 48)
            timestamp = int((time.time() + 3_600 * hours) * 1000)
        return Event(
            "offer",
            None if life.scattered else life.offer_id.encode(),
            msgspec.json.encode(fields | more),
            partition=partition,
            timestamp=timestamp,
            offer_id=life.offer_id,
            revision=revision,
            expected=category,
        )

    def _remember(self, life: _Life) -> _Life:
        if len(self._lives) < LIVING:
            self._lives.append(life)
        else:
            self._lives[self._random.randrange(LIVING)] = life
        return life

    def _any(self) -> _Life | None:
        return self._random.choice(self._lives) if self._lives else None

    def _new(self) -> Event:
        has_revision = self._random.random() < 0.85
        life = self._remember(_Life(self._name(), None))
        return self._offer(life, self._random.randrange(3, 9) if has_revision else None)

    def _changed(self) -> Event:
        life = self._any()
        if life is None:
            return self._new()
        if life.revision is None:
            life.removed = False
            return self._offer(life, None)
        return self._offer(life, life.revision + self._random.randrange(3))

    def _stale(self) -> Event:
        life = self._any()
        if life is None or not life.revision:
            return self._new()
        return self._offer(life, self._random.randrange(life.revision))

    def _removed(self) -> Event:
        life = self._any()
        if life is None or life.jumps or life.scattered:
            return self._new()
        revision = None
        if life.revision is not None:
            kind = self._random.randrange(4)  # no revision, a stale one, the same, a higher one
            revision = (None, max(0, life.revision - 1), life.revision, life.revision + 1)[kind]
        headers: tuple[tuple[str, bytes], ...] = ()
        if revision is not None:
            headers = (("revision", str(revision).encode()),)
            assert life.revision is not None
            life.revision = max(life.revision, revision)
        life.removed = True
        return Event(
            "tombstone",
            life.offer_id.encode(),
            None,
            headers,
            offer_id=life.offer_id,
            revision=revision,
        )

    def _scattered(self) -> Event:
        return self._offer(
            self._remember(_Life(self._name(), None, scattered=True)), self._random.randrange(9)
        )

    def _jumping(self) -> Event:
        return self._offer(self._remember(_Life(self._name(), None, jumps=True)), None)

    def _hostile(self) -> Event:
        # Each once a campaign and a partition, and never removed.
        base = self._random.choice(IDS)
        life = _Life(base[:480] + str(self._random.randrange(1_000)), None, scattered=True)
        return self._offer(life, self._random.randrange(9))

    def _huge(self) -> Event:
        """As large as is taken, or nearly."""
        life = _Life(self._name(), None)
        padding = "x" * self._random.randrange(RECORD_BYTES // 8, RECORD_BYTES - 1_000)
        return self._offer(life, 1, unknown=padding)

    def _empty(self) -> Event:
        return Event("empty", b"", None, partition=self._random.randrange(self._partitions))

    def _bad(self) -> Event:
        name = self._name()
        title, _ = self._random.choice(self._texts)
        good = json.dumps({"offer_id": name, "title": title}).encode()  # ASCII: cut anywhere
        key: bytes | None = name.encode()
        value: bytes | None
        headers: tuple[tuple[str, bytes], ...] = ()
        value, reason = self._random.choice(
            (
                (good[: self._random.randrange(1, len(good))], "malformed JSON"),
                (b"", "malformed JSON"),
                (good[:-1] + b', "price": NaN}', "malformed JSON"),
                (good[:-2] + b'\xe9"}', "not UTF-8"),
                (good.decode().encode("utf-16"), "not UTF-8"),
                (b"\0\0\0\0\x2a" + good, "schema registry frame"),
                (b"\x1f\x8b\x08\0" + good, "compressed value"),
                (b"\x28\xb5\x2f\xfd" + good, "compressed value"),
                (b'["an", "array"]', "not an offer"),
                (good.replace(b'"offer_id"', b'"id"'), "not an offer"),
                (good[:-1] + b', "title": ["a"]}', "not an offer"),
                (b'{"offer_id": "%s", "title": " \xe2\x80\x8b"}' % name.encode(), "no text"),
                (b'{"offer_id": "%s", "title": "4012345678901"}' % name.encode(), "no text"),
                (good[:-1] + b', "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "nested too deep"),
                (good + b" " * RECORD_BYTES, "too large"),
                (None, "bad revision header"),
                (None, "not UTF-8"),
            )
        )
        if reason == "bad revision header":
            headers = (("revision", b"-1"),)
        elif value is None:
            key = b"\xff" + name.encode()
        return Event("bad", key, value, headers, expected=reason)


def texts(model: Model, seed: int = 0) -> dict[str, str]:
    """Titles of many lengths, each with the category that the model gives it alone."""
    titles = sorted({offer.title or "" for offer, _ in tiny_offers(seed=seed, each=8)})
    made = [model.recipe.text(Offer("x", title=title, shop_id="s1")) for title in titles]
    found: dict[str, str] = {}
    for title, prediction in zip(titles, model.predict(made), strict=True):
        if prediction is None:
            continue
        next_best = max((score for _, score in prediction.alternatives), default=0.0)
        if prediction.score - next_best > MARGIN:
            found[title] = prediction.category_id
    return found


class Producers:
    """One producer for every codec, straight to the broker: what it acknowledges is the ledger."""

    def __init__(self, bootstrap: str, topic: str, ledger: Ledger) -> None:
        self._topic = topic
        self._ledger = ledger
        self._clock = 0
        self._producers = [
            AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks="all",
                linger_ms=2,
                compression_type=codec,
                max_request_size=4 * RECORD_BYTES,
            )
            for codec in CODECS
        ]
        self._turn = 0

    async def start(self) -> None:
        for producer in self._producers:
            await producer.start()

    async def send(self, events: Sequence[Event]) -> None:
        """Sends events, all with one codec, and returns once they are in the ledger."""
        producer = self._producers[self._turn % len(self._producers)]
        self._turn += 1
        sent = []
        times = []
        for event in events:
            # Never back: what Kafka orders by offset, the clocks of one shop order alike.
            self._clock = max(self._clock, int(time.time() * 1000))
            times.append(event.timestamp or self._clock)
            sent.append(
                await producer.send(
                    self._topic,
                    value=event.value,
                    key=event.key,
                    headers=list(event.headers),
                    partition=event.partition,
                    timestamp_ms=times[-1],
                )
            )
        self._ledger.acknowledged(
            [
                Entry(
                    written.partition,
                    written.offset,
                    at,  # the embedded broker tells that of the first record of a batch for all
                    event.kind,
                    event.offer_id,
                    event.revision,
                    event.expected,
                    hashlib.sha256(event.value or b"").hexdigest() if event.kind == "bad" else "",
                )
                for event, at, written in zip(
                    events, times, await asyncio.gather(*sent), strict=True
                )
            ]
        )

    async def stop(self) -> None:
        for producer in self._producers:
            await producer.stop()
