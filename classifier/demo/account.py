"""The account: every record that was sent is found again, and how many categories are right.

The records are gone through once more and compared with what MongoDB and the dead-letter topic
hold, read back from there. Nothing that the service counts is believed here.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from pymongo.collection import Collection

from classifier.classification import REMOVED
from classifier.model import text_hash
from classifier.offer import Offer
from classifier.produce import Record
from classifier.record import decode_offer
from classifier.text import TextRecipe

Document = dict[str, Any]
Example = tuple[Offer, Document, str | None]
"""An offer as it was sent, its document, and its true category, where that is known."""

CLASSIFIED = "classified"
DEAD_LETTER = "dead letter"
SKIPPED = "skipped"
SUPERSEDED = "superseded"

# Records that are looked up in MongoDB by one query; the embedded database's `$in` is quadratic.
_CHUNK = 100
# Of each language so many offers are kept to be shown.
_SHOWN = 12
_SEED = 7


@dataclass(frozen=True)
class Sent:
    """One record that was sent, and the category it belongs to, where that is known."""

    record: Record
    truth: str | None = None


@dataclass(frozen=True, slots=True)
class _Event:
    sent: Sent
    record: Record
    offer_id: str | None  # None where the record does not say
    offer: Offer | None  # None for a tombstone, and for what is no offer
    revision: int | None


@dataclass
class Right:
    """How many offers of a kind have the category they belong to."""

    offers: int = 0
    right: int = 0
    certain: int = 0  # offers whose status is "classified"
    certain_right: int = 0

    def count(self, *, right: bool, certain: bool) -> None:
        self.offers += 1
        self.right += right
        self.certain += certain
        self.certain_right += right and certain


@dataclass
class Account:
    """What became of the records."""

    sent: int = 0
    found: Counter[str] = field(default_factory=Counter)  # by what became of them
    missing: int = 0
    first_missing: str = ""
    languages: dict[str, Right] = field(default_factory=lambda: defaultdict(Right))
    examples: dict[str, list[Example]] = field(default_factory=lambda: defaultdict(list))
    _met: Counter[str] = field(default_factory=Counter)  # offers by language
    _draw: random.Random = field(default_factory=lambda: random.Random(_SEED))

    def lose(self, what: str) -> None:
        """Count a record that is nowhere to be found."""
        self.missing += 1
        self.first_missing = self.first_missing or what[:200]

    def show(self, language: str, example: Example) -> None:
        """Keep the example, or not: of all that are given each is as likely to be kept.

        Vitter 1985, "Random Sampling with a Reservoir", algorithm R.
        """
        kept = self.examples[language]
        if len(kept) < _SHOWN:
            kept.append(example)
        else:
            place = self._draw.randrange(self._met[language] + 1)
            if place < _SHOWN:
                kept[place] = example
        self._met[language] += 1

    @property
    def overall(self) -> Right:
        """All languages together."""
        total = Right()
        for right in self.languages.values():
            total.offers += right.offers
            total.right += right.right
            total.certain += right.certain
            total.certain_right += right.certain_right
        return total


def settle(
    sent: Iterable[Sent],
    classifications: Collection[Document],
    dead_letters: Mapping[bytes, int],
    recipe: TextRecipe,
) -> Account:
    """Look for every record's end: as a classification of that offer at that revision or a newer
    one, a removal, a skip, or one of `dead_letters` (see `read_dead_letters`).

    Accuracy counts each offer once, by the event whose text and revision the document holds. Memory
    grows by some tens of bytes an offer.
    """
    account = Account()
    left = Counter(dead_letters)
    judged: set[int] = set()
    removed: set[int] = set()
    records = iter(sent)
    while chunk := [_event(each) for each in islice(records, _CHUNK)]:
        ids = list({event.offer_id for event in chunk if event.offer_id is not None})
        stored = {
            document["_id"]: document for document in classifications.find({"_id": {"$in": ids}})
        }
        for event in chunk:
            account.sent += 1
            print_ = fingerprint(event.record.key, event.record.value)
            document = stored.get(event.offer_id) if event.offer_id is not None else None
            if left[print_]:
                left[print_] -= 1
                account.found[DEAD_LETTER] += 1
                continue
            end = _end(event, document, removed)
            if end is None:
                account.lose(repr(event.record))
                continue
            account.found[end] += 1
            if end == CLASSIFIED and event.offer is not None and document is not None:
                _judge(account, event.sent.truth, event.offer, document, recipe, judged)
    for _ in removed:
        account.found[SUPERSEDED] -= 1
        account.lose("a tombstone, whose offer is still classified as it was before")
    return account


async def read_dead_letters(topic: str, client: Mapping[str, Any]) -> Counter[bytes]:
    """All dead letters on the topic, by what `fingerprint` gives for the record they came from.

    One record is one dead letter, however often it was written: its source names it.
    """
    consumer = AIOKafkaConsumer(auto_offset_reset="earliest", **client)
    await consumer.start()
    try:
        partitions = [
            TopicPartition(topic, partition)
            for partition in consumer.partitions_for_topic(topic) or ()
        ]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        seen: dict[tuple[bytes | None, ...], bytes] = {}
        for partition in partitions:
            while await consumer.position(partition) < ends[partition]:
                batches = await consumer.getmany(partition, timeout_ms=1_000)
                for letter in (letter for batch in batches.values() for letter in batch):
                    headers = dict(letter.headers)
                    source = tuple(map(headers.get, ("topic", "partition", "offset")))
                    seen[source] = _letter_fingerprint(letter, headers.get("sha256"))
        return Counter(seen.values())
    finally:
        await consumer.stop()


def fingerprint(key: bytes | None, value: bytes | None) -> bytes:
    """What a record and its dead letter have in common: the hash of the value, else of the key."""
    return hashlib.sha256(value if value is not None else b"key:" + (key or b"")).digest()


def _letter_fingerprint(letter: ConsumerRecord, whole: bytes | None) -> bytes:
    """`whole` is the header with the hash of the value, there when the value was cut."""
    return bytes.fromhex(whole.decode()) if whole else fingerprint(letter.key, letter.value)


def _event(sent: Sent) -> _Event:
    record = sent.record
    if record.value is not None:
        offer = decode_offer(record.value)
        if isinstance(offer, Offer):
            return _Event(sent, record, offer.offer_id, offer, offer.revision)
        return _Event(sent, record, None, None, None)
    try:
        offer_id = record.key.decode() if record.key else None
        headers = dict(record.headers)
        revision = int(headers["revision"]) if "revision" in headers else None
    except ValueError:
        return _Event(sent, record, None, None, None)
    return _Event(sent, record, offer_id, None, revision)


def _end(event: _Event, document: Document | None, removed: set[int]) -> str | None:
    """What became of the record; None when it is nowhere to be found.

    `removed` are the offers whose tombstone is found only if a newer offer comes after it.
    """
    if event.offer_id is None:
        return SKIPPED if event.record.key is None and event.record.value is None else None
    if document is None:
        return None
    stored = _revision(document["revision"])
    marked = document["status"] == REMOVED
    if event.offer is None:
        if marked:
            return REMOVED
        if event.revision is None or stored <= event.revision:
            removed.add(hash(event.offer_id))
        return SUPERSEDED
    if stored < _revision(event.revision):
        return None
    removed.discard(hash(event.offer_id))
    return SUPERSEDED if marked or stored > _revision(event.revision) else CLASSIFIED


def _revision(revision: int | None) -> int:
    return -1 if revision is None else revision


def _judge(
    account: Account,
    truth: str | None,
    offer: Offer,
    document: Document,
    recipe: TextRecipe,
    judged: set[int],
) -> None:
    name = hash(offer.offer_id)
    answered = (offer.revision, text_hash(recipe.text(offer)).hex())
    if name in judged or answered != (document["revision"], document["text_hash"]):
        return
    judged.add(name)
    language = offer.language or "unknown"
    account.show(language, (offer, document, truth))
    if truth is not None:
        account.languages[language].count(
            right=document["category_id"] == truth, certain=document["status"] == "classified"
        )


def examples(account: Account, most: int) -> Sequence[Example]:
    """Some offers to show, the languages taking turns."""
    by_language = [account.examples[language] for language in sorted(account.examples)]
    turns = (shown[turn] for turn in range(_SHOWN) for shown in by_language if turn < len(shown))
    return list(islice(turns, most))
