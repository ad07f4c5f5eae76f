"""The model: right answers or none, one computation a text, and no offer blamed for a device."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.artifact import Artifact, Golden
from classifier.batching import Call
from classifier.engines import EngineError
from classifier.model import DeviceError, Model, ModelError, text_hash
from classifier.scores import Prediction
from tests.classifier import toy


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return toy.publish(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def engine() -> toy.Engine:
    return toy.Engine()


@pytest.fixture
def model(published: Artifact, engine: toy.Engine) -> Model:
    return make(published, engine)


def make(artifact: Artifact, engine: toy.Engine, **options: Any) -> Model:
    return Model(
        artifact, engine, **{"cache_offers": 100, "batch_tokens": 64, "alternatives": 2, **options}
    )


def categories(answers: list[Prediction | None]) -> list[str | None]:
    return [answer and answer.category_id for answer in answers]


# Answers


def test_answers_are_those_worked_out_by_hand(model: Model) -> None:
    sofa, kettle = model.predict(["Sofa", "Kettle steel"])
    # Means over <s>, the words and </s>: (0, 9/3, 0) and (12/4, 0, 1/4).
    assert sofa is not None
    assert kettle is not None
    expected = np.exp([3.0, 0, 0]) / np.exp([3.0, 0, 0]).sum()
    assert sofa.category_id == "sofas"
    assert sofa.score == pytest.approx(expected[0], abs=1e-6)
    assert [name for name, _ in sofa.alternatives] == ["kettles", "tents"]
    assert kettle.category_id == "kettles"
    expected = np.exp([3.0, 0.25, 0]) / np.exp([3.0, 0.25, 0]).sum()
    assert [kettle.score, *(score for _, score in kettle.alternatives)] == pytest.approx(
        expected, abs=1e-6
    )


def test_artefact_decides_temperature_and_thresholds(tmp_path: Path, engine: toy.Engine) -> None:
    artifact = toy.publish(tmp_path, temperature=3.0, threshold=0.9, thresholds={"sofas": 0.5})
    sofa, tent = make(artifact, engine).predict(["Sofa", "Tent"])
    assert sofa is not None
    assert tent is not None
    assert sofa.score == pytest.approx(np.e / (np.e + 2), abs=1e-6)
    assert (sofa.status, tent.status) == ("classified", "uncertain")


def test_engine_in_the_artefact_answers_as_the_checkpoint_did(published: Artifact) -> None:
    model = Model.load(published.path, threads=1)
    assert categories(model.predict(list(toy.GOLDEN))) == ["kettles", "sofas", "tents"]
    assert model.artifact == published
    model.close()


def test_artefact_made_by_the_compiler_is_served(artifact: Path) -> None:
    model = Model.load(artifact, threads=1, alternatives=1)
    golden = model.artifact.golden
    texts = [question.text for question in golden]
    answers = model.predict(texts)
    assert categories(answers) == [question.category_id for question in golden]
    assert len(set(categories(answers))) > 1
    alone = [model.predict([text])[0] for text in texts]
    assert categories(alone) == categories(answers)
    for one, other in zip(alone, answers, strict=True):
        assert one is not None
        assert other is not None
        assert one.score == pytest.approx(other.score, abs=1e-4)
    model.close()


WORDS = st.lists(st.sampled_from(toy.WORDS[4:9]), max_size=14).map(" ".join)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=30), st.integers(8, 100), st.integers(0, 5))
def test_category_depends_on_no_neighbour_no_order_and_no_cache(
    published: Artifact, texts: list[str], batch_tokens: int, cache_offers: int
) -> None:
    model = make(published, toy.Engine(), batch_tokens=batch_tokens, cache_offers=cache_offers)
    together = model.predict(texts)
    assert model.predict(texts[::-1]) == together[::-1]
    for text, answer in zip(texts, together, strict=True):
        assert answer is not None
        logits = toy.logits(text)
        assert answer.category_id == toy.LABELS[int(logits.argmax())]
        (alone,) = make(published, toy.Engine()).predict([text])
        assert alone is not None
        assert alone.category_id == answer.category_id
        assert alone.score == pytest.approx(answer.score, abs=2e-6)


def test_no_texts_are_no_work(model: Model, engine: toy.Engine) -> None:
    assert model.predict([]) == []
    assert engine.asked == []


# Golden questions


def test_right_answers_pass(model: Model, engine: toy.Engine) -> None:
    model.check_golden()
    assert sum(rows for rows, _ in engine.asked) == 3


@pytest.mark.parametrize("off", [0.01, -0.01, 0.0003])
def test_logit_that_moved_is_found(tmp_path: Path, engine: toy.Engine, off: float) -> None:
    golden = [toy.question("Kettle"), toy.question("Tent", off)]
    model = make(toy.publish(tmp_path, golden=golden), engine)
    with pytest.raises(ModelError, match="golden question 2: logit of kettles") as caught:
        model.check_golden()
    assert "\n" not in str(caught.value)
    assert model.artifact.manifest.id in str(caught.value)


def test_rounding_within_the_precision_passes(tmp_path: Path, engine: toy.Engine) -> None:
    golden = [toy.question("Kettle", 1e-4), toy.question("Tent", -1e-4)]
    make(toy.publish(tmp_path, golden=golden), engine).check_golden()


def test_other_category_is_found_even_when_its_logit_was_never_noted(
    tmp_path: Path, engine: toy.Engine
) -> None:
    right = toy.question("Kettle")
    noted = {"sofas": right.logits["sofas"]}
    golden = [msgspec.structs.replace(right, category_id="sofas", logits=noted)]
    with pytest.raises(ModelError, match="kettles instead of sofas"):
        make(toy.publish(tmp_path, golden=golden), engine).check_golden()


def test_tie_may_fall_either_way(tmp_path: Path, engine: toy.Engine) -> None:
    # "steel" and "Sofa" a third: (3, 9, 0) against a noted answer of the same height.
    text = "steel steel steel Sofa"
    logits = toy.logits(text)
    assert logits[0] == logits[1]
    golden = [Golden(text, name, {name: float(logits[0])}) for name in ("kettles", "sofas")]
    make(toy.publish(tmp_path, golden=golden), engine).check_golden()


def test_golden_answer_that_is_not_a_number_is_found(tmp_path: Path, engine: toy.Engine) -> None:
    golden = [toy.question("Kettle"), Golden("Spoilt", "sofas", {"sofas": 1.0})]
    with pytest.raises(ModelError, match="question 2: a logit is not finite"):
        make(toy.publish(tmp_path, golden=golden), engine).check_golden()


def test_model_with_other_weights_is_not_loaded(tmp_path: Path) -> None:
    changed = toy.TABLE.copy()
    changed[toy.IDS["Tent"], 0] += 0.1
    artifact = toy.publish(tmp_path, toy.graph(table=changed))
    with pytest.raises(ModelError, match="golden question 3"):
        Model.load(artifact.path, threads=1)


def test_model_whose_logits_are_in_another_order_is_not_loaded(tmp_path: Path) -> None:
    artifact = toy.publish(tmp_path, labels=["sofas", "kettles", "tents"])
    with pytest.raises(ModelError, match="golden question 1"):
        Model.load(artifact.path, threads=1)


def test_model_of_another_width_is_not_loaded(tmp_path: Path) -> None:
    artifact = toy.publish(tmp_path, labels=[*toy.LABELS, "lamps"])
    with pytest.raises(EngineError, match="3 logits for 4 labels"):
        Model.load(artifact.path, threads=1)


# One computation a text


def test_equal_texts_are_computed_once(model: Model, engine: toy.Engine) -> None:
    question = model.prepare(["Sofa", "Tent", "Sofa", "Sofa"])
    assert len(question.ids) == 2
    assert question.hits == 2
    assert question.askers == [[0, 2, 3], [1]]
    for call in question.calls:
        model.compute(question, call)
    assert sum(rows for rows, _ in engine.asked) == 2
    assert categories(question.answers) == ["sofas", "tents", "sofas", "sofas"]


def test_text_seen_before_needs_no_engine(model: Model, engine: toy.Engine) -> None:
    first = model.predict(["Sofa", "Tent"])
    engine.asked.clear()
    question = model.prepare(["Tent", "Sofa", "Kettle"])
    assert question.hits == 2
    assert question.answers == [first[1], first[0], None]
    assert model.predict(["Tent", "Sofa"]) == first[::-1]
    assert engine.asked == []


def test_without_a_cache_every_batch_is_computed(published: Artifact, engine: toy.Engine) -> None:
    model = make(published, engine, cache_offers=0)
    model.predict(["Sofa"])
    model.predict(["Sofa"])
    assert len(engine.asked) == 2


def test_texts_are_told_apart_by_16_bytes() -> None:
    assert len(text_hash("Sofa")) == 16
    assert text_hash("Sofa") == text_hash("Sofa") != text_hash("sofa")
    assert len({text_hash(text) for text in ("", " ", "é", "e\u0301")}) == 4


def test_calls_keep_the_budget_and_the_padding_is_counted(
    published: Artifact, engine: toy.Engine
) -> None:
    model = make(published, engine, batch_tokens=16)
    question = model.prepare(["Sofa", "Tent blue", "Kettle steel blue", "blue " * 50, "Tent"])
    # With <s> and </s>: 3, 4, 5, 12 (cut) and 3 tokens, padded to multiples of 4.
    assert [(sorted(call.rows), call.length) for call in question.calls] == [
        ([0, 1, 4], 4),
        ([2], 8),
        ([3], 12),
    ]
    assert question.tokens() == (27, 12 + 8 + 12 - 27)
    assert question.cut == 1
    for call in question.calls:
        model.compute(question, call)
    assert engine.asked == [(3, 4), (1, 8), (1, 12)]


# Faults


@pytest.mark.parametrize("bad", ["Crash", "Spoilt", "Sofa Crash", "Tent Spoilt blue"])
def test_text_that_the_engine_fails_on_does_not_hurt_its_neighbours(model: Model, bad: str) -> None:
    answers = model.predict(["Sofa", bad, "Tent", "Kettle", bad])
    assert categories(answers) == ["sofas", None, "tents", "kettles", None]
    healthy = model.predict(["Tent", "Sofa", "Kettle"])
    assert healthy == [answers[2], answers[0], answers[3]]


def test_text_without_an_answer_is_not_remembered(model: Model, engine: toy.Engine) -> None:
    model.predict(["Crash"])
    question = model.prepare(["Crash", "Tent"])
    assert question.hits == 0


def test_every_text_of_a_call_may_fail(model: Model) -> None:
    assert model.predict(["Crash", "Spoilt", "Crash Tent"]) == [None, None, None]
    assert categories(model.predict(["Tent"])) == ["tents"]


def test_engine_that_fails_once_costs_nothing(model: Model, engine: toy.Engine) -> None:
    engine.failures = 1
    assert categories(model.predict(["Sofa", "Tent"])) == ["sofas", "tents"]


@pytest.mark.parametrize("failures", [2, 3])
def test_engine_that_comes_back_has_condemned_no_text(
    model: Model, engine: toy.Engine, failures: int
) -> None:
    engine.failures = failures
    assert categories(model.predict(["Sofa", "Tent"])) == ["sofas", "tents"]


def test_engine_that_answers_no_golden_question_is_at_fault_itself(
    model: Model, engine: toy.Engine
) -> None:
    question = model.prepare(["Sofa", "Tent"])
    engine.failures = 1_000
    (call,) = question.calls
    with pytest.raises(DeviceError) as caught:
        model.compute(question, call)
    assert str(caught.value) == "the device is away"
    assert question.answers == [None, None]
    engine.failures = 0
    model.compute(question, call)
    assert categories(question.answers) == ["sofas", "tents"]


def test_engine_that_gives_the_wrong_number_of_logits_is_at_fault(
    model: Model, engine: toy.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "logits", lambda ids, lengths: np.zeros((1, 7), np.float32))
    with pytest.raises(DeviceError, match="logits for 1 texts"):
        model.predict(["Sofa"])


def test_closing_frees_the_engine(model: Model, engine: toy.Engine) -> None:
    model.close()
    assert engine.closed


def test_one_thread_prepares_while_another_computes(published: Artifact) -> None:
    model = make(published, toy.Engine(), cache_offers=3, batch_tokens=24)
    texts = [f"{first} {second}" for first in toy.WORDS[4:9] for second in toy.WORDS[4:9]]
    expected = categories(make(published, toy.Engine()).predict(texts))
    wrong: list[object] = []

    def prepare() -> None:
        for _ in range(40):
            question = model.prepare(texts)
            known = [(n, a) for n, a in enumerate(question.answers) if a is not None]
            wrong.extend(n for n, answer in known if answer.category_id != expected[n])

    thread = threading.Thread(target=prepare)
    thread.start()
    for _ in range(20):
        assert categories(model.predict(texts)) == expected
    thread.join()
    assert wrong == []


def test_call_answers_only_its_own_rows(model: Model) -> None:
    question = model.prepare(["Sofa", "Tent"])
    model.compute(question, Call([1], 4))
    assert categories(question.answers) == [None, "tents"]
