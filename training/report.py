"""The report for people: report.html, one file that needs nothing else.

It runs no script and asks for nothing: its own policy forbids both, whatever an offer's title says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from classifier.whole_file import appearing
from training import plots
from training.history import Entry
from training.judgement import PRODUCTION, UNWEIGHTED, Judgement
from training.measures import Estimate

TEMPLATE = Path(__file__).with_name("report.html")
NOTHING = "–"
MOST_PAST = 8
"""Models of the history that are shown: this one, the one before it, and the latest."""
WORST = 30
"""Categories that are shown at once; the others unfold."""

_KINDS = {
    "language": "Language",
    "source": "Source",
    "shop": "Shop",
    "department": "Department",
    "text_length": "Characters of text",
    "category_frequency": "Training offers of the category",
}
_FIGURES = {
    "accuracy": "Accuracy",
    "weighted_f1": "Weighted F1",
    "macro_f1": "Macro F1",
    "macro_f1_true_labels": "Macro F1, true labels",
    "top_3": "Top 3",
    "coverage": "Coverage",
    "precision": "Precision when certain",
    "ece": "Calibration error",
}


def write(path: Path, judged: Judgement, past: Sequence[Entry]) -> None:
    """Write the page. Raises FileError."""
    page = render(judged, past)
    with appearing(path) as file:
        file.write(page.encode())


def render(judged: Judgement, past: Sequence[Entry]) -> str:
    """The page. `past` is the history, with this judgement's own entry in it."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": percent, "points": points, "p_value": p_value, "bar": bar}
    weighting = PRODUCTION if PRODUCTION in judged.overall else UNWEIGHTED
    shown, own = _shown(past, judged)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        judged=judged,
        test_set=judged.test_set,
        weighting=weighting,
        kinds=_KINDS,
        figures=_FIGURES,
        nothing=NOTHING,
        worst=WORST,
        categories=sorted(
            judged.categories, key=lambda each: (each.right - each.offers, each.category_id)
        ),
        past=shown,
        own=own,
        past_weighted=all(entry.weighted for entry in shown),
        past_categories=_past_categories(shown, own),
        plots={name: Markup(svg) for name, svg in _plots(judged, shown, weighting).items()},  # noqa: S704 matplotlib escapes
    )


def percent(value: float | None, digits: int = 1) -> str:
    """A share of 1 in percent, without the sign."""
    return NOTHING if value is None else f"{100 * value:.{digits}f}"


def points(value: float | None) -> str:
    """A difference of shares, in percentage points."""
    return NOTHING if value is None else f"{100 * value:+.1f}".replace("-", "−")


def p_value(value: float) -> str:
    """To two digits, as far as it matters."""
    return "< 0.0001" if value < 0.0001 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def bar(estimate: Estimate, lowest: float = 0.0) -> Markup:
    """An estimate with its interval, drawn from `lowest` to 1; from -1 on, 0 is in the middle."""
    if estimate.value is None:
        return Markup("")

    def at(value: float) -> float:
        return round(100 * (value - lowest) / (1 - lowest), 1)

    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    return Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="whole" d="M0 5H100"/><path class="span" d="M{} 5H{}"/>'
        '<path class="mark" d="M{} 1V9"/></svg>'
    ).format(at(low), at(high), at(estimate.value))


def _plots(judged: Judgement, past: Sequence[Entry], weighting: str) -> dict[str, str]:
    figures = judged.overall[weighting].figures
    covered, right = figures["coverage"].value, figures["precision"].value
    curves = {"this model": judged.coverage[weighting]}
    curves |= {name: compared.coverage for name, compared in judged.against.items()}
    made = {}
    if judged.reliability[weighting].answers:
        made["reliability"] = plots.reliability(judged.reliability[weighting], "reliability")
        made["coverage"] = plots.coverage(
            curves, None if covered is None or right is None else (covered, right), "coverage"
        )
    if len(past) > 1:
        made["past"] = plots.past(
            [each.at[:10] for each in past],
            {
                _FIGURES[name]: [each.figures[UNWEIGHTED].get(name) for each in past]
                for name in ("accuracy", "macro_f1_true_labels", "precision", "coverage")
            },
            "past",
        )
    return made


def _shown(past: Sequence[Entry], judged: Judgement) -> tuple[list[Entry], int]:
    """The entries to show, in their order, and which of them is this judgement's own."""
    is_own = [
        (each.model, each.test_set) == (judged.model, judged.test_set.sha256) for each in past
    ]
    own = is_own.index(True)
    first = max(0, own - 1)
    others = [i for i in range(len(past)) if i not in (first, own)]
    kept = sorted({first, own, *others[-(MOST_PAST - 2) :]})
    return [past[i] for i in kept], kept.index(own)


def _past_categories(past: Sequence[Entry], own: int) -> list[dict[str, Any]]:
    """Rows of the history by category: those that fell most since the model before come first.

    F1s are production's where every entry has these, so that a row holds but one kind.
    """
    weighted = all(entry.weighted for entry in past)
    rows: list[dict[str, Any]] = []
    for category_id in sorted({each for entry in past for each in entry.categories}):
        found = [entry.categories.get(category_id) for entry in past]
        values = [
            None if each is None else each.production_f1 if weighted else each.f1 for each in found
        ]
        before, now = values[own - 1] if own else None, values[own]
        change = None if before is None or now is None else now - before
        rows.append({"category_id": category_id, "values": values, "change": change})
    rows.sort(key=lambda row: (row["change"] is None, row["change"] or 0.0))
    return rows
