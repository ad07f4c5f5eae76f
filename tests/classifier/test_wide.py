"""An encoder with a wide part answers the sum of both, alone and in any company."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from classifier import artifact
from classifier.artifact import Artifact, ArtifactError, Description, Golden, Label
from classifier.engines import EngineError
from classifier.model import Model, ModelError, wide_part
from classifier.ngrams import Grams, Vocabulary
from classifier.offer import Offer
from classifier.text import TextRecipe
from classifier.wide import Wide
from tests.classifier import toy

VOCABULARY = Vocabulary(Grams(1, 1, ("blue", "kettle", "sofa", "tent")), None)
WEIGHTS = np.array(
    [[0, 0, 2], [4, 0, 0], [0, -6, 5], [1, 2, 3]],
    dtype=np.float32,
)
INTERCEPT = np.array([0.5, -0.5, 0.25], dtype=np.float32)
IDF = np.array([3.0, 2.0, 4.0, 1.0])
TENSORS: Mapping[str, NDArray[Any]] = {
    "idf.words": IDF,
    "idf.letters": np.empty(0),
    "intercept": INTERCEPT,
    "dense.ngrams": np.array([3, 2], dtype=np.int32),
    "dense.weights": WEIGHTS[[3, 2]],
    "sparse.starts": np.array([0, 1, 2, 2, 2], dtype=np.int32),
    "sparse.labels": np.array([2, 0], dtype=np.int32),
    "sparse.weights": np.array([2, 4], dtype=np.float32),
}
TEXTS = ("Kettle", "Sofa blue", "Tent", "Kettle Kettle blue steel", "Sofa Tent steel", "steel")


def wide_logits(text: str) -> NDArray[np.float64]:
    """By hand: words to their weights, to length one, times the model's."""
    found = text.lower().split()
    grams = VOCABULARY.words.grams if VOCABULARY.words else ()
    times = np.array([found.count(gram) for gram in grams], dtype=np.float64)
    weights = np.where(times > 0, 1 + np.log(np.maximum(times, 1)), 0) * IDF
    return np.asarray(weights / (np.linalg.norm(weights) or 1) @ WEIGHTS + INTERCEPT)


def question(text: str, off: float = 0.0) -> Golden:
    values = (toy.logits(text) + wide_logits(text) + off).tolist()
    logits = dict(zip(toy.LABELS, values, strict=True))
    return Golden(text, max(logits, key=logits.__getitem__), logits)


def publish(
    parent: Path,
    golden: Sequence[Golden] = tuple(map(question, TEXTS)),
    tensors: Mapping[str, NDArray[Any]] = TENSORS,
    without: Sequence[str] = (),
    **changes: Any,
) -> Artifact:
    """The toy's encoder with a wide part."""
    staging = parent / "staging"
    staging.mkdir(parents=True)
    onnx.save(toy.graph(), str(staging / "model.onnx"))
    toy.tokenizer().save(str(staging / "tokenizer.json"))
    (staging / "wide.safetensors").write_bytes(save(dict(tensors)))
    (staging / "vocabulary.json").write_bytes(msgspec.json.encode(VOCABULARY))
    (staging / "report.json").write_bytes(b"{}")
    artifact.write_labels(staging / "labels.json", map(Label, toy.LABELS))
    artifact.write_golden(staging / "golden.jsonl", golden)
    for name in without:
        (staging / name).unlink()
    fields: dict[str, Any] = {
        "created_at": "2026-03-01T10:00:00+00:00",
        "kind": "wide-and-deep",
        "target": "onnx-cpu",
        "precision": "fp32",
        "checkpoint": "0123456789abcdef",
        "data": {"name": "toy"},
        "taxonomy": "toy-1",
        "text": TextRecipe(),
        "max_tokens": toy.MAX_TOKENS,
        "pad_multiple": 4,
        "versions": {},
        "temperature": 1.0,
        "threshold": 0.5,
    }
    return Artifact.load(artifact.publish(staging, Description(**(fields | changes)), parent))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return publish(tmp_path_factory.mktemp("wide"))


@pytest.fixture
def model(published: Artifact) -> Model:
    return Model.load(published.path, threads=1, cache_offers=100, batch_tokens=64)


def scores(model: Model, texts: list[str]) -> NDArray[np.float64]:
    """The calibrated scores (texts, labels) in the labels' order."""
    rows = []
    for answer in model.predict(texts):
        assert answer is not None
        found = {answer.category_id: answer.score, **dict(answer.alternatives)}
        rows.append([found[label] for label in toy.LABELS])
    return np.array(rows)


def expected(texts: Sequence[str]) -> NDArray[np.float64]:
    logits = np.array([toy.logits(text) + wide_logits(text) for text in texts])
    shares = np.exp(logits)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def test_answer_is_the_sum_of_both_parts(model: Model) -> None:
    np.testing.assert_allclose(scores(model, list(TEXTS)), expected(TEXTS), atol=1e-6)
    # It is neither part's alone: sofas by the encoder, kettles by nobody.
    assert wide_logits("Sofa").argmax() == 2
    assert toy.logits("Sofa").argmax() == 1
    (answer,) = model.predict(["Sofa"])
    assert answer is not None
    assert answer.category_id == "tents"


def test_text_alone_and_in_any_batch_has_the_same_answer(published: Artifact) -> None:
    texts = [" ".join((first, *("blue",) * n)) for first in toy.WORDS[4:9] for n in range(9)]
    model = Model.load(published.path, threads=1, batch_tokens=48, alternatives=2)
    alone = np.concatenate([scores(model, [text]) for text in texts])
    np.testing.assert_allclose(scores(model, texts), alone, atol=1e-6)
    np.testing.assert_allclose(scores(model, texts[::-1])[::-1], alone, atol=1e-6)
    np.testing.assert_allclose(alone, expected(texts), atol=1e-6)


def test_text_seen_before_needs_neither_part(model: Model) -> None:
    first = model.predict(["Sofa", "Tent"])
    asked = model.prepare(["Tent", "Sofa", "Kettle", "Kettle"])
    assert asked.hits == 3
    assert len(asked.ids) == len(asked.ngrams) == 1
    assert asked.answers[:2] == first[::-1]


def test_request_between_the_streams_calls_gets_the_same_answer(published: Artifact) -> None:
    model = Model.load(published.path, threads=1, batch_tokens=12)
    stream, request = model.prepare(list(TEXTS)), model.prepare(["Tent", "Sofa"])
    assert len(stream.calls) > 2
    model.compute(stream, stream.calls[0])
    for call in request.calls:
        model.compute(request, call)
    for call in stream.calls[1:]:
        model.compute(stream, call)
    assert request.answers == model.predict(["Tent", "Sofa"])
    assert stream.answers == model.predict(list(TEXTS))


def test_what_an_encoder_wants_before_a_text_is_no_ngram(tmp_path: Path) -> None:
    texts = ["query: Sofa", "Sofa"]
    with_prefix = publish(tmp_path / "1", [question("Tent")], text=TextRecipe(prefix="query: "))
    wide = wide_part(with_prefix)
    assert wide is not None
    np.testing.assert_allclose(wide.answers(texts), [wide_logits("Sofa")] * 2, atol=1e-6)
    model = Model.load(with_prefix.path, threads=1)
    asked = model.ask([Offer("1", title="Tent blue tent")])
    assert asked.question.ngrams == wide.encode(["tent blue tent"])
    wide.close()
    model.close()


def test_wide_part_answers_alone(published: Artifact) -> None:
    wide = wide_part(published)
    assert isinstance(wide, Wide)
    many = list(TEXTS) * 90  # several engine calls
    found = wide.answers(many)
    np.testing.assert_allclose(found, [wide_logits(text) for text in many], atol=1e-6)
    np.testing.assert_array_equal(found[: len(TEXTS)], wide.answers(TEXTS))
    wide.close()


def test_encoder_without_one_has_none(tmp_path: Path) -> None:
    plain = toy.publish(tmp_path)
    assert wide_part(plain) is None
    assert Model.load(plain.path, threads=1).prepare(["Sofa"]).ngrams == []


@pytest.mark.parametrize("off", [0.001, -0.001])
def test_golden_answer_that_is_not_the_sum_is_found(tmp_path: Path, off: float) -> None:
    golden = [question("Kettle"), question("Sofa blue", off)]
    with pytest.raises(ModelError, match="golden question 2: logit of kettles"):
        Model.load(publish(tmp_path, golden).path, threads=1)


def test_golden_answers_of_one_part_are_found(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="golden question 1: logit"):
        Model.load(publish(tmp_path, [toy.question("Sofa")]).path, threads=1)


def test_wide_part_with_other_weights_is_found(tmp_path: Path) -> None:
    moved = {**TENSORS, "intercept": INTERCEPT + np.float32(0.01)}
    with pytest.raises(ModelError, match="golden question 1: logit"):
        Model.load(publish(tmp_path, tensors=moved).path, threads=1)


@pytest.mark.parametrize("name", ["vocabulary.json", "wide.safetensors", "tokenizer.json"])
def test_artefact_that_lacks_a_part_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match=f"lists no {name}"):
        publish(tmp_path, without=[name])


def test_weights_for_other_labels_are_refused(tmp_path: Path) -> None:
    narrow = {**TENSORS, "intercept": INTERCEPT[:2]}
    with pytest.raises(EngineError, match=r"wide.safetensors: intercept is float32 \[2\]") as found:
        Model.load(publish(tmp_path, tensors=narrow).path, threads=1)
    assert "\n" not in str(found.value)


def test_text_that_the_encoder_fails_on_does_not_hurt_its_neighbours(published: Artifact) -> None:
    engine = toy.Engine()
    model = Model(published, engine, 100, 64, 2, wide_part(published))
    found = model.predict(["Sofa", "Crash", "Tent", "Spoilt"])
    assert [answer and answer.category_id for answer in found] == ["tents", None, "tents", None]
    model.close()
    assert engine.closed
