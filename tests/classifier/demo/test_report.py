from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from classifier.artifact import Artifact, Label
from classifier.demo import report
from classifier.demo.account import Account
from classifier.demo.report import Run
from classifier.demo.service import Snapshot
from classifier.offer import Offer


def artifact() -> Artifact:
    labels = (Label("kettles", {"de": "Wasserkocher", "en": "Kettles"}), Label("sofas"))
    manifest: Any = None  # nothing of it is shown
    return Artifact(Path("nowhere"), manifest, labels, ())


def document(category_id: str, score: float, status: str = "classified") -> dict[str, Any]:
    return {"category_id": category_id, "score": score, "status": status}


def account() -> Account:
    """Three German offers, two of them right; one English one, right; two records of other ends."""
    made = Account(sent=1_006, found=Counter({"classified": 1_004, "dead letter": 2}))
    for language, right, certain in (
        ("de", True, True),
        ("de", True, False),
        ("de", False, True),
        ("en", True, True),
    ):
        made.languages[language].count(right=right, certain=certain)
    kettle = Offer("a", title="Wasserkocher 1,7 l", language="de")
    made.show("de", (kettle, document("kettles", 0.875), "kettles"))
    sofa = Offer("b", title="Sofa [bold]\x1b[2J", language="fr")
    made.show("fr", (sofa, document("sofas", 0.5, "uncertain"), "kettles"))
    return made


RUN = Run(
    seconds=2.0,
    last=Snapshot(
        {"classified": 1_004, "dead_letter": 2, "skipped": 0},
        0,
        ((0.5, 0.0), (1.0, 1_000.0), (float("inf"), 1_000.0)),
    ),
    answers={"http://127.0.0.1:8080/readyz": (200, '{"ready":true}')},
)


def shown(truth: str | None = "the rows' `label`", made: Account | None = None) -> list[str]:
    """Each line's words, columns apart by one blank."""
    console = Console(file=io.StringIO(), width=120)
    report.show(console, made or account(), RUN, artifact(), truth)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_figures_are_the_account_and_what_was_counted() -> None:
    lines = shown()
    assert "records 1,006" in lines
    assert "records a second 503" in lines
    assert "offer age, median 0.75 s" in lines
    assert "offer age, p99 0.99 s" in lines
    assert "counted classified 1,004" in lines
    assert "counted dead letter 2" in lines
    assert not any("skipped" in line for line in lines)


def test_accuracy_is_by_language_and_over_all() -> None:
    lines = shown()
    assert "Accuracy against the rows' `label`" in lines
    assert "de 3 66.7% 66.7% 50.0%" in lines
    assert "en 1 100.0% 100.0% 100.0%" in lines
    assert "all 4 75.0% 75.0% 66.7%" in lines


def test_without_a_truth_there_is_no_accuracy() -> None:
    assert not any("Accuracy" in line for line in shown(truth=None))


def test_examples_are_named_in_their_language_and_judged() -> None:
    lines = shown()
    assert "de Wasserkocher 1,7 l ✓ Wasserkocher 0.88 classified" in lines
    assert "fr Sofa [bold] [2J ✗ sofas 0.50 uncertain" in lines


def test_endpoints_are_those_that_answered() -> None:
    assert 'http://127.0.0.1:8080/readyz 200 {"ready":true}' in shown()


def test_no_text_from_outside_steers_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    report.show(console, account(), RUN, artifact(), None)
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[2J" not in console.file.getvalue()


def test_an_account_of_nothing_is_shown_all_the_same() -> None:
    assert "records 0" in shown(made=Account())


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "7 records sent, 0 accounted for: nothing"),
        (
            {"classified": 1_000, "dead letter": 2, "removed": 1, "skipped": 0},
            "7 records sent, 1,003 accounted for: 1,000 classified, 1 removed, 2 dead letters",
        ),
        ({"superseded": 3}, "7 records sent, 3 accounted for: 3 superseded by a newer event"),
    ],
)
def test_the_account_in_one_line(found: dict[str, int], said: str) -> None:
    assert report.line(Account(sent=7, found=Counter(found))) == said
