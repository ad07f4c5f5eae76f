"""Answers: what an artefact answers to the test set and to validation, and what that costs.

A stage. The artefact is asked in a process of its own, by the code of `classifier classify`:

    test.parquet, validation.parquet    the sets' rows with the answers
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from benchmarks.quality import served
from benchmarks.quality.served import Asked, Serving
from classifier import __version__
from classifier.artifact import Artifact
from training.predictions import Predictions, read
from training.sets import Say
from training.slices import sources
from training.stage import Record, Stage, StageError, hash_inputs, write_json

SETS = ("test", "validation")


def make(artifact: Path, sets: Mapping[str, Path], out: Path, say: Say) -> Record:
    """Ask the artefact for both SETS.

    The summary has `offers_per_cpu_second` on the test set, and `validation`, the mean of the
    accuracy over sources. Raises StageError and what served.classify does.
    """
    known, serving = Artifact.load(artifact), Serving()
    inputs = {"model": known.manifest.id, "service": __version__}
    inputs |= hash_inputs({name: sets[name] for name in SETS})
    stage = Stage("answers", out, serving, inputs)
    if record := stage.done():
        return record
    parts = stage.begin()
    asked = {}
    # Not forked: a forked process would have the locks of this one's threads.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for name in SETS:
            kept, target = parts / f"{name}.json", parts / f"{name}.parquet"
            if not kept.exists():
                say(f"{artifact.name} answers {sets[name]}")
                waiting = pool.submit(served.classify, artifact, sets[name], target, serving)
                write_json(kept, waiting.result())
            asked[name] = msgspec.json.decode(kept.read_bytes(), type=Asked)
            # The part stays until the stage is done: a run that is killed here finds it again.
            shutil.copyfile(target, out / target.name)
    test = asked["test"]
    if test.errors == test.offers:
        raise StageError(f"{sets['test']}: no offer got an answer")
    answered = read({"": out / "validation.parquet"})[""]
    summary = {
        "offers": test.offers,
        "errors": test.errors,
        "cpu_seconds": round(test.cpu_seconds, 3),
        "offers_per_cpu_second": round(test.offers / test.cpu_seconds, 1),
        "validation": mean_over_sources(accuracies(answered)),
    }
    return stage.finish(summary, {f"{name}.parquet": out / f"{name}.parquet" for name in SETS})


def accuracies(given: Predictions) -> dict[str, float]:
    """Accuracy by source."""
    return {part.name: float(given.right[part.offers].mean()) for part in sources(given)}


def mean_over_sources(figures: Mapping[str, float]) -> float:
    """The unweighted mean: a small and hard source counts as much as a large and easy one."""
    return sum(figures.values()) / len(figures)
