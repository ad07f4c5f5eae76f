"""A linear SVM, one against the rest for each label, on every processor, in parts that stay.

Fan et al. 2008, "LIBLINEAR: A Library for Large Linear Classification", by scikit-learn's LinearSVC
(dual, squared hinge loss). The labels are independent of each other, so a few make a part, and a
killed run has lost no more than the parts it was at. Processes share them out: LIBLINEAR's random
numbers are one sequence a process, and threads would take them from each other.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from scipy.sparse import csr_array  # type: ignore[import-untyped]

from classifier.tensors import map_tensors
from classifier.whole_file import appearing
from training.stage import StageError

LABELS_A_PART = 16

MOST_PASSES = 1_000
"""LIBLINEAR's own bound; what needs more has no better answer afterwards."""

Show = Callable[[float, int, str], None]


@dataclass(frozen=True)
class Problem:
    """What is learnt, and what is asked of the result."""

    texts: csr_array[Any]  # (texts, features) float64
    labels: NDArray[np.int64]  # (texts,), each below `count`
    count: int
    asked: csr_array[Any]  # (asked, features) float64

    def save(self, file: Path) -> None:
        """Write it for other processes."""
        arrays = {"labels": self.labels, "count": np.array(self.count)}
        for name, matrix in (("texts", self.texts), ("asked", self.asked)):
            arrays[f"{name}.data"] = matrix.data
            arrays[f"{name}.indices"] = matrix.indices.astype(np.int32)
            arrays[f"{name}.indptr"] = matrix.indptr.astype(np.int32)
            arrays[f"{name}.shape"] = np.array(matrix.shape)
        with appearing(file) as opened:
            np.savez(opened, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, file: Path) -> Problem:
        """Read what `save` wrote."""
        with np.load(file, allow_pickle=False) as arrays:
            texts, asked = (
                csr_array(
                    tuple(arrays[f"{name}.{part}"] for part in ("data", "indices", "indptr")),
                    shape=tuple(arrays[f"{name}.shape"].tolist()),
                )
                for name in ("texts", "asked")
            )
            return cls(texts, arrays["labels"], int(arrays["count"]), asked)


@dataclass(frozen=True)
class Part:
    """The SVMs of a few neighbouring labels."""

    answers: NDArray[np.float64]  # (asked, labels), decision values
    intercept: NDArray[np.float64]  # (labels,)
    passes: NDArray[np.int32]  # (labels,) over the texts
    weights: csr_array[Any]  # (labels, features) float32; all zero when they were not to be kept


@dataclass(frozen=True)
class Svm:
    """SVMs of all labels; their parts lie in files, since together they may be gigabytes."""

    files: tuple[Path, ...]  # in the order of the labels

    def answers(self) -> NDArray[np.float64]:
        """Decision values (asked, labels)."""
        return np.hstack([read(file).answers for file in self.files])

    def most_passes(self) -> int:
        """How many passes over the texts the hardest label took."""
        return max(int(read(file).passes.max()) for file in self.files)

    def unfinished(self) -> int:
        """Labels for which MOST_PASSES were too few: their SVMs have not converged."""
        return sum(int((read(file).passes >= MOST_PASSES).sum()) for file in self.files)


def fit(
    problem: Problem,
    cost: float,
    seed: int,
    parts: Path,
    processes: int,
    *,
    keep_weights: bool,
    show: Show = lambda share, rows, note: None,
) -> Svm:
    """Fit every label's SVM with C = `cost`; what `parts` already holds is not fitted again.

    Equal problems, costs and seeds give equal results, with any number of processes. Raises
    StageError when one of them is killed.
    """
    parts.mkdir(parents=True, exist_ok=True)
    starts = range(0, problem.count, LABELS_A_PART)
    files = {start: parts / f"{start:06d}.safetensors" for start in starts}
    missing = [start for start in starts if not files[start].exists()]
    fits = _fit_parts(problem, cost, seed, keep_weights, files, missing, processes)
    for done, _ in enumerate(fits, start=len(files) - len(missing) + 1):
        show(done / len(files), min(LABELS_A_PART * done, problem.count), "labels")
    return Svm(tuple(files.values()))


def read(file: Path) -> Part:
    """One part of an SVM, mapped into memory."""
    tensors = map_tensors(file)
    answers, intercept = tensors["answers"], tensors["intercept"]
    content = (tensors["weights.values"], tensors["weights.features"], tensors["weights.starts"])
    shape = (len(intercept), int(tensors["features"][0]))
    return Part(answers, intercept, tensors["passes"], csr_array(content, shape=shape))


def _fit_parts(
    problem: Problem,
    cost: float,
    seed: int,
    keep_weights: bool,
    files: Mapping[int, Path],
    missing: Sequence[int],
    processes: int,
) -> Iterator[None]:
    """Fits what is missing, and says so after each part."""
    processes = min(processes, len(missing))
    if processes <= 1:
        for start in missing:
            _fit_part(problem, start, cost, seed, keep_weights, files[start])
            yield
        return
    shared = files[missing[0]].with_name("problem.npz")
    problem.save(shared)
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, _begin, (shared,)) as pool:
        fits = [
            pool.submit(_fit_own, start, cost, seed, keep_weights, files[start])
            for start in missing
        ]
        try:
            for finished in as_completed(fits):
                finished.result()
                yield
        except BrokenProcessPool as error:
            raise StageError(
                "a process that fitted the SVM was killed, for want of memory as a rule; what is"
                " finished is kept, so run it again with more of it, or with fewer processors"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    shared.unlink()


_problem: Problem | None = None
"""What this process, one of the pool's, works on."""


def _begin(file: Path) -> None:
    global _problem  # noqa: PLW0603 a pool hands nothing else from its start to its tasks
    _problem = Problem.load(file)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """A pool's process would wait for work for ever when its parent was killed."""
    connection.wait([sentinel])
    os._exit(1)


def _fit_own(start: int, cost: float, seed: int, keep_weights: bool, file: Path) -> None:
    assert _problem is not None
    _fit_part(_problem, start, cost, seed, keep_weights, file)


def _fit_part(
    problem: Problem, start: int, cost: float, seed: int, keep_weights: bool, file: Path
) -> None:
    from sklearn import config_context

    labels = range(start, min(start + LABELS_A_PART, problem.count))
    size = problem.texts.shape[1]
    answers = np.full((problem.asked.shape[0], len(labels)), -1.0)
    intercept = np.full(len(labels), -1.0)
    passes = np.zeros(len(labels), dtype=np.int32)
    # A label's texts and those that are like them have few of all n-grams: most weights are zero.
    features: list[NDArray[np.int32]] = []
    values: list[NDArray[np.float32]] = []
    with config_context(assume_finite=True):
        for at, label in enumerate(labels):
            own = problem.labels == label
            kept = np.empty(0, dtype=np.int32)
            if own.any():  # else there is nothing to learn it from: no text is one of it
                svm = _fit_label(problem.texts, own, cost, seed)
                answers[:, at] = svm.decision_function(problem.asked)
                intercept[at] = svm.intercept_[0]
                passes[at] = svm.n_iter_
                weights = svm.coef_[0].astype(np.float32)
                if keep_weights:
                    kept = np.flatnonzero(weights).astype(np.int32)
            features.append(kept)
            values.append(weights[kept] if len(kept) else np.empty(0, dtype=np.float32))
    tensors = {
        "answers": answers,
        "features": np.array([size], dtype=np.int32),
        "intercept": intercept,
        "passes": passes,
        "weights.features": np.concatenate(features),
        "weights.starts": np.cumsum([0, *map(len, features)], dtype=np.int32),
        "weights.values": np.concatenate(values),
    }
    with appearing(file) as opened:
        opened.write(save(tensors))


def _fit_label(texts: csr_array[Any], own: NDArray[np.bool_], cost: float, seed: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    svm = LinearSVC(C=cost, dual=True, random_state=seed, max_iter=MOST_PASSES)
    with warnings.catch_warnings():
        # How many passes it took is kept, and the stage says where they did not do.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return svm.fit(texts, own)
