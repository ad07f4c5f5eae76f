"""The demonstration model: from labelled offers to a served artefact in under two minutes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from classifier import cpu
from classifier.artifact import Label, file_hash, set_current
from classifier.progress import bar
from classifier.text import DEFAULT_RECIPE
from compile.build import build
from compile.labelled import read_labelled
from training.examples import Examples, examples, limit
from training.fit import Schedule
from training.scratch import Say, Shape, Stopwatch, train

SAMPLE_OFFERS = 60_000
MOST_OFFERS = 65_000
"""More are not trained on: on two cores the time would exceed two minutes."""

MOST_REPEATS = 8
"""Beyond so many times the passes, a small file is learnt by heart."""

THREADS: int | None = None
"""None takes what the CPU quota allows."""

SHAPE = Shape()
SCHEDULE = Schedule()


class Demo(NamedTuple):
    """What was made: the artefact, its accuracy on held-out offers, and the seconds it took."""

    artifact: Path
    accuracy: float
    seconds: dict[str, float]


class _Source(NamedTuple):
    examples: Examples
    names: Mapping[str, Label]
    data: dict[str, str | int]
    taxonomy: str


def demo_model(out: Path, train_file: Path | None, seed: int, say: Say) -> Demo:
    """Train, compile to `out`/<id>, and let `out`/current name that.

    On the offers of `train_file`, or else on the sample catalogue. Raises DataError, CompileError.
    """
    clock = Stopwatch()
    torch.set_num_threads(THREADS or cpu.quota())
    source = _file(train_file) if train_file else _sample(seed)
    given = limit(source.examples, MOST_OFFERS, np.random.default_rng(seed))
    if left_out := len(source.examples.texts) - len(given.texts):
        say(f"{left_out:,} offers beyond {MOST_OFFERS:,} are left out")
    if source.examples.without_text:
        say(f"{source.examples.without_text:,} offers without a usable text are left out")
    clock.lap("texts")
    with bar("training") as show:
        checkpoint = train(
            out / "checkpoint",
            given,
            DEFAULT_RECIPE,
            source.names,
            shape=SHAPE,
            schedule=repeated(SCHEDULE, len(given.texts)),
            data=source.data | {"rows": len(given.texts), "sha256": given.sha256()},
            taxonomy=source.taxonomy,
            seed=seed,
            say=say,
            show=show,
        )
    clock.lap("train")
    artifact = build(out / "checkpoint", "onnx-cpu", out)
    set_current(out, artifact)
    clock.lap("compile")
    accuracy: float = checkpoint.description.report["validation"]["accuracy"]
    return Demo(artifact, accuracy, clock.laps)


def repeated(schedule: Schedule, texts: int) -> Schedule:
    """The schedule with more passes where few texts would make few steps; the time is the same."""
    times = min(MOST_REPEATS, max(1, MOST_OFFERS // texts))
    return replace(
        schedule, table_passes=times * schedule.table_passes, passes=times * schedule.passes
    )


def _sample(seed: int) -> _Source:
    from classifier import sample

    offers = sample.offers(seed, SAMPLE_OFFERS, split="train")
    names = {label.id: Label(label.id, label.names, label.parents) for label in sample.taxonomy()}
    made = examples(offers, DEFAULT_RECIPE)
    return _Source(made, names, {"name": "sample", "seed": seed}, sample.version())


def _file(path: Path) -> _Source:
    made = examples(read_labelled(path), DEFAULT_RECIPE)
    # A file of offers names no taxonomy: the set of its labels stands for one.
    labels = hashlib.sha256("\n".join(made.label_ids).encode()).hexdigest()[:12]
    data: dict[str, str | int] = {"name": path.name, "file_sha256": file_hash(path)}
    return _Source(made, {}, data, f"labels-{labels}")
