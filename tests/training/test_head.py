"""The head's fit against scikit-learn's, on the same embeddings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from training import head
from training.calibration import probabilities
from training.head import Head
from training.loop import log_prior

ROWS, WIDTH, LABELS = 300, 6, 4


class Space(NamedTuple):
    """Embeddings that lie far from the origin, as those of encoders do, of unlike categories."""

    embedded: NDArray[np.float16]
    labels: NDArray[np.int64]

    def scaled(self) -> NDArray[np.float64]:
        exact = self.embedded.astype(np.float64)
        centred = exact - exact.mean(axis=0)
        scaled: NDArray[np.float64] = centred / np.sqrt(np.mean(centred**2))
        return scaled


@pytest.fixture(scope="module")
def space() -> Space:
    rng = np.random.default_rng(0)
    labels = rng.choice(LABELS, ROWS, p=[0.5, 0.3, 0.15, 0.05])
    centres = rng.normal(size=(LABELS, WIDTH)) * 0.4
    embedded = 5 + centres[labels] + rng.normal(size=(ROWS, WIDTH)) * 0.5
    return Space(embedded.astype(np.float16), labels.astype(np.int64))


NOTHING = Head(np.zeros((LABELS, WIDTH), np.float32), np.zeros(LABELS, np.float32))


def reference(
    features: NDArray[np.float64],
    labels: NDArray[np.int64],
    decay: float,
    weights: NDArray[np.float64] | None = None,
) -> LogisticRegression:
    shares = np.ones(len(labels)) if weights is None else weights
    # scikit-learn's C weighs the summed loss against half the squares.
    fitted = LogisticRegression(C=1 / (decay * shares.sum()), tol=1e-8, max_iter=10_000)
    return fitted.fit(features, labels, sample_weight=shares)


@pytest.mark.parametrize("decay", [1e-1, 1e-3])
def test_head_is_scikit_learns(space: Space, decay: float) -> None:
    found = head.fit(*space, NOTHING, decay=decay, iterations=500)
    expected = reference(space.scaled(), space.labels, decay).predict_proba(space.scaled())
    assert probabilities(found(space.embedded), 1.0) == pytest.approx(expected, abs=1e-3)


def test_sampling_weighs_rows_by_the_root_of_their_labels_frequency(space: Space) -> None:
    found = head.fit(*space, NOTHING, decay=1e-2, iterations=500, balance="sampling")
    weights = 1 / np.sqrt(np.bincount(space.labels))[space.labels]
    expected = reference(space.scaled(), space.labels, 1e-2, weights).predict_proba(space.scaled())
    assert probabilities(found(space.embedded), 1.0) == pytest.approx(expected, abs=1e-3)
    plain = head.fit(*space, NOTHING, decay=1e-2, iterations=500)
    rare = (found(space.embedded).argmax(axis=1) == 3).sum()
    assert rare > (plain(space.embedded).argmax(axis=1) == 3).sum()


def test_logit_adjustment_leaves_the_labels_shares_out_of_the_bias(space: Space) -> None:
    adjusted = head.fit(*space, NOTHING, decay=1e-2, iterations=500, balance="logits")
    plain = head.fit(*space, NOTHING, decay=1e-2, iterations=500)
    moved = plain(space.embedded) - adjusted(space.embedded) - log_prior(space.labels, LABELS)
    assert moved - moved.mean(axis=1, keepdims=True) == pytest.approx(0, abs=5e-3)


def test_smoothed_labels_are_shares_of_every_label(space: Space) -> None:
    smoothing = 0.2
    found = head.fit(*space, NOTHING, decay=1e-2, iterations=500, label_smoothing=smoothing)
    # The same as each row once for each label, weighed by its share of the row.
    features = np.repeat(space.scaled(), LABELS, axis=0)
    each = np.tile(np.arange(LABELS), ROWS)
    own = each == np.repeat(space.labels, LABELS)
    weights = smoothing / LABELS + (1 - smoothing) * own
    expected = reference(features, each, 1e-2, weights).predict_proba(space.scaled())
    assert probabilities(found(space.embedded), 1.0) == pytest.approx(expected, abs=1e-3)


def test_neither_the_start_nor_the_batches_decide(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = head.fit(*space, NOTHING, decay=1e-2, iterations=500)
    rng = np.random.default_rng(1)
    start = Head(*(rng.normal(size=part.shape).astype(np.float32) for part in NOTHING))
    monkeypatch.setattr(head, "CELLS", 7 * LABELS)
    other = head.fit(*space, start, decay=1e-2, iterations=500)
    assert probabilities(other(space.embedded), 1.0) == pytest.approx(
        probabilities(found(space.embedded), 1.0), abs=1e-3
    )


def test_equal_arguments_give_equal_bytes(space: Space) -> None:
    one, two = (head.fit(*space, NOTHING, decay=1e-3, iterations=20) for _ in range(2))
    assert [part.tobytes() for part in one] == [part.tobytes() for part in two]
    assert {part.dtype for part in one} == {np.dtype(np.float32)}


def test_without_iterations_to_spare_the_start_is_left(space: Space) -> None:
    """The way into the scaled space and back changes no logit."""
    rng = np.random.default_rng(1)
    start = Head(*(rng.normal(size=part.shape).astype(np.float32) for part in NOTHING))
    best = head.fit(*space, start, decay=1e-2, iterations=500)
    again = head.fit(*space, best, decay=1e-2, iterations=1)
    assert again(space.embedded) == pytest.approx(best(space.embedded), abs=1e-2)


def test_new_labels_start_where_the_old_head_answers_their_texts() -> None:
    old = Head(np.array([[9, 0], [0, 9], [-9, -9]], np.float32), np.array([1, 2, 3], np.float32))
    # A text of "split" lies with "b"; of the texts of "both", one lies with "a" and one with "b".
    embedded = np.array([[0, 2], [2, 0], [0, 2], [-2, -2]], np.float16)
    labels = np.array([1, 0, 0, 2])
    found = head.starting(old, ["a", "b", "c"], ["both", "split", "c"], embedded, labels)
    assert found.weight == pytest.approx(np.array([[4.5, 4.5], [0, 9], [-9, -9]]), abs=1e-4)
    assert found.bias == pytest.approx(np.array([1.5, 2, 3]), abs=1e-4)
