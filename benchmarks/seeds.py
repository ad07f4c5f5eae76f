"""Whether students of the sample catalogue beat the SVM, each of several seeds.

    python -m benchmarks.seeds --against runs/train/svm-answers/answers.parquet ANSWERS ANSWERS ...

`make seeds` trains the students and calls this. The answers of each seed's student are compared
with the SVM's offer by offer: by the exact test of training.comparison.mcnemar, which knows no
weights, adjusted for as many tests as there are seeds; and all of these seeds together by the
interval of the paired bootstrap over products, of the mean over their students less the SVM, as
production sees the offers. It demands that the interval is above zero, and that every student
beats the SVM by itself: in production, and by its test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import scipy.sparse as sp  # type: ignore[import-untyped]
import typer

from benchmarks.bounds import command
from training.bootstrap import Bootstrap, interval, resample
from training.comparison import holm, mcnemar
from training.predictions import Predictions, read

SIGNIFICANCE = 0.05
HOW = Bootstrap(resamples=2_000, confidence=1 - SIGNIFICANCE, seed=0)


class Seed(NamedTuple):
    """A student beside the SVM."""

    name: str
    accuracy: float  # in production, as is the next
    difference: float
    only_student: int  # offers that the student alone has right
    only_svm: int
    p_value: float  # adjusted


class Pooled(NamedTuple):
    """All students beside the SVM."""

    svm: float
    difference: float  # mean over the seeds
    low: float
    high: float


def judge(students: dict[str, Predictions], svm: Predictions) -> tuple[list[Seed], Pooled]:
    """Each student and all of them against the SVM, on the same offers, weighted to production."""
    weights = np.ones(len(svm)) if svm.weights is None else svm.weights
    weights = weights / weights.sum()
    right = {name: each.right for name, each in students.items()}
    alone = [
        (int((own & ~svm.right).sum()), int((~own & svm.right).sum())) for own in right.values()
    ]
    p_values = holm([float(mcnemar(np.array(one), np.array(other))) for one, other in alone])
    base = float(svm.right @ weights)
    seeds = [
        Seed(name, float(own @ weights), float(own @ weights) - base, *counts, p_value)
        for (name, own), counts, p_value in zip(right.items(), alone, p_values, strict=True)
    ]
    mean = np.mean(list(right.values()), axis=0) - svm.right
    drawn = resample(
        sp.csr_array(np.column_stack([mean * weights, weights])),
        svm.clusters,
        lambda sums: sums[:, :1] / sums[:, 1:],
        HOW,
    )
    difference = float(mean @ weights)
    low, high = interval(difference, drawn[:, 0], HOW.confidence, lowest=-1.0)
    return seeds, Pooled(base, difference, low, high)


def measure(
    answers: Annotated[list[Path], typer.Argument(help="Each seed's answers to the test set.")],
    against: Annotated[Path, typer.Option(help="The SVM's.")],
) -> list[str]:
    """Prints the table; demands that the students beat the SVM."""
    names = [f"{i}" for i in range(len(answers))]
    found = read({"svm": against} | dict(zip(names, answers, strict=True)))
    svm = found.pop("svm")
    seeds, pooled = judge(found, svm)
    print(f"{len(svm):,} test offers as production sees them; the SVM has {pooled.svm:.2%} right")
    print("| seed | right | against the SVM | only the student | only the SVM | p, adjusted |")
    print("| --- | --- | --- | --- | --- | --- |")
    for each in seeds:
        print(
            f"| {each.name} | {each.accuracy:.2%} | {100 * each.difference:+.2f} points |"
            f" {each.only_student} | {each.only_svm} | {each.p_value:.2g} |"
        )
    print(
        f"mean of the seeds: {100 * pooled.difference:+.2f} points,"
        f" {HOW.confidence:.0%} interval {100 * pooled.low:+.2f} to {100 * pooled.high:+.2f}"
    )
    missed = []
    if not pooled.low > 0:
        missed.append("the mean of the seeds does not beat the SVM")
    missed += [
        f"seed {each.name} does not beat the SVM by itself"
        for each in seeds
        if not (
            each.difference > 0
            and each.only_student > each.only_svm
            and each.p_value < SIGNIFICANCE
        )
    ]
    return missed


if __name__ == "__main__":
    command(measure)
