"""Plots: as SVG to stand inside a page, in the page's own colours and letters."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from training.coverage import Coverage
from training.reliability import Reliability

# What matplotlib draws with, and what stands for it in the page, light or dark.
_INK, _FAINT = "#010203", "#010204"
_SERIES = ("#010205", "#010206", "#010207", "#010208")
_COLOURS = {
    _INK: "var(--ink)",
    _FAINT: "var(--line)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(_SERIES, start=1)},
}
_DASHES = ("-", "--", ":", "-.")  # for those who do not see colours
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "offer-classifier",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def reliability(given: Reliability, name: str) -> str:
    """The reliability diagram, above how many answers there are of each score."""
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(5.4, 5.0), layout="constrained")
        upper, lower = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]}, squeeze=True
        )
        upper.plot([0, 1], [0, 1], color=_INK, linewidth=0.8, linestyle=":")
        bins = [each for each in given.bins if each.score is not None]
        upper.plot(
            [each.score for each in bins],
            [each.right for each in bins],
            color=_SERIES[0],
            marker="o",
            markersize=4,
        )
        upper.set(ylabel="share that is right", ylim=(0, 1.02), xlim=(0, 1))
        lower.bar(
            [(each.low + each.high) / 2 for each in given.bins],
            [each.weight for each in given.bins],
            width=[0.9 * (each.high - each.low) for each in given.bins],
            color=_SERIES[0],
        )
        lower.set(xlabel="score of the answer", ylabel="answers")
        for axes in (upper, lower):
            _percents(axes)
        return _svg(figure, name)


def coverage(curves: Mapping[str, Coverage], certain: tuple[float, float] | None, name: str) -> str:
    """Precision over coverage, a line for each model, and where the first one's thresholds are.

    `certain` is that coverage and precision.
    """
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(5.4, 5.0), layout="constrained")
        axes = figure.subplots()
        for number, (model, curve) in enumerate(curves.items()):
            axes.plot(
                [point.coverage for point in curve.points],
                [point.precision for point in curve.points],
                color=_SERIES[number % len(_SERIES)],
                linestyle=_DASHES[number % len(_DASHES)],
                label=_plain(model),
            )
        if certain is not None:
            axes.plot(
                *[[each] for each in certain],
                color=_SERIES[0],
                marker="o",
                linestyle="",
                label="at its thresholds",
            )
        axes.set(xlabel="share of the offers that are acted on", ylabel="of these, right")
        axes.set(xlim=(0, 1), ylim=(None, 1.005))
        _percents(axes)
        axes.legend(loc="lower left")
        return _svg(figure, name)


def past(labels: Sequence[str], lines: Mapping[str, Sequence[float | None]], name: str) -> str:
    """Figures over the models of the history, in its order."""
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(8.4, 3.2), layout="constrained")
        axes = figure.subplots()
        for number, (line, values) in enumerate(lines.items()):
            axes.plot(
                range(len(labels)),
                [float("nan") if value is None else value for value in values],
                color=_SERIES[number % len(_SERIES)],
                linestyle=_DASHES[number % len(_DASHES)],
                marker="o",
                markersize=4,
                label=_plain(line),
            )
        axes.set_xticks(range(len(labels)), [_plain(label) for label in labels])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend(loc="best")
        return _svg(figure, name)


def _percents(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))


def _plain(text: str) -> str:
    """Text that matplotlib takes for no formula, and for no name to leave out of a legend."""
    text = text.replace("$", r"\$")
    # It leaves out what begins with an underscore; a space of no width comes before that.
    return f"\u200b{text}" if text.startswith("_") else text


def _svg(figure: Figure, name: str) -> str:
    """The figure without what belongs to a file of its own; `name` keeps its ids apart."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'^<svg [^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 role="img">', svg)
    svg = re.sub(r"font-family: [^;\"]*;", "", svg)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    return svg
