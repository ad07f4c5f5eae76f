"""int8 is taken where it is faster and no worse; what speaks against it is said with figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.artifact import Artifact
from classifier.engines import load_engine
from classifier.tokens import Tokeniser
from compile import choice
from compile.choice import Asked, Weighed, offers_per_second
from tests.classifier import toy

GOOD = Weighed(
    offers_per_second={"fp32": 1_000.0, "int8": 1_500.0},
    speedup=1.5,
    texts=1_000,
    agreement=0.997,
    largest_difference=0.1,
    labelled=4_000,
    accuracy={"fp32": 0.870, "int8": 0.868},
)


def test_nothing_speaks_against_what_is_faster_and_no_worse() -> None:
    assert GOOD.against() == []
    assert msgspec.structs.replace(GOOD, labelled=0, accuracy={}).against() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speedup": 1.09}, "int8 does 1,500 offers/s on this CPU, fp32 1,000: at least 1.1 times"),
        ({"agreement": 0.989}, "fp32's winner for 98.90% of 1,000 texts, at least 99%"),
        ({"agreement": float("nan")}, "fp32's winner for nan% of 1,000 texts"),
        (
            {"accuracy": {"fp32": 0.870, "int8": 0.866}},
            "right in 86.60% of 4,000 labelled texts, fp32 in 87.00%: at most 0.3% may be lost",
        ),
    ],
)
def test_each_bound_is_said_with_its_figures(change: dict[str, object], said: str) -> None:
    (reason,) = msgspec.structs.replace(GOOD, **change).against()
    assert said in reason


def test_a_slow_one_may_still_be_no_worse() -> None:
    slow = msgspec.structs.replace(GOOD, speedup=0.8)
    assert slow.worse() == []
    assert len(slow.slower()) == 1


def test_engines_are_asked_in_turn_by_the_same_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "ROUND_SECONDS", 0.01)
    found = toy.publish(tmp_path)
    tokeniser = Tokeniser.from_file(found.path / "tokenizer.json", toy.MAX_TOKENS)
    asked = Asked(tokeniser, 4, ["Kettle", "Sofa blue blue blue", "Tent"] * 50)
    first, second = toy.Engine(), toy.Engine()
    speeds = offers_per_second({"first": first, "second": second}, asked)
    assert {len(rounds) for rounds in speeds.values()} == {7}
    assert all(speed > 0 for rounds in speeds.values() for speed in rounds)
    # The first was asked before, to see how long it takes.
    assert len(second.asked) >= 7
    assert first.asked[-len(second.asked) :] == second.asked


def test_answers_are_in_the_texts_order_with_what_is_beside_them(tmp_path: Path) -> None:
    found = Artifact.load(toy.publish(tmp_path).path)
    tokeniser = Tokeniser.from_file(found.path / "tokenizer.json", toy.MAX_TOKENS)
    texts = ["Sofa blue blue blue blue", "Tent", "Kettle steel"]
    engine = load_engine(found, 1)
    alone = Asked(tokeniser, 4, texts).logits(engine)
    expected = [toy.logits(text) for text in texts]
    np.testing.assert_allclose(alone, expected, atol=1e-5)
    beside = Asked(tokeniser, 4, texts, lambda given: alone[: len(given)]).logits(engine)
    np.testing.assert_allclose(beside, 2 * alone, atol=1e-5)
    engine.close()
