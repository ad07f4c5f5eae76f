"""The plan: which faults, on whom, when and for how long. The same seed gives the same plan.

Faults come in episodes: one alone, or some that overlap. The service must be whole again before the
next episode begins.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import msgspec


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

_ONE_OR_ALL = ("one", "all")
_BEYOND = (SESSION_SECONDS + 1, SESSION_SECONDS + 4)
_SHORT = (1.0, 4.0)

KINDS: dict[str, Kind] = {
    "kill -9 after the fetch": Kind(2),
    "kill -9 mid-inference": Kind(2, (0.0, 0.1)),
    "kill -9 before the write": Kind(2),
    "kill -9 before the write is acknowledged": Kind(2),
    "kill -9 between write and commit": Kind(3),
    "kill -9 before the commit is acknowledged": Kind(2),
    "kill -9 after a dead letter": Kind(2),
    "kill -9 mid-rebalance": Kind(2, choices=("joining", "waiting")),
    "kill -9 during the start": Kind(2, (0.0, 3.0)),
    "SIGTERM of a worker": Kind(2),
    "SIGSTOP beyond the session": Kind(3, _BEYOND),
    "restart of a service": Kind(2, (0.0, 2.0)),
    "restart with a full disk for logs": Kind(1, (0.0, 1.0)),
    "kill -9 of a supervisor": Kind(1),
    "members come and go": Kind(2, disturbs="all", choices=(2, 3, 4)),
    "Kafka refuses connections": Kind(2, (1, 8), "all", _ONE_OR_ALL),
    "Kafka is half-open": Kind(2, (1, 8), "all", _ONE_OR_ALL),
    "Kafka hears and is not heard": Kind(2, (1, 8), "all", _ONE_OR_ALL),
    "Kafka is slow": Kind(2, (2, 6), "all", _ONE_OR_ALL),
    "MongoDB refuses connections": Kind(2, (1, 8), "all", _ONE_OR_ALL),
    "MongoDB is half-open": Kind(2, (1, 8), "all", _ONE_OR_ALL),
    "MongoDB hears and is not heard": Kind(2, (1, 8), "all", _ONE_OR_ALL),
    "MongoDB is slow": Kind(2, (2, 6), "all", _ONE_OR_ALL),
    "MongoDB is killed and restarted": Kind(3, (0.2, 5.0), "all"),
    # InterruptedAtShutdown, PrimarySteppedDown, NotWritablePrimary, HostUnreachable, MaxTimeMS
    # expired, ExceededTimeLimit, WriteConflict, Unauthorized, and one that nobody knows.
    "MongoDB fails writes": Kind(
        3, _SHORT, "all", (11_600, 189, 10_107, 6, 50, 262, 112, 13, 8_765)
    ),
    "MongoDB closes sockets": Kind(2, _SHORT, "all"),
    "MongoDB blocks writes": Kind(2, _SHORT, "all", (500, 2_500, 4_000)),
    "MongoDB has no majority": Kind(2, _SHORT, "all", (64, 91, 100)),
    "MongoDB does bulks in part": Kind(2, _SHORT, "all", (11_600, 91, 50)),
    "MongoDB is not primary": Kind(2, _SHORT, "all", _ONE_OR_ALL),
    # CorruptMessage, unknown topic, LeaderNotAvailable, NotLeader, TopicAuthorizationFailed,
    # KafkaStorageError, Unknown.
    "fetches fail": Kind(2, _SHORT, "all", (2, 3, 5, 6, 29, 56, -1)),
    # CoordinatorNotAvailable, NotCoordinator, IllegalGeneration, UnknownMember, rebalance.
    "heartbeats fail": Kind(2, _SHORT, "all", (15, 16, 22, 25, 27)),
    "the coordinator is away": Kind(1, _SHORT, "all", (15,)),
    # RequestTimedOut, CoordinatorLoadInProgress, and as above.
    "commits are done and told to fail": Kind(2, _SHORT, "all", (7, 14, 15, 16, 22, 25, 27)),
    "commits are refused": Kind(2, _SHORT, "all", (7, 14, 15, 16, 22, 25, 27)),
    # RequestTimedOut, NotLeader, NotEnoughReplicas, NotEnoughReplicasAfterAppend.
    "dead letters are written and told to fail": Kind(1, _SHORT, "all", (7, 6, 20)),
    "dead letters are refused": Kind(2, _SHORT, "all", (7, 6, 19, 29)),
    "the dead-letter topic is too small": Kind(1, _SHORT, "all"),
    "the dead-letter topic is missing": Kind(2, _SHORT, "all"),
    "a committed offset has expired": Kind(1, disturbs="all", choices=tuple(range(6))),
}


class Fault(msgspec.Struct, frozen=True):
    """One fault: `after` seconds from the begin of its episode, for `seconds`, on a machine."""

    kind: str
    machine: int
    after: float = 0.0
    seconds: float = 0.0
    choice: int | str | None = None

    def __str__(self) -> str:
        choice = "" if self.choice is None else f", {self.choice}"
        return f"{self.kind} (machine {self.machine}, {self.seconds} s{choice})"


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
