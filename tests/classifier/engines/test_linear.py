"""The linear engine computes tf-idf times weights, and refuses a model that contradicts itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from classifier import artifact
from classifier.artifact import Artifact, ArtifactError, Description, Golden, Label
from classifier.engines import EngineError, load_engine
from classifier.engines.linear import LinearEngine
from classifier.exit_codes import BAD_SETTINGS
from classifier.model import Model, ModelError
from classifier.ngrams import A_PIECE, Grams, Ngrams, Vocabulary
from classifier.text import TextRecipe
from classifier.tokens import pad

LABELS = ("kettles", "sofas")
VOCABULARY = Vocabulary(Grams(1, 1, ("kettle", "red", "sofa")), Grams(3, 3, (" ke", "fa ")))
IDF = {"idf.words": np.array([2.0, 1.0, 2.0]), "idf.letters": np.array([3.0, 3.0])}
WEIGHTS = np.array([[1, -1], [0.25, 0.5], [-1, 1], [0.5, 0], [0, 0.5]], dtype=np.float32)
INTERCEPT = np.array([-0.5, -0.25], dtype=np.float32)
TENSORS = {
    **IDF,
    "intercept": INTERCEPT,
    "dense.ngrams": np.array([2, 0], dtype=np.int32),
    "dense.weights": WEIGHTS[[2, 0]],
    "sparse.starts": np.array([0, 0, 2, 2, 3, 4], dtype=np.int32),
    "sparse.labels": np.array([0, 1, 0, 1], dtype=np.int32),
    "sparse.weights": np.array([0.25, 0.5, 0.5, 0.5], dtype=np.float32),
}


def logits(words: list[float], letters: list[float]) -> NDArray[np.float64]:
    """By hand: each kind of n-gram to length one, times the weights."""
    both = [np.array(part) / (np.linalg.norm(part) or 1) for part in (words, letters)]
    return np.asarray(np.concatenate(both) @ WEIGHTS + INTERCEPT, dtype=np.float64)


TEXTS: Mapping[str, NDArray[np.float64]] = {
    "Red kettle": logits([2, 1, 0], [3, 0]),
    "sofa": logits([0, 0, 2], [0, 3]),
    "red red sofa": logits([0, 1 + np.log(2), 2], [0, 3]),
    "kettle sofa kettle": logits([2 * (1 + np.log(2)), 0, 2], [3 * (1 + np.log(2)), 3]),
    "tent": logits([0, 0, 0], [0, 0]),
    "": logits([0, 0, 0], [0, 0]),
}


def publish(
    parent: Path,
    tensors: Mapping[str, Any] = TENSORS,
    vocabulary: Vocabulary = VOCABULARY,
    off: float = 0.0,
) -> Artifact:
    staging = parent / "staging"
    staging.mkdir()
    (staging / "model.safetensors").write_bytes(save(dict(tensors)))
    (staging / "vocabulary.json").write_bytes(msgspec.json.encode(vocabulary))
    (staging / "report.json").write_bytes(b"{}")
    artifact.write_labels(staging / "labels.json", map(Label, LABELS))
    golden = [
        Golden(
            text, LABELS[values.argmax()], dict(zip(LABELS, (values + off).tolist(), strict=True))
        )
        for text, values in TEXTS.items()
    ]
    artifact.write_golden(staging / "golden.jsonl", golden)
    description = Description(
        created_at="2026-03-01T10:00:00+00:00",
        kind="linear",
        target="linear-cpu",
        precision="fp32-linear",
        checkpoint="0123456789abcdef",
        data={"name": "toy"},
        taxonomy="toy-1",
        text=TextRecipe(),
        max_tokens=40,
        pad_multiple=4,
        versions={},
        temperature=0.2,
        threshold=0.5,
    )
    return Artifact.load(artifact.publish(staging, description, parent))


def refusal(found: Artifact) -> str:
    with pytest.raises(EngineError) as refused:
        load_engine(found, 1)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def padded(texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    rows, _ = Ngrams(VOCABULARY, 40).encode(texts)
    return pad(rows, max(map(len, rows)) + 3, len(WEIGHTS))


def test_logits_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    engine = load_engine(publish(tmp_path), 1)
    assert isinstance(engine, LinearEngine)
    answers = engine.logits(*padded(list(TEXTS)))
    assert answers.dtype == np.float32
    np.testing.assert_allclose(answers, list(TEXTS.values()), atol=1e-6)
    engine.close()


def test_neighbours_and_padding_do_not_move_a_row(tmp_path: Path) -> None:
    engine = load_engine(publish(tmp_path), 1)
    together = engine.logits(*padded(list(TEXTS) * 5))
    for text, values in zip(list(TEXTS) * 5, together, strict=True):
        np.testing.assert_array_equal(engine.logits(*padded([text]))[0], values)


def test_no_rows_are_no_call(tmp_path: Path) -> None:
    answer = load_engine(publish(tmp_path), 1).logits(
        np.empty((0, 8), np.int32), np.empty(0, np.int32)
    )
    assert answer.shape == (0, 2)
    assert answer.dtype == np.float32


def test_model_serves_it_like_any_other(tmp_path: Path) -> None:
    model = Model.load(publish(tmp_path).path, threads=1, batch_tokens=8)
    answers = model.predict(["red kettle", "sofa"])
    assert [answer and answer.category_id for answer in answers] == list(LABELS)
    # softmax of logits over the temperature, of two labels
    gap = float(np.subtract(*TEXTS["Red kettle"])) / 0.2
    assert answers[0] is not None
    assert answers[0].score == pytest.approx(1 / (1 + np.exp(-gap)), abs=1e-5)
    model.close()


def test_token_budget_is_for_as_many_texts_as_an_encoders(tmp_path: Path) -> None:
    model = Model.load(publish(tmp_path).path, threads=1, batch_tokens=8)
    # Two n-grams each, padded to four.
    calls = model.prepare([f"red kettle {number}" for number in range(40)]).calls
    assert [len(call.rows) for call in calls] == [8 * A_PIECE // 4, 8 * A_PIECE // 4, 8]
    model.close()


def test_golden_answers_that_differ_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"golden question 5: logit of kettles is 0.01 off"):
        Model.load(publish(tmp_path, off=0.01).path, threads=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dense.weights": None}, "dense.weights is missing"),
        ({"dense.ngrams": None}, "dense.ngrams is missing"),
        ({"sparse.weights": None}, "sparse.labels is int32 [4]"),
        ({"dense.weights": WEIGHTS[:2].astype(np.float64)}, "dense.weights is float64 [2, 2]"),
        ({"dense.weights": WEIGHTS[:2, :1].copy()}, "float32 [2, 1]; with 5 n-grams and 2 labels"),
        ({"dense.weights": WEIGHTS}, "must be float32 [2, 2]"),
        ({"dense.ngrams": np.array([0, 5], dtype=np.int32)}, "dense.ngrams names one"),
        ({"dense.ngrams": np.array([-1, 0], dtype=np.int32)}, "dense.ngrams names one"),
        ({"sparse.labels": np.array([0, 1, 2, 1], dtype=np.int32)}, "there are 2"),
        ({"sparse.labels": np.array([0, 1, -1, 1], dtype=np.int32)}, "sparse.labels names one"),
        ({"sparse.starts": np.array([0, 0, 2, 1, 3, 4], dtype=np.int32)}, "divide 4 weights"),
        ({"sparse.starts": np.array([0, 0, 2, 2, 3, 5], dtype=np.int32)}, "divide 4 weights"),
        ({"sparse.starts": np.array([1, 1, 2, 2, 3, 4], dtype=np.int32)}, "divide 4 weights"),
        ({"sparse.starts": np.array([0, 4], dtype=np.int32)}, "sparse.starts is int32 [2]"),
        ({"intercept": INTERCEPT[:1]}, "intercept is float32 [1]"),
        ({"idf.words": IDF["idf.words"][:2]}, "idf.words is float64 [2]"),
        ({"idf.letters": np.array([3.0, np.nan])}, "idf.letters: not all of it is finite"),
        ({"intercept": INTERCEPT + np.float32(np.inf)}, "intercept: not all of it is finite"),
        ({"more": np.zeros(2, dtype=np.int8)}, "more is of type I8"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    tensors = {name: array for name, array in (TENSORS | changes).items() if array is not None}
    message = refusal(publish(tmp_path, tensors))
    assert said in message
    assert "model.safetensors" in message


def test_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    other = Vocabulary(Grams(1, 1, ("kettle", "red")), VOCABULARY.letters)
    assert "idf.words is float64 [3]" in refusal(publish(tmp_path, vocabulary=other))


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    found = publish(tmp_path)
    file = found.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    assert "is no safetensors file" in refusal(found)
    with pytest.raises(ArtifactError, match=r"model.safetensors was changed"):
        Model.load(found.path, threads=1)


def test_artefact_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    found = publish(tmp_path)
    (found.path / "vocabulary.json").unlink()
    with pytest.raises(ArtifactError, match=r"vocabulary.json is missing"):
        Artifact.load(found.path)


@pytest.mark.parametrize("package", ["scipy.sparse", "safetensors"])
def test_missing_package_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    found = publish(tmp_path)
    for name in ("classifier.engines.linear", "classifier.tfidf", "classifier.tensors"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EngineError, match=r"pip install 'offer-classifier\[linear\]'") as refused:
        load_engine(found, 1)
    assert refused.value.code == BAD_SETTINGS
    with pytest.raises(EngineError, match=package.partition(".")[0]):
        importlib.import_module("classifier.engines.linear")
