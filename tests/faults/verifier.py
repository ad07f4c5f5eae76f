"""The verifier: what the service left behind against everything that Kafka acknowledged.

It knows nothing of the service's code: which of two events is newer, and what a guard must keep, is
written here once more, after the contract.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.ledger import Entry
from tests.faults.trace import Kind, Step

Document = Mapping[str, Any]
Place = tuple[int, int]

SHOWN = 5
"""Examples kept of each kind of violation."""
REMOVED = "removed"


@dataclass(frozen=True)
class DeadLetter:
    """What of a dead letter is judged. `sha256` and `cut` are its headers where it was cut."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: bytes | None
    sha256: str = ""


@dataclass
class Verdict:
    """What was found; `violations` is what must be empty."""

    violations: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def found(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        examples = self.violations.setdefault(kind, [])
        if len(examples) < SHOWN:
            examples.append(what)

    @property
    def is_clean(self) -> bool:
        return not self.violations


LOST = "lost"
STALE = "stale"
WRONG = "wrong category"
ALIEN = "unexplained document"
WRONGLY_SET_ASIDE = "wrongly dead-lettered"
REASON = "dead letter with a wrong reason"
CHANGED = "dead letter that is not the record"
COPIES = "dead letters doubled beyond what the faults explain"
EARLY = "committed ahead of its write"
UNCOMMITTED = "not committed at the end"
BEYOND = "committed beyond the end"
REPEATED = "writes repeated beyond what the faults explain"
UNKNOWN = "records in the topic that no ledger knows"


def verify(
    topic: str,
    entries: Iterable[Entry],
    stored: Mapping[str, Document],
    dead_letters: Iterable[DeadLetter],
    committed: Mapping[int, int],
    ends: Mapping[int, int],
    steps: Iterable[Step],
    explained: int,
) -> Verdict:
    """Holds all of it against the ledger.

    `ends` are the topic's own; `explained` is how many records the faults explain to be done more
    than once.
    """
    verdict = Verdict()
    ledger = {entry.place: entry for entry in entries}
    winners = _winners(ledger)
    _check_stored(verdict, topic, winners, stored, ledger)
    _check_dead_letters(verdict, topic, ledger, dead_letters, explained)
    _check_committed(verdict, ledger, committed, ends)
    _check_steps(verdict, ledger, steps, explained)
    return verdict


def _winners(ledger: Mapping[Place, Entry]) -> dict[str, Entry]:
    """The event that must stand for each offer at the end.

    Of offers alone the newest wins, across partitions. Offers that are also removed have one
    partition each, in whose order their events are told anew.
    """
    events: dict[str, list[Entry]] = {}
    for entry in ledger.values():
        if entry.kind in ("offer", "tombstone"):
            events.setdefault(entry.offer_id, []).append(entry)
    return {offer_id: _winner(history) for offer_id, history in events.items()}


def _winner(history: list[Entry]) -> Entry:
    if all(entry.kind == "offer" for entry in history):
        return max(history, key=lambda entry: entry.order)
    history.sort(key=lambda entry: entry.place)
    assert len({entry.partition for entry in history}) == 1, "a removed offer in two partitions"
    stands = history[0]
    revision = stands.revision
    for entry in history[1:]:
        if entry.kind == "tombstone" and entry.revision is None:
            stands = entry  # at the revision that was stored
        elif stands.kind == entry.kind == "offer":
            if entry.order >= stands.order:
                stands, revision = entry, entry.revision
        elif _number(entry.revision) >= _number(revision):
            stands, revision = entry, entry.revision
    return stands


def _number(revision: int | None) -> int:
    return -1 if revision is None else revision


def _check_stored(
    verdict: Verdict,
    topic: str,
    winners: Mapping[str, Entry],
    stored: Mapping[str, Document],
    ledger: Mapping[Place, Entry],
) -> None:
    for offer_id, winner in winners.items():
        document = stored.get(offer_id)
        if document is None:
            verdict.found(LOST, f"{offer_id!r}: {winner}")
            continue
        source = document["source"]
        place = source["partition"], source["offset"]
        if source["topic"] != topic or place != winner.place:
            standing = ledger.get(place)
            known = standing is not None and standing.offer_id == offer_id
            kind = STALE if known and source["topic"] == topic else ALIEN
            verdict.found(kind, f"{offer_id!r}: {place} stands, {winner.place} must: {winner}")
        elif (document["status"] == REMOVED) != (winner.kind == "tombstone"):
            verdict.found(WRONG, f"{offer_id!r} is {document['status']}: {winner}")
        elif winner.expected and document["category_id"] != winner.expected:
            verdict.found(WRONG, f"{offer_id!r} is {document['category_id']}: {winner}")
        else:
            verdict.counts["removed" if winner.kind == "tombstone" else "classified"] += 1
    for offer_id in stored.keys() - winners.keys():
        verdict.found(ALIEN, f"{offer_id!r}")


def _check_dead_letters(
    verdict: Verdict,
    topic: str,
    ledger: Mapping[Place, Entry],
    dead_letters: Iterable[DeadLetter],
    explained: int,
) -> None:
    seen: Counter[Place] = Counter()
    for letter in dead_letters:
        place = letter.partition, letter.offset
        entry = ledger.get(place)
        if letter.topic != topic or entry is None or entry.kind != "bad":
            verdict.found(WRONGLY_SET_ASIDE, f"{place}, {letter.reason}: {entry}")
            continue
        seen[place] += 1
        if letter.reason != entry.expected:
            verdict.found(REASON, f"{place} has {letter.reason!r}: {entry}")
        digest = letter.sha256 or hashlib.sha256(letter.value or b"").hexdigest()
        if digest != entry.digest:
            verdict.found(CHANGED, f"{place}: {entry}")
    for entry in ledger.values():
        if entry.kind == "bad" and entry.place not in seen:
            verdict.found(LOST, f"no dead letter: {entry}")
    verdict.counts["dead letters"] = len(seen)
    verdict.counts["dead letters again"] = copies = seen.total() - len(seen)
    if copies > explained:
        often = [f"{place}: {count} times" for place, count in seen.most_common(SHOWN)]
        verdict.violations[COPIES] = [f"{copies}, and {explained} are explained", *often]


def _check_committed(
    verdict: Verdict,
    ledger: Mapping[Place, Entry],
    committed: Mapping[int, int],
    ends: Mapping[int, int],
) -> None:
    if len(ledger) != sum(ends.values()):
        verdict.found(UNKNOWN, f"{len(ledger)} acknowledged, the topic holds {sum(ends.values())}")
    for partition, end in ends.items():
        offset = committed.get(partition, 0)
        if offset < end:
            verdict.found(UNCOMMITTED, f"partition {partition}: {offset}, and it ends at {end}")
        elif offset > end:
            verdict.found(BEYOND, f"partition {partition}: {offset}, and it ends at {end}")


def _check_steps(
    verdict: Verdict, ledger: Mapping[Place, Entry], steps: Iterable[Step], explained: int
) -> None:
    """No offset is committed before everything below it is acknowledged, step by step."""
    done: set[Place] = set()
    newest: dict[str, tuple[int, int, int, int]] = {}
    reached: dict[int, int] = {}
    repeated = 0
    for step in steps:
        place = step.partition, step.offset
        if step.kind != Kind.COMMIT:
            repeated += place in done
            done.add(place)
            entry = ledger.get(place)
            if entry is not None and entry.kind == "offer":
                known = newest.get(entry.offer_id)
                if known is None or entry.order > known:
                    newest[entry.offer_id] = entry.order
            continue
        for offset in range(reached.get(step.partition, 0), step.offset):
            entry = ledger.get((step.partition, offset))
            if entry is None or entry.kind == "empty" or entry.place in done:
                continue
            # Of successive offers of one id in one batch only the newest is written.
            if entry.kind == "offer" and newest.get(entry.offer_id, (-2,)) >= entry.order:
                continue
            verdict.found(EARLY, f"{step} with nothing acknowledged of {entry}")
        reached[step.partition] = max(reached.get(step.partition, 0), step.offset)
    verdict.counts["repeated"] = repeated
    if repeated > explained:
        verdict.violations[REPEATED] = [f"{repeated}, and {explained} are explained"]
