"""Buckets: the fixed shapes that a model was compiled for, and which of them a call takes.

A compiled graph takes one shape (batch, length) and no other. buckets.json of an artefact lists the
graphs; texts are dealt out to them, and what they leave empty is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from classifier.artifact import Artifact
from classifier.engines import EngineError

FILE: Final = "buckets.json"

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Bucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One compiled graph: `batch` rows of `length` tokens."""

    batch: Positive
    length: Positive
    file: str

    @property
    def tokens(self) -> int:
        """What a run of it costs, however many of its places are taken."""
        return self.batch * self.length


class Buckets(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """buckets.json."""

    inputs: tuple[Literal["input_ids", "attention_mask"], ...]  # in the graphs' order
    integers: Literal["int32", "int64"]  # what the graphs take ids and mask as
    pad_id: Annotated[int, msgspec.Meta(ge=0)]
    buckets: Annotated[tuple[Bucket, ...], msgspec.Meta(min_length=1)]


class Run(NamedTuple):
    """One run of a graph: the rows (indices into the call) that it takes, at most its batch."""

    bucket: Bucket
    rows: list[int]


def read_buckets(artifact: Artifact) -> Buckets:
    """The buckets of an artefact. Raises EngineError where they do not fit the rest of it."""
    manifest = artifact.manifest
    file = artifact.path / FILE
    if FILE not in manifest.files:
        raise EngineError(f"{artifact.path}: has no {FILE}, so nothing says which shapes it takes")
    try:
        buckets = msgspec.json.decode(file.read_bytes(), type=Buckets)
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise EngineError(f"{file}: cannot be read: {error}") from error
    if sorted(buckets.inputs) != ["attention_mask", "input_ids"]:
        raise EngineError(f"{file}: inputs must be input_ids and attention_mask, in any order")
    listed = [bucket.file for bucket in buckets.buckets]
    compiled = [name for name in manifest.files if Path(name).suffix == ".pt"]
    if sorted(listed) != sorted(compiled):
        raise EngineError(f"{file}: lists other graphs than the artefact has")
    longest = max(bucket.length for bucket in buckets.buckets)
    if longest < manifest.max_tokens:
        raise EngineError(
            f"{file}: the longest bucket has {longest} tokens, a text has up to"
            f" {manifest.max_tokens}"
        )
    return buckets


def route(lengths: Sequence[int], buckets: Sequence[Bucket]) -> list[Run]:
    """The runs that cover every row once at the least cost in tokens, and then in the fewest runs.

    `lengths` are tokens a row, none above the longest bucket's. With the rows from the longest to
    the shortest, whoever takes the first that is left has to be long enough for it, and may as well
    take as many of the next as it has places for; which to take is settled from the end.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    by_length = sorted(buckets, key=lambda bucket: bucket.length)
    count = len(order)
    least: list[tuple[int, int]] = [(0, 0)] * (count + 1)  # tokens and runs from the n-th row on
    taken: list[Bucket] = [by_length[-1]] * count
    fitting = 0  # rows get longer towards the front, so buckets only ever drop out
    for first in range(count - 1, -1, -1):
        while by_length[fitting].length < lengths[order[first]]:
            fitting += 1
        best: tuple[int, int] | None = None
        for bucket in by_length[fitting:]:
            tokens, runs = least[min(count, first + bucket.batch)]
            cost = (tokens + bucket.tokens, runs + 1)
            if best is None or cost < best:
                best, taken[first] = cost, bucket
        assert best is not None
        least[first] = best
    made = []
    first = 0
    while first < count:
        bucket = taken[first]
        made.append(Run(bucket, order[first : first + bucket.batch]))
        first += bucket.batch
    return made
