"""Offsets: what may be committed, and nothing else.

A fetched batch claims the offsets it reached. Once a claim is settled, that is, each of its records
is written, set aside or counted, its offsets may be committed as soon as every earlier claim of the
same partition is settled too. A rebalance voids all claims.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from classifier import log

_log = log.get("offsets")


@dataclass(eq=False, slots=True)
class Claim:
    """The records of one poll: from which offset to before which, by partition."""

    epoch: int
    spans: dict[TopicPartition, tuple[int, int]]
    settled: bool = False


@dataclass(slots=True)
class _Partition:
    committed: int | None = None
    claims: deque[Claim] = field(default_factory=deque)


class Offsets:
    """The state of all partitions that this member holds. Committable offsets only grow."""

    def __init__(self) -> None:
        self._epoch = 0
        self._partitions: dict[TopicPartition, _Partition] = {}

    @property
    def epoch(self) -> int:
        """Counts the assignments; a claim of an earlier one is void."""
        return self._epoch

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions held."""
        return frozenset(self._partitions)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Begins with other partitions, or none, and voids every claim."""
        self._epoch += 1
        self._partitions = {partition: _Partition() for partition in partitions}

    def claim(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> Claim:
        """The records of a poll that has just returned: (first offset, last offset + 1) each.

        A partition that went back has a log that was cut or made anew; what was known of the old
        one is void. Raises ValueError when a partition is not held.
        """
        for partition, (first, end) in spans.items():
            held = self._partitions.get(partition)
            if held is None or end <= first:
                raise ValueError(f"{partition} is not assigned, or {first} to {end} is no span")
            before = self.resume(partition)
            if before is not None and first < before:
                _log.warning("partition went back", partition=str(partition), to=first, at=before)
                self._partitions[partition] = _Partition()
        claim = Claim(self._epoch, dict(spans))
        for partition in spans:
            self._partitions[partition].claims.append(claim)
        return claim

    def is_valid(self, claim: Claim) -> bool:
        """Whether the claim's partitions are still ours under the same assignment."""
        return claim.epoch == self._epoch

    def settle(self, claim: Claim) -> None:
        """Says that every record of the claim is accounted for."""
        claim.settled = True

    def committable(self) -> dict[TopicPartition, int]:
        """The offsets that may be committed now and are not yet."""
        ready: dict[TopicPartition, int] = {}
        for partition, held in self._partitions.items():
            end = None
            for claim in held.claims:
                if not claim.settled:
                    break
                end = claim.spans[partition][1]
            if end is not None:
                ready[partition] = end
        return ready

    def committed(self, offsets: Mapping[TopicPartition, int], epoch: int) -> None:
        """Says that Kafka acknowledged these, asked for under that epoch."""
        if epoch != self._epoch:
            return
        for partition, end in offsets.items():
            held = self._partitions[partition]
            if held.committed is None or end > held.committed:
                held.committed = end
            while held.claims and held.claims[0].spans[partition][1] <= end:
                held.claims.popleft()

    def skippable(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Of the consumer's positions those that lie past the commit with no record in between.

        Markers of transactions and aborted records take offsets but reach nobody; without this the
        lag of a partition that ends in them would never be zero.
        """
        return {
            partition: position
            for partition, position in positions.items()
            if (held := self._partitions.get(partition)) is not None
            and not held.claims
            and (held.committed is None or position > held.committed)
        }

    def resume(self, partition: TopicPartition) -> int | None:
        """The offset after the last record claimed; None when there was none in this assignment."""
        held = self._partitions[partition]
        return held.claims[-1].spans[partition][1] if held.claims else held.committed

    def done(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How far each partition is accounted for, given where the consumer stands in it."""
        done: dict[TopicPartition, int] = {}
        for partition, position in positions.items():
            held = self._partitions.get(partition)
            if held is None:
                continue
            if held.committed is not None:
                done[partition] = held.committed
            elif held.claims:
                done[partition] = held.claims[0].spans[partition][0]
            else:
                done[partition] = position
        return done

    @property
    def unsettled(self) -> int:
        """Claims with records that are not yet accounted for or not yet committed."""
        return len({id(claim) for held in self._partitions.values() for claim in held.claims})
