"""The verifier finds what was planted, each by its name, and nothing where all is well."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults import verifier
from tests.faults.ledger import Entry, Ledger, read
from tests.faults.trace import Kind, Trace
from tests.faults.verifier import DeadLetter, Verdict, verify

BAD = b"{"
DIGEST = hashlib.sha256(BAD).hexdigest()


def source(partition: int, offset: int) -> dict[str, Any]:
    return {"topic": "offers", "partition": partition, "offset": offset}


@dataclass
class Place:
    """Three offers in two partitions, one of them changed, one removed; a dead letter, a skip."""

    entries: list[Entry] = field(
        default_factory=lambda: [
            Entry(0, 0, 1_000, "offer", "a", 1, "tents"),
            Entry(0, 1, 1_001, "offer", "a", 2, "sofas"),
            Entry(0, 2, 1_002, "bad", expected="malformed JSON", digest=DIGEST),
            Entry(0, 3, 1_003, "offer", "b", 1, "tents"),
            Entry(0, 4, 1_004, "tombstone", "b", None),
            Entry(1, 0, 1_000, "offer", "c", None, "tents"),
            Entry(1, 1, 900, "offer", "c", None, "sofas"),
            Entry(1, 2, 1_002, "empty"),
        ]
    )
    stored: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "a": {"source": source(0, 1), "status": "classified", "category_id": "sofas"},
            "b": {"source": source(0, 4), "status": "removed"},
            "c": {"source": source(1, 0), "status": "uncertain", "category_id": "tents"},
        }
    )
    letters: list[DeadLetter] = field(
        default_factory=lambda: [DeadLetter("offers", 0, 2, "malformed JSON", BAD)]
    )
    committed: dict[int, int] = field(default_factory=lambda: {0: 5, 1: 3})
    ends: dict[int, int] = field(default_factory=lambda: {0: 5, 1: 3})
    steps: list[tuple[Kind, int, int]] = field(
        default_factory=lambda: [
            (Kind.WRITTEN, 0, 1),  # and with it (0, 0), of the same batch
            (Kind.WRITTEN, 0, 3),
            (Kind.WRITTEN, 0, 4),
            (Kind.SET_ASIDE, 0, 2),
            (Kind.COMMIT, 0, 5),
            (Kind.WRITTEN, 1, 0),
            (Kind.COMMIT, 1, 3),
        ]
    )
    explained: int = 0

    def verdict(self) -> Verdict:
        trace = Trace()
        for step in self.steps:
            trace.add(*step)
        return verify(
            "offers",
            self.entries,
            self.stored,
            self.letters,
            self.committed,
            self.ends,
            trace,
            self.explained,
        )


def test_nothing_is_found_where_all_is_well() -> None:
    verdict = Place().verdict()
    assert verdict.is_clean
    assert verdict.counts == {
        "classified": 2,
        "removed": 1,
        "dead letters": 1,
        "dead letters again": 0,
        "repeated": 0,
    }


def lost(place: Place) -> None:
    del place.stored["a"]


def lost_though_committed_and_written(place: Place) -> None:
    place.stored.clear()


def lost_dead_letter(place: Place) -> None:
    place.letters.clear()


def removal_that_was_lost(place: Place) -> None:
    place.stored["b"] = {
        "source": source(0, 3),
        "status": "classified",
        "category_id": "tents",
    }


def stale_revision(place: Place) -> None:
    place.stored["a"] = {
        "source": source(0, 0),
        "status": "classified",
        "category_id": "tents",
    }


def older_by_its_clock_though_later_in_kafka(place: Place) -> None:
    place.stored["c"]["source"] = source(1, 1)


def offer_of_another_place(place: Place) -> None:
    place.stored["a"]["source"] = source(0, 3)


def event_of_another_topic(place: Place) -> None:
    place.stored["a"]["source"]["topic"] = "others"


def document_of_nobody(place: Place) -> None:
    place.stored["probe"] = {"source": source(0, 0), "status": "classified"}


def answer_of_the_neighbour(place: Place) -> None:
    place.stored["a"]["category_id"] = "tents"


def classification_where_a_marker_must_be(place: Place) -> None:
    place.stored["b"] |= {"status": "classified", "category_id": "tents"}


def good_record_set_aside(place: Place) -> None:
    place.letters.append(DeadLetter("offers", 0, 1, "no answer from the model", b"{}"))


def tombstone_set_aside(place: Place) -> None:
    place.letters.append(DeadLetter("offers", 0, 4, "refused by MongoDB", None))


def wrong_reason(place: Place) -> None:
    place.letters[0] = replace(place.letters[0], reason="refused by MongoDB")


def other_bytes(place: Place) -> None:
    place.letters[0] = replace(place.letters[0], value=b"{ ")


def wrong_hash_of_what_was_cut(place: Place) -> None:
    place.letters[0] = replace(place.letters[0], sha256="0" * 64)


def doubled_dead_letter(place: Place) -> None:
    place.letters *= 2


def committed_before_the_write(place: Place) -> None:
    place.steps[0], place.steps[4] = place.steps[4], place.steps[0]


def committed_before_one_write_of_many(place: Place) -> None:
    place.steps.remove((Kind.WRITTEN, 0, 4))
    place.steps.append((Kind.WRITTEN, 0, 4))


def committed_before_the_dead_letter(place: Place) -> None:
    place.steps[3], place.steps[4] = place.steps[4], place.steps[3]


def committed_after_a_stale_write_only(place: Place) -> None:
    place.steps[0] = (Kind.WRITTEN, 0, 0)


def left_uncommitted(place: Place) -> None:
    place.committed[1] = 2


def never_committed(place: Place) -> None:
    del place.committed[1]


def committed_beyond_the_end(place: Place) -> None:
    place.committed[1] = 4


def done_again(place: Place) -> None:
    place.steps += [(Kind.WRITTEN, 0, 1), (Kind.WRITTEN, 1, 0)]
    place.explained = 1


def record_that_no_ledger_knows(place: Place) -> None:
    del place.entries[-1]


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lost, verifier.LOST),
        (lost_though_committed_and_written, verifier.LOST),
        (lost_dead_letter, verifier.LOST),
        (removal_that_was_lost, verifier.STALE),
        (stale_revision, verifier.STALE),
        (older_by_its_clock_though_later_in_kafka, verifier.STALE),
        (offer_of_another_place, verifier.ALIEN),
        (event_of_another_topic, verifier.ALIEN),
        (document_of_nobody, verifier.ALIEN),
        (answer_of_the_neighbour, verifier.WRONG),
        (classification_where_a_marker_must_be, verifier.WRONG),
        (good_record_set_aside, verifier.WRONGLY_SET_ASIDE),
        (tombstone_set_aside, verifier.WRONGLY_SET_ASIDE),
        (wrong_reason, verifier.REASON),
        (other_bytes, verifier.CHANGED),
        (wrong_hash_of_what_was_cut, verifier.CHANGED),
        (doubled_dead_letter, verifier.COPIES),
        (committed_before_the_write, verifier.EARLY),
        (committed_before_one_write_of_many, verifier.EARLY),
        (committed_before_the_dead_letter, verifier.EARLY),
        (committed_after_a_stale_write_only, verifier.EARLY),
        (left_uncommitted, verifier.UNCOMMITTED),
        (never_committed, verifier.UNCOMMITTED),
        (committed_beyond_the_end, verifier.BEYOND),
        (done_again, verifier.REPEATED),
        (record_that_no_ledger_knows, verifier.UNKNOWN),
    ],
)
def test_what_was_planted_is_found(plant: Callable[[Place], None], kind: str) -> None:
    place = Place()
    plant(place)
    assert set(place.verdict().violations) == {kind}


def test_what_the_faults_explain_is_counted_and_no_violation() -> None:
    place = Place(explained=3)
    doubled_dead_letter(place)
    place.steps += [(Kind.WRITTEN, 0, 1), (Kind.SET_ASIDE, 0, 2)]
    verdict = place.verdict()
    assert verdict.is_clean
    assert verdict.counts["repeated"] == 2
    assert verdict.counts["dead letters again"] == 1


# Which event must stand, of one offer in one partition: (revision, is a tombstone), by offset.
@pytest.mark.parametrize(
    ("history", "stands"),
    [
        ([(1, False), (2, False)], 1),
        ([(2, False), (1, False)], 0),
        ([(1, False), (1, False)], 1),
        ([(None, False), (0, False)], 1),
        ([(0, False), (None, False)], 0),
        ([(2, False), (1, True)], 0),
        ([(2, False), (2, True)], 1),
        ([(2, False), (None, True)], 1),
        ([(2, False), (None, True), (1, False)], 1),
        ([(2, False), (None, True), (2, False)], 2),
        ([(2, False), (3, True), (2, False)], 1),
        ([(2, False), (3, True), (3, False), (2, True)], 2),
        ([(None, True), (None, False)], 1),
        ([(None, False), (None, True)], 1),
    ],
)
def test_winner(history: list[tuple[int | None, bool]], stands: int) -> None:
    entries = [
        Entry(0, n, 1_000, "tombstone" if gone else "offer", "a", revision)
        for n, (revision, gone) in enumerate(history)
    ]
    assert verifier._winner(entries).offset == stands


def test_ledger_is_read_up_to_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    entries = Place().entries
    ledger.acknowledged(entries[:3])
    ledger.acknowledged(entries[3:])
    ledger.close()
    assert ledger.ends == {0: 5, 1: 3}
    with path.open("ab") as file:
        file.write(msgspec.json.encode(entries[0])[:-4])
    assert list(read(path)) == entries


def test_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    trace = Trace()
    steps = [(Kind.WRITTEN, 0, 1), (Kind.SET_ASIDE, 255, 2**43), (Kind.COMMIT, 3, 0)]
    for step in steps:
        trace.add(*step)
    trace.save(tmp_path / "trace")
    assert [tuple(step) for step in Trace.load(tmp_path / "trace")] == steps
