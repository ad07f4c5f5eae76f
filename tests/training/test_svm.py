"""An SVM in parts is LinearSVC's, whoever fitted which part."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from scipy.sparse import random_array, vstack  # type: ignore[import-untyped]
from sklearn.svm import LinearSVC

from training import svm
from training.svm import LABELS_A_PART, Problem, fit, read

LABELS = LABELS_A_PART + 2


def problem(texts: int = 120) -> Problem:
    rng = np.random.default_rng(0)
    matrix = random_array((texts, 40), density=0.2, format="csr", rng=rng)
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    labels = rng.integers(0, LABELS - 1, texts)
    labels[labels == 3] = LABELS - 1  # so that no text is of label 3
    return Problem(matrix, labels, LABELS, matrix[:9])


def test_parts_are_linear_svcs(tmp_path: Path) -> None:
    given = problem()
    shown: list[tuple[float, int]] = []
    fitted = fit(
        given, 0.5, 7, tmp_path, 1, keep_weights=True, show=lambda *at: shown.append(at[:2])
    )
    theirs = LinearSVC(C=0.5, dual=True, random_state=7).fit(given.texts, given.labels)
    there = np.delete(np.arange(LABELS), 3)
    np.testing.assert_array_equal(theirs.classes_, there)
    answers = fitted.answers()
    np.testing.assert_allclose(answers[:, there], theirs.decision_function(given.asked), atol=2e-3)
    assert (answers[:, 3] == -1).all()
    parts = [read(file) for file in fitted.files]
    weights = vstack([part.weights for part in parts]).toarray()
    intercept = np.concatenate([part.intercept for part in parts])
    np.testing.assert_allclose(given.asked @ weights.T + intercept, answers, atol=1e-6)
    assert shown == [(0.5, LABELS_A_PART), (1.0, LABELS)]
    assert fitted.most_passes() > 1


def test_any_number_of_processes_gives_the_same(tmp_path: Path) -> None:
    alone = fit(problem(), 1.0, 0, tmp_path / "alone", 1, keep_weights=True)
    shared = fit(problem(), 1.0, 0, tmp_path / "shared", 2, keep_weights=True)
    for one, other in zip(alone.files, shared.files, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert sorted(shared.files) == sorted((tmp_path / "shared").iterdir())


def test_part_that_is_there_is_not_fitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = fit(problem(), 1.0, 0, tmp_path, 1, keep_weights=False)
    expected = fitted.answers()
    fitted.files[1].unlink()
    starts = []
    part = svm._fit_part

    def watched(given: Problem, start: int, *rest: object) -> None:
        starts.append(start)
        part(given, start, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(svm, "_fit_part", watched)
    again = fit(problem(), 1.0, 0, tmp_path, 1, keep_weights=False)
    assert starts == [LABELS_A_PART]
    np.testing.assert_array_equal(again.answers(), expected)
    assert read(again.files[0]).weights.nnz == 0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A run that fits with two processes, and will for some time."""
    problem(30_000).save(tmp_path / "given.npz")
    script = tmp_path / "run.py"
    script.write_text(
        "from pathlib import Path\n"
        "from training.stage import StageError\n"
        "from training.svm import Problem, fit\n"
        "if __name__ == '__main__':\n"
        f"    here = Path({str(tmp_path)!r})\n"
        "    try:\n"
        "        fit(Problem.load(here / 'given.npz'), 1000.0, 0, here, 2, keep_weights=False)\n"
        "    except StageError as error:\n"
        "        print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        while len(children := workers(run.pid)) < 2:
            assert run.poll() is None
            time.sleep(0.02)
        time.sleep(1)  # until they work, and wait for their parent's end
        yield run, children
        run.kill()


def workers(parent: int) -> list[psutil.Process]:
    children = psutil.Process(parent).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def test_processes_end_with_the_run_that_is_killed(
    running: tuple[subprocess.Popen[str], list[psutil.Process]],
) -> None:
    run, children = running
    os.kill(run.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_run_whose_process_is_killed_says_so(
    running: tuple[subprocess.Popen[str], list[psutil.Process]],
) -> None:
    run, children = running
    children[0].kill()
    said, _ = run.communicate(timeout=20)
    assert said.startswith("a process that fitted the SVM was killed")
    assert said.count("\n") == 1
