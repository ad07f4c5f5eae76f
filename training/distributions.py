"""Distributions: what the lake has, what the sets have, and how far the one is from the other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from classifier.whole_file import appearing
from training.engines import SqlEngine
from training.production import Production
from training.sampling import Set

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BY_LABEL: Final = (
    "SELECT label, COUNT(*) AS offers FROM offers WHERE label IS NOT NULL GROUP BY label"
)
_BY_LOST_LABEL: Final = (
    "SELECT lost_label, COUNT(*) FROM offers WHERE lost_label IS NOT NULL GROUP BY lost_label"
)
_TOTALS: Final = (
    "SELECT COUNT(*), COUNT(label), COUNT(lost_label), COUNT(*) - COUNT(text_id) FROM offers"
)
_REPEATED: Final = """
SELECT
  CAST(COALESCE(SUM(CASE WHEN offer_id IS NULL THEN copies END), 0) AS BIGINT),
  CAST(COALESCE(SUM(CASE WHEN offer_id IS NOT NULL THEN copies - 1 END), 0) AS BIGINT)
FROM repeated
"""
_CONTESTED: Final = """
SELECT COUNT(*) FROM offers AS o JOIN contested AS c ON c.text_id = o.text_id
WHERE o.label IS NOT NULL AND (c.label IS NULL OR c.label <> o.label)
"""
_BY_LANGUAGE: Final = """
SELECT CASE WHEN label IS NULL THEN 'unlabelled' ELSE 'labelled' END, language, COUNT(*)
FROM offers GROUP BY CASE WHEN label IS NULL THEN 'unlabelled' ELSE 'labelled' END, language
UNION ALL
SELECT c.name, COALESCE(s.language, ''), COUNT(*)
FROM chosen AS c JOIN selected AS s ON s.row_id = c.row_id
GROUP BY c.name, COALESCE(s.language, '')
"""
# A product belongs to one subcategory, so products can be counted by it.
_BY_SUBCATEGORY: Final = """
SELECT
  p.stratum, p.outer_lot, COUNT(*), COUNT(c.row_id),
  COUNT(DISTINCT p.middle_lot),
  COUNT(DISTINCT CASE WHEN c.row_id IS NOT NULL THEN p.middle_lot END)
FROM pools AS p
LEFT JOIN (SELECT row_id FROM chosen WHERE name = 'train') AS c ON c.row_id = p.row_id
WHERE p.pool = 'train'
GROUP BY p.stratum, p.outer_lot
"""


def measure(
    runner: SqlEngine,
    sets: Sequence[Set],
    labels: Sequence[str],
    floor: int,
    production: Production | None,
) -> dict[str, Any]:
    """All that dataset.json says of a finished plan. `labels` are the taxonomy's.

    A category with fewer than `floor` training offers is one that needs labels.
    """
    total, labelled, lost, silent = (_int(count) for count in runner.rows(_TOTALS)[0])
    torn, settled = runner.rows("SELECT COUNT(*), COUNT(label) FROM contested")[0]
    without_id, older = (_int(count) for count in runner.rows(_REPEATED)[0])
    contested = _int(runner.rows(_CONTESTED)[0][0])
    available = _nested(runner.rows("SELECT pool, stratum, offers FROM available"))
    # From these two nothing is drawn.
    held, shared = (sum(available.pop(pool, {}).values()) for pool in ("held", "torn"))
    texts = sum(sum(by.values()) for by in available.values())
    drawn = _nested(
        runner.rows("SELECT name, stratum, COUNT(*) FROM chosen GROUP BY name, stratum")
    )
    produced = _counts(runner.rows("SELECT label, offers FROM production"))
    lost_offers = sum(production.lost.values()) if production else 0
    train = available.get("train", {})
    return {
        "lake": {
            "without_id": without_id,
            "older_rows": older,
            "offers": total,
            "labelled": labelled,
            "labels_lost": lost,
            "without_text": silent,
            "contested_texts": torn,
            "contested_texts_settled": settled,
            "texts_to_draw_from": texts,
            # Offers that say something and yet are in no pool to draw from.
            "dropped": {
                "duplicates": total - silent - contested - held - shared - texts,
                "contested": contested,
                "title_on_several_sides": shared,
                "unlabelled_of_a_held_side": held,
            },
        },
        "sets": {
            each.name: {
                "wanted": each.offers,
                "drawn": sum(drawn.get(each.name, {}).values()),
                "rule": each.rule,
                "least": each.least,
                "most": each.most,
            }
            for each in sets
        },
        **{
            each.name: weighting(drawn.get(each.name, {}), produced, lost_offers)
            for each in sets
            if each.rule == "production"
        },
        "diversity": _diversity(runner.rows(_BY_SUBCATEGORY)),
        "needs_labels": [
            {"category": label, "training_offers": train.get(label, 0), "wanted": floor}
            for label in labels
            if train.get(label, 0) < floor
        ],
        "lost_labels": _counts(runner.rows(_BY_LOST_LABEL)),
        "production": produced,
        "production_lost": dict(production.lost) if production else {},
        "labelled": _counts(runner.rows(BY_LABEL)),
        "available": available,
        "drawn": drawn,
        "languages": _nested(runner.rows(_BY_LANGUAGE)),
    }


def weighting(drawn: Mapping[str, int], produced: Mapping[str, int], lost: int) -> dict[str, float]:
    """What the weights of a set like production cost: by category, what was drawn and produced.

    The effective sample size is Kish's, (sum w)^2 / sum w^2: so many unweighted offers would tell
    as much (L. Kish, Survey Sampling, 1965, 11.7). The uncovered mass is the part of production in
    categories of which the set has no offer, `lost` offers of no category included.
    """
    everything = sum(produced.values()) + lost
    covered = sum(count for label, count in produced.items() if drawn.get(label))
    # With weights of sum 1 a category's are share / drawn each, and their squares' sum this.
    squares = math.fsum(
        (produced.get(label, 0) / covered) ** 2 / offers
        for label, offers in drawn.items()
        if covered
    )
    return {
        "offers": sum(drawn.values()),
        "effective_sample_size": 1 / squares if squares else 0.0,
        "uncovered_mass": 1 - covered / everything if everything else 1.0,
        "uncovered_categories": sum(
            1 for label, count in produced.items() if count and not drawn.get(label)
        ),
    }


def effective(counts: Iterable[int]) -> float:
    """How many equally large kinds would be as diverse: the inverse of Simpson's index.

    (M. O. Hill, Diversity and evenness, Ecology 54, 1973: the number of order 2.) 0 of nothing.
    """
    found = [count for count in counts if count]
    return sum(found) ** 2 / sum(count**2 for count in found) if found else 0.0


def _diversity(rows: list[tuple[object, ...]]) -> dict[str, Any]:
    """Of what there was to train on (`pool`) and of what was drawn (`train`)."""
    sizes: dict[str, dict[str, list[int]]] = {"pool": defaultdict(list), "train": defaultdict(list)}
    products = {"pool": 0, "train": 0}
    for stratum, _, there, drawn, products_there, products_drawn in rows:
        sizes["pool"][str(stratum)].append(_int(there))
        sizes["train"][str(stratum)].append(_int(drawn))
        products["pool"] += _int(products_there)
        products["train"] += _int(products_drawn)
    told: dict[str, Any] = {}
    for name, by_category in sizes.items():
        offers = [sum(each) for each in by_category.values()]
        mean = [effective(each) for each in by_category.values()]
        told[name] = {
            "offers": sum(offers),
            "products": products[name],
            "effective_categories": round(effective(offers), 2),
            "effective_subcategories_a_category": round(math.fsum(mean) / max(1, len(mean)), 3),
        }
    told["largest_subcategory"] = {
        stratum: [_largest(sizes["pool"][stratum]), _largest(sizes["train"][stratum])]
        for stratum in sorted(sizes["pool"])
    }
    return told


def _largest(counts: list[int]) -> float:
    return round(max(counts) / max(1, sum(counts)), 4)


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """dataset.json's figures as a picture: before and after. Raises FileError."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(12, 8.5))
        FigureCanvasAgg(figure)
        figure.subplots_adjust(0.07, 0.06, 0.98, 0.96, 0.2, 0.25)
        places = figure.subplots(2, 2)
        _plot_categories(places[0][0], figures)
        _plot_test(places[0][1], figures)
        _plot_subcategories(places[1][0], figures)
        _plot_languages(places[1][1], figures)
        with appearing(path) as file:
            # Without the program's name and version, the same figures are the same bytes.
            figure.savefig(file, format="png", dpi=100, metadata={"Software": None})


def _plot_categories(axes: Axes, figures: Mapping[str, Any]) -> None:
    labelled = figures["labelled"]
    order = sorted(labelled, key=lambda label: (-labelled[label], label))
    for name, counts, style in (
        ("labelled in the lake", labelled, "-"),
        ("train", figures["drawn"].get("train", {}), "-"),
        ("test", figures["drawn"].get("test", {}), "-"),
    ):
        heights = [counts.get(label) or math.nan for label in order]
        axes.plot(range(1, len(order) + 1), heights, style, label=name, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_title("Offers of each category")
    axes.set_xlabel("categories, the lake's largest first")
    axes.set_ylabel("offers")
    axes.legend(frameon=False)


def _plot_test(axes: Axes, figures: Mapping[str, Any]) -> None:
    produced, drawn = figures["production"], figures["drawn"].get("test", {})
    all_produced, all_drawn = sum(produced.values()), sum(drawn.values())
    labelled = figures["labelled"]
    all_labelled = sum(labelled.values())
    both = sorted(label for label in produced if produced[label])
    shares = [produced[label] / all_produced for label in both]
    for name, counts, total, mark in (
        ("labelled in the lake", labelled, all_labelled, "x"),
        ("test, unweighted", drawn, all_drawn, "."),
    ):
        heights = [counts.get(label, 0) / total if total else 0 for label in both]
        axes.plot(shares, [height or math.nan for height in heights], mark, label=name, alpha=0.7)
    if shares:
        ends = (min(shares), max(shares))
        axes.plot(ends, ends, "k-", linewidth=0.8, label="as in production; test, weighted")
    axes.set_xscale("log")
    axes.set_yscale("log")
    size, missed = figures["test"]["effective_sample_size"], figures["test"]["uncovered_mass"]
    axes.set_title(f"Test: {all_drawn:,} offers weigh as {size:,.0f}; uncovered {missed:.2%}")
    axes.set_xlabel("a category's share of production")
    axes.set_ylabel("its share of the set")
    axes.legend(frameon=False)


def _plot_subcategories(axes: Axes, figures: Mapping[str, Any]) -> None:
    pairs = list(figures["diversity"]["largest_subcategory"].values())
    edges = [place / 20 for place in range(21)]
    axes.hist(
        [[before for before, _ in pairs], [after for _, after in pairs]],
        bins=edges,
        label=["to train on", "train"],
    )
    axes.set_title("How much of a category its largest subcategory is")
    axes.set_xlabel("share of the category's offers")
    axes.set_ylabel("categories")
    axes.legend(frameon=False)


def _plot_languages(axes: Axes, figures: Mapping[str, Any]) -> None:
    languages = figures["languages"]
    names = [
        name
        for name in ("labelled", "unlabelled", "train", "validation", "test", "transfer")
        if name in languages
    ]
    known = sorted({language for name in names for language in languages[name]})
    width = 0.8 / max(1, len(names))
    for place, name in enumerate(names):
        total = sum(languages[name].values())
        axes.bar(
            [i + (place - (len(names) - 1) / 2) * width for i in range(len(known))],
            [languages[name].get(language, 0) / total for language in known],
            width,
            label=name,
        )
    axes.set_xticks(range(len(known)), [language or "none" for language in known])
    axes.set_title("Languages")
    axes.set_ylabel("share of the offers")
    axes.margins(y=0.3)  # room for the legend
    axes.legend(frameon=False, ncols=3, loc="upper center")


def _nested(rows: list[tuple[object, ...]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for outer, inner, count in rows:
        found[str(outer)][str(inner)] = _int(count)
    return dict(found)


def _counts(rows: list[tuple[object, ...]]) -> dict[str, int]:
    return {str(name): _int(count) for name, count in rows}


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
