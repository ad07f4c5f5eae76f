"""What may be committed: never past an unsettled record, never backwards, nothing void."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from classifier.offsets import Claim, Offsets

P0, P1, P2 = (TopicPartition("offers", number) for number in range(3))


def held(*partitions: TopicPartition) -> Offsets:
    offsets = Offsets()
    offsets.assign(partitions)
    return offsets


def commit(offsets: Offsets) -> dict[TopicPartition, int]:
    ready = offsets.committable()
    offsets.committed(ready, offsets.epoch)
    return ready


def test_settled_batch_is_committed_past_its_last_record() -> None:
    offsets = held(P0)
    claim = offsets.claim({P0: (0, 10)})
    assert offsets.committable() == {}
    offsets.settle(claim)
    assert commit(offsets) == {P0: 10}
    assert offsets.committable() == {}
    assert offsets.unsettled == 0


def test_later_batch_waits_for_an_earlier_one() -> None:
    offsets = held(P0, P1)
    first = offsets.claim({P0: (0, 10)})
    second = offsets.claim({P0: (10, 20), P1: (5, 6)})
    third = offsets.claim({P1: (6, 9)})
    offsets.settle(third)
    assert offsets.committable() == {}
    offsets.settle(second)
    assert offsets.committable() == {P1: 9}
    offsets.settle(first)
    assert commit(offsets) == {P0: 20, P1: 9}


def test_gaps_between_records_are_passed() -> None:
    offsets = held(P0)
    offsets.settle(offsets.claim({P0: (3, 4)}))
    offsets.settle(offsets.claim({P0: (90, 100)}))
    assert commit(offsets) == {P0: 100}


def test_commit_that_was_not_acknowledged_is_offered_again() -> None:
    offsets = held(P0)
    offsets.settle(offsets.claim({P0: (0, 10)}))
    assert offsets.committable() == {P0: 10}
    assert offsets.committable() == {P0: 10}


def test_what_is_settled_during_a_commit_is_left_for_the_next() -> None:
    offsets = held(P0)
    offsets.settle(offsets.claim({P0: (0, 10)}))
    asked = offsets.committable()
    offsets.settle(offsets.claim({P0: (10, 20)}))
    offsets.committed(asked, offsets.epoch)
    assert commit(offsets) == {P0: 20}


def test_acknowledgements_out_of_order_never_lower_the_commit() -> None:
    offsets = held(P0)
    offsets.settle(offsets.claim({P0: (0, 20)}))
    offsets.committed({P0: 20}, offsets.epoch)
    offsets.committed({P0: 5}, offsets.epoch)
    assert offsets.done({P0: 20}) == {P0: 20}
    assert offsets.skippable({P0: 20}) == {}


# Assignments


def test_assignment_voids_every_claim() -> None:
    offsets = held(P0)
    claim = offsets.claim({P0: (0, 10)})
    assert offsets.is_valid(claim)
    offsets.assign([P0])
    assert not offsets.is_valid(claim)
    offsets.settle(claim)
    assert offsets.committable() == {}
    assert offsets.unsettled == 0
    assert offsets.is_valid(offsets.claim({P0: (0, 10)}))


def test_acknowledgement_of_an_earlier_assignment_changes_nothing() -> None:
    offsets = held(P0)
    epoch = offsets.epoch
    offsets.settle(offsets.claim({P0: (0, 10)}))
    offsets.assign([P1])
    offsets.assign([P0])
    claim = offsets.claim({P0: (0, 10)})
    offsets.committed({P0: 10}, epoch)
    assert offsets.done({P0: 10}) == {P0: 0}
    offsets.settle(claim)
    assert offsets.committable() == {P0: 10}


def test_without_partitions_there_is_nothing() -> None:
    offsets = Offsets()
    assert offsets.partitions == frozenset()
    assert offsets.committable() == {}
    offsets.assign([P0, P1])
    assert offsets.partitions == {P0, P1}
    offsets.assign(())
    assert offsets.partitions == frozenset()


def test_partition_that_went_back_begins_anew() -> None:
    """Its log was cut or made anew: what was committed of the old one says nothing of this."""
    offsets = held(P0, P2)
    offsets.settle(offsets.claim({P0: (0, 10)}))
    assert commit(offsets) == {P0: 10}
    old = offsets.claim({P0: (10, 12), P2: (0, 5)})
    new = offsets.claim({P0: (3, 6)})
    offsets.settle(old)
    assert commit(offsets) == {P2: 5}
    offsets.settle(new)
    assert commit(offsets) == {P0: 6}


@pytest.mark.parametrize(
    "span",
    [
        {P1: (0, 1)},
        {P0: (10, 10)},
        {P0: (12, 11)},
        {P0: (10, 11), P1: (0, 1)},
    ],
)
def test_claim_that_cannot_be_is_refused_and_leaves_no_trace(
    span: dict[TopicPartition, tuple[int, int]],
) -> None:
    offsets = held(P0, P2)
    offsets.settle(offsets.claim({P0: (0, 10)}))
    offsets.settle(offsets.claim({P2: (0, 1)}))
    with pytest.raises(ValueError, match="offers"):
        offsets.claim(span)
    assert commit(offsets) == {P0: 10, P2: 1}
    assert offsets.unsettled == 0
    with pytest.raises(ValueError, match="offers"):
        offsets.claim(span)


# Offsets without records, and the lag


def test_tail_without_records_is_skipped_once_nothing_is_in_flight() -> None:
    offsets = held(P0, P1)
    claim = offsets.claim({P0: (0, 10)})
    assert offsets.skippable({P0: 110, P1: 7, P2: 3}) == {P1: 7}
    offsets.settle(claim)
    assert offsets.skippable({P0: 110}) == {}
    commit(offsets)
    assert offsets.skippable({P0: 10}) == {}
    assert offsets.skippable({P0: 110}) == {P0: 110}
    offsets.committed({P0: 110}, offsets.epoch)
    assert offsets.skippable({P0: 110}) == {}
    assert offsets.done({P0: 110}) == {P0: 110}


def test_done_counts_from_the_first_record_in_flight_until_something_is_committed() -> None:
    offsets = held(P0)
    assert offsets.done({P0: 4, P1: 9}) == {P0: 4}
    claim = offsets.claim({P0: (4, 10)})
    offsets.claim({P0: (10, 12)})
    assert offsets.done({P0: 12}) == {P0: 4}
    offsets.settle(claim)
    commit(offsets)
    assert offsets.done({P0: 12}) == {P0: 10}
    assert offsets.unsettled == 1


# Any order of events


class Group(RuleBasedStateMachine):
    """A consumer that polls, finishes batches in any order and commits late, through rebalances."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = Offsets()
        self.positions: dict[TopicPartition, int] = {}
        self.open: list[Claim] = []
        self.void: list[Claim] = []
        self.settled: dict[TopicPartition, set[int]] = {}  # offsets with or without a record
        self.first: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}  # and known to be, in this assignment
        self.acknowledged: dict[TopicPartition, int] = {}
        self.on_the_way: list[tuple[dict[TopicPartition, int], int]] = []

    @initialize(partitions=st.sets(st.sampled_from([P0, P1])))
    def join(self, partitions: set[TopicPartition]) -> None:
        self.rebalance(partitions)

    @rule(partitions=st.sets(st.sampled_from([P0, P1, P2])))
    def rebalance(self, partitions: set[TopicPartition]) -> None:
        self.offsets.assign(partitions)
        self.void += self.open
        self.open = []
        self.settled = {partition: set() for partition in partitions}
        self.positions = {p: self.acknowledged.get(p, 0) for p in partitions}
        self.first = dict(self.positions)
        self.committed = {}

    @precondition(lambda self: self.positions)
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.positions)), min_size=1))
        spans = {}
        for partition in chosen:
            first = self.positions[partition] + data.draw(st.integers(0, 3))
            end = first + data.draw(st.integers(1, 4))
            self.settled[partition].update(range(self.positions[partition], first))
            spans[partition] = (first, end)
            self.positions[partition] = end
        self.open.append(self.offsets.claim(spans))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        claim = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.offsets.settle(claim)
        for partition, (first, end) in claim.spans.items():
            self.settled[partition].update(range(first, end))

    @precondition(lambda self: self.void)
    @rule()
    def settle_void(self) -> None:
        self.offsets.settle(self.void.pop())

    @precondition(lambda self: self.positions)
    @rule(data=st.data())
    def pass_offsets_without_records(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.positions)))
        before = self.positions[partition]
        self.positions[partition] += data.draw(st.integers(1, 3))
        self.settled[partition].update(range(before, self.positions[partition]))

    @rule()
    def ask_for_a_commit(self) -> None:
        self.on_the_way.append((self.offsets.committable(), self.offsets.epoch))

    @rule()
    def ask_for_a_commit_of_skipped(self) -> None:
        skippable = self.offsets.skippable(self.positions)
        for partition, position in skippable.items():
            assert position == self.positions[partition]
        self.on_the_way.append((skippable, self.offsets.epoch))

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.on_the_way) - 1))
        offsets, epoch = self.on_the_way.pop(number)
        if epoch == self.offsets.epoch:
            for partition, end in offsets.items():
                # Kafka takes commits in the order they were sent; an answer alone may be late.
                self.acknowledged[partition] = max(self.acknowledged.get(partition, 0), end)
                self.committed[partition] = self.acknowledged[partition]
        self.offsets.committed(offsets, epoch)

    @invariant()
    def nothing_unsettled_is_offered_or_was_committed(self) -> None:
        for offsets in (
            self.offsets.committable(),
            self.offsets.skippable(self.positions),
            {p: self.acknowledged.get(p, 0) for p in self.positions},
        ):
            for partition, end in offsets.items():
                done = self.settled[partition]
                assert all(offset in done for offset in range(self.first[partition], end))

    @invariant()
    def committable_only_grows(self) -> None:
        for partition, end in self.offsets.committable().items():
            assert end > self.acknowledged.get(partition, -1)

    @invariant()
    def done_is_between_the_commit_and_the_position(self) -> None:
        for partition, done in self.offsets.done(self.positions).items():
            assert self.first[partition] <= done <= self.positions[partition]
            assert done >= self.committed.get(partition, 0)

    @invariant()
    def claims_are_valid_until_the_next_assignment(self) -> None:
        assert all(map(self.offsets.is_valid, self.open))
        assert not any(map(self.offsets.is_valid, self.void))


TestAnyOrderOfEvents = Group.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
