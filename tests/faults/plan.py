"""The plan: which faults, on whom, when and for how long. The same seed gives the same plan.

Faults come in episodes: one alone, or some that overlap. The service must be whole again before the
next episode begins.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import msgspec

Stage = Literal[
    "fetch", "inference", "write", "commit", "committed", "dead letter", "rebalance", "start-up"
]


class Kind(msgspec.Struct, frozen=True):
    """What is known of a kind of fault beforehand."""

    weight: float
    seconds: tuple[float, float] = (0.0, 0.0)
    disturbs: Literal["none", "worker", "machine", "all"] = "worker"
    """Whose work in flight may be done again, when it is the only fault."""
    choices: tuple[int | str, ...] = ()
    """Values of its parameter."""


SESSION_SECONDS = 3.0
"""A member that is silent for so long is out of the group."""

KINDS: dict[str, Kind] = {
    "kill after the fetch": Kind(2),
    "kill mid-inference": Kind(2, (0.0, 0.1)),
    "kill before the write is acknowledged": Kind(2),
    "kill between write and commit": Kind(3),
    "kill before the commit is acknowledged": Kind(2),
    "kill after a dead letter": Kind(2),
}


class Fault(msgspec.Struct, frozen=True):
    """One fault: `after` seconds from the begin of its episode, for `seconds`, on a machine."""

    kind: str
    machine: int
    after: float = 0.0
    seconds: float = 0.0
    choice: int | str | None = None


class Plan(msgspec.Struct, frozen=True):
    """Faults in episodes, and how many offers go by meanwhile."""

    seed: int
    machines: int
    offers: int
    episodes: tuple[tuple[Fault, ...], ...]

    @property
    def faults(self) -> int:
        return sum(map(len, self.episodes))

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Raises OSError, or ValueError with one line about what is wrong with the file."""
        plan = msgspec.json.decode(path.read_bytes(), type=cls)
        for fault in (fault for episode in plan.episodes for fault in episode):
            if fault.kind not in KINDS:
                raise ValueError(f"{path}: no kind of fault is named {fault.kind!r}")
            if not 0 <= fault.machine < plan.machines:
                raise ValueError(f"{path}: there is no machine {fault.machine}")
        return plan


OVERLAPPING = 0.3
"""Share of the episodes with faults that overlap, two or three."""


def make(seed: int, faults: int, offers: int, machines: int) -> Plan:
    """Every kind once, in a drawn order, before any comes twice; then by weight."""
    draw = random.Random(f"plan {seed}")
    kinds = list(KINDS)
    names = draw.sample(kinds, len(kinds))[:faults]
    weights = [KINDS[name].weight for name in kinds]
    names += draw.choices(kinds, weights, k=faults - len(names))
    episodes: list[tuple[Fault, ...]] = []
    while names:
        together = draw.choice((2, 3)) if draw.random() < OVERLAPPING else 1
        episode: list[Fault] = []
        for name in names[:together]:
            kind = KINDS[name]
            after = round(draw.uniform(0, 2), 2) if episode else 0.0
            seconds = round(draw.uniform(*kind.seconds), 2)
            choice = draw.choice(kind.choices) if kind.choices else None
            episode.append(Fault(name, draw.randrange(machines), after, seconds, choice))
        del names[:together]
        episodes.append(tuple(episode))
    return Plan(seed, machines, offers, tuple(episodes))
