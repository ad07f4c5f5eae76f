from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pymongo
import pytest
from aiokafka import AIOKafkaProducer
from pymongo.collection import Collection

from classifier.classification import REMOVED
from classifier.deadletter import cut
from classifier.demo import account
from classifier.demo.account import Account, Document, Sent, fingerprint, settle
from classifier.model import text_hash
from classifier.offer import Offer
from classifier.produce import Record
from classifier.text import DEFAULT_RECIPE


@pytest.fixture
def stored(mongodb: str, database: str) -> Iterator[Collection[Document]]:
    with pymongo.MongoClient[Document](mongodb) as client:
        yield client[database]["classifications"]


def sent(truth: str | None = None, **fields: Any) -> Sent:
    offer = Offer(**fields)
    return Sent(Record(offer.offer_id.encode(), msgspec.json.encode(offer)), truth)


def tombstone(offer_id: str, revision: int | None = None) -> Sent:
    headers = () if revision is None else (("revision", str(revision).encode()),)
    return Sent(Record(offer_id.encode(), None, headers))


def document(category_id: str, status: str = "classified", **fields: Any) -> Document:
    offer = Offer(**fields)
    return {
        "_id": offer.offer_id,
        "category_id": category_id,
        "score": 0.9,
        "status": status,
        "revision": offer.revision,
        "text_hash": text_hash(DEFAULT_RECIPE.text(offer)).hex(),
    }


def marker(offer_id: str, revision: int | None = None) -> Document:
    at = datetime.now(UTC)
    return {"_id": offer_id, "status": REMOVED, "revision": revision, "removed_at": at}


def run(
    records: list[Sent], stored: Collection[Document], letters: Counter[bytes] | None = None
) -> Account:
    return settle(records, stored, letters or Counter(), DEFAULT_RECIPE)


A1: dict[str, Any] = {"offer_id": "a", "title": "Kettle", "language": "en", "revision": 1}
A2: dict[str, Any] = {**A1, "title": "Steel kettle", "revision": 2}


def test_every_end_is_found(stored: Collection[Document]) -> None:
    broken = Record(None, b"broken")
    stored.insert_many([document("kettles", **A2), marker("b", 1)])
    result = run(
        [sent(**A1), sent(**A2), tombstone("b", 1), Sent(broken), Sent(Record(None, None))],
        stored,
        Counter([fingerprint(None, b"broken")]),
    )
    assert result.found == {
        "superseded": 1,
        "classified": 1,
        "removed": 1,
        "dead letter": 1,
        "skipped": 1,
    }
    assert (result.sent, result.missing) == (5, 0)


@pytest.mark.parametrize(
    ("records", "documents"),
    [
        ([sent(**A1)], []),
        ([sent(**A2)], [document("kettles", **A1)]),
        ([Sent(Record(None, b"broken"))], []),
        ([tombstone("a")], []),
        ([tombstone("a")], [document("kettles", **A1)]),
        ([sent(**A1), tombstone("a", 1)], [document("kettles", **A1)]),
    ],
    ids=["never stored", "older", "no dead letter", "no marker", "still there", "still there at 1"],
)
def test_record_that_is_nowhere_is_missing(
    stored: Collection[Document], records: list[Sent], documents: list[Document]
) -> None:
    if documents:
        stored.insert_many(documents)
    result = run(records, stored)
    assert result.missing == 1
    assert result.first_missing
    assert sum(result.found.values()) == len(records) - 1


def test_equal_broken_records_need_a_dead_letter_each(stored: Collection[Document]) -> None:
    broken = [Sent(Record(None, b"broken"))] * 2
    assert run(broken, stored, Counter([fingerprint(None, b"broken")])).missing == 1


def test_late_tombstone_and_offer_after_tombstone_are_found(
    stored: Collection[Document],
) -> None:
    stored.insert_many([document("kettles", **A2), document("cables", offer_id="b", title="Cable")])
    result = run(
        [tombstone("a", 1), tombstone("b"), sent(offer_id="b", title="Cable")],
        stored,
    )
    assert (result.missing, result.found) == (0, {"superseded": 2, "classified": 1})


def test_accuracy_is_by_language_and_counts_an_offer_once(stored: Collection[Document]) -> None:
    german = {"offer_id": "g", "title": "Wasserkocher", "language": "de"}
    other = {"offer_id": "h", "title": "Toaster", "language": "de"}
    unknown = {"offer_id": "u", "title": "Thing", "language": "de"}
    stored.insert_many(
        [
            document("kettles", **A2),
            document("cables", "uncertain", **german),
            document("toasters", **other),
            document("cables", **unknown),
        ]
    )
    result = run(
        [
            sent("toasters", **A1),
            sent("kettles", **A2),
            sent("kettles", **A2),
            sent("kettles", **german),
            sent("toasters", **other),
            sent(None, **unknown),
        ],
        stored,
    )
    english, german_right = result.languages["en"], result.languages["de"]
    assert (english.offers, english.right, english.certain) == (1, 1, 1)
    assert (german_right.offers, german_right.right) == (2, 1)
    assert (german_right.certain, german_right.certain_right) == (1, 1)
    assert (result.overall.offers, result.overall.right) == (3, 2)
    shown = account.examples(result, 3)
    assert [offer.language for offer, _, _ in shown] == ["de", "en", "de"]


async def test_dead_letters_are_read_once_each(kafka: str, topic: str) -> None:
    client = {"bootstrap_servers": kafka}
    producer = AIOKafkaProducer(**client)
    await producer.start()

    async def letter(offset: int, value: bytes | None, key: bytes | None, *more: Any) -> None:
        source = [("topic", b"t"), ("partition", b"0"), ("offset", str(offset).encode())]
        await producer.send_and_wait(topic, value, key, headers=[*source, *more])

    await letter(1, b"one", None)
    await letter(1, b"one", None)
    await letter(2, b"one", None)
    await letter(3, None, b"\xff")
    whole = ("sha256", fingerprint(None, b"much longer").hex().encode())
    await letter(4, b"much", None, whole)
    await producer.stop()
    assert await account.read_dead_letters(topic, client) == {
        fingerprint(None, b"one"): 2,
        fingerprint(b"\xff", None): 1,
        fingerprint(None, b"much longer"): 1,
    }


def test_cut_dead_letter_carries_the_hash_that_the_account_looks_for() -> None:
    value, headers = cut(b"x" * 100, 10)
    assert value == b"x" * 10
    assert bytes.fromhex(dict(headers)["sha256"].decode()) == fingerprint(None, b"x" * 100)
