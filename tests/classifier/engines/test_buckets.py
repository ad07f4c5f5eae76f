"""Every text gets into a run that has room for it, by the runs that cost the least."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.artifact import Artifact, Description, publish
from classifier.engines import EngineError
from classifier.engines.buckets import Bucket, Run, read_buckets, route
from tests.classifier import toy

LENGTHS = (4, 8, 12)


def bucket(batch: int, length: int) -> Bucket:
    return Bucket(batch, length, f"model.{batch}x{length}.pt")


sets = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(LENGTHS)), min_size=1, max_size=5, unique=True
).map(lambda pairs: [bucket(*pair) for pair in pairs] + [bucket(2, 12)])


def cost(runs: list[Run]) -> tuple[int, int]:
    return sum(run.bucket.tokens for run in runs), len(runs)


def least(lengths: tuple[int, ...], buckets: list[Bucket]) -> int:
    """The least cost of any way at all: each run may take whichever rows it has room for."""
    if not lengths:
        return 0
    first, *rest = sorted(lengths, reverse=True)
    # Some run has to take the longest; what else it takes never costs anything.
    return min(
        each.tokens + least(tuple(rest[each.batch - 1 :]), buckets)
        for each in buckets
        if each.length >= first
    )


@given(st.lists(st.integers(1, 12), max_size=12), sets)
def test_every_row_is_in_one_run_that_has_room_for_it(
    lengths: list[int], buckets: list[Bucket]
) -> None:
    runs = route(lengths, buckets)
    assert sorted(chain.from_iterable(run.rows for run in runs)) == list(range(len(lengths)))
    for run in runs:
        assert 1 <= len(run.rows) <= run.bucket.batch
        assert max(lengths[row] for row in run.rows) <= run.bucket.length


@given(st.lists(st.integers(1, 12), max_size=7), sets)
def test_no_other_runs_cost_fewer_tokens(lengths: list[int], buckets: list[Bucket]) -> None:
    assert cost(route(lengths, buckets))[0] == least(tuple(lengths), buckets)


def test_a_call_goes_to_the_cheapest_bucket_that_fits() -> None:
    buckets = [bucket(8, 4), bucket(4, 8), bucket(2, 12)]
    assert [run.bucket.length for run in route([3], buckets)] == [12]  # 24 tokens, and not 32
    assert [run.bucket.length for run in route([3, 3, 3], buckets)] == [4]
    assert [run.bucket.length for run in route([9, 3, 3, 3, 3], buckets)] == [12, 4]
    assert [run.bucket.length for run in route([9, 9, 9], buckets)] == [12, 12]


def test_at_the_same_cost_fewer_runs_are_made() -> None:
    assert len(route([3, 3, 3, 3], [bucket(1, 4), bucket(4, 4)])) == 1


def test_a_call_without_rows_is_no_run() -> None:
    assert route([], [bucket(4, 4)]) == []


def artifact(
    parent: Path, described: object, graphs: tuple[str, ...] = ("model.2x12.pt",)
) -> Artifact:
    made = toy.publish(parent / "toy")
    staging = parent / "staging"
    made.path.rename(staging)
    (staging / "manifest.json").unlink()
    (staging / "model.onnx").unlink()
    for name in graphs:
        (staging / name).write_bytes(b"graph")
    if described is not None:
        (staging / "buckets.json").write_text(json.dumps(described))
    known = {name: getattr(made.manifest, name) for name in Description.__struct_fields__}
    return Artifact.load(publish(staging, Description(**known | {"target": "neuron-inf2"}), parent))


GRAPH = {"batch": 2, "length": 12, "file": "model.2x12.pt"}
DESCRIBED = {
    "inputs": ["input_ids", "attention_mask"],
    "integers": "int64",
    "pad_id": 2,
    "buckets": [GRAPH],
}


def test_buckets_are_read_as_they_were_written(tmp_path: Path) -> None:
    read = read_buckets(artifact(tmp_path, DESCRIBED))
    assert read.buckets == (Bucket(2, 12, "model.2x12.pt"),)
    assert (read.inputs, read.integers, read.pad_id) == (
        ("input_ids", "attention_mask"), "int64", 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (None, "has no buckets.json, so nothing says which shapes it takes"),
        (DESCRIBED | {"buckets": []}, "cannot be read"),
        (DESCRIBED | {"buckets": [GRAPH | {"batch": 0}]}, "cannot be read"),
        (DESCRIBED | {"integers": "float32"}, "cannot be read"),
        (DESCRIBED | {"inputs": ["input_ids"]}, "must be input_ids and attention_mask"),
        (DESCRIBED | {"buckets": [GRAPH | {"file": "other.pt"}]}, "lists other graphs"),
        (
            DESCRIBED | {"buckets": [GRAPH | {"length": 11}]},
            "the longest bucket has 11 tokens, a text has up to 12",
        ),
    ],
)
def test_buckets_that_do_not_fit_the_artefact_are_refused(
    tmp_path: Path, described: object, message: str
) -> None:
    made = artifact(tmp_path, described)
    with pytest.raises(EngineError, match=message) as caught:
        read_buckets(made)
    assert "\n" not in str(caught.value)
