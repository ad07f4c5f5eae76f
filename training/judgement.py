"""The judgement: all that report.json says of one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from training import slices as sliced
from training.bootstrap import Bootstrap, Floats
from training.categories import CategoryFigures, categories
from training.comparison import Comparison, compare
from training.confusions import Confusion, confusions, shortened
from training.coverage import Coverage, coverage
from training.measures import Estimate, Measured, draw, mean, measured
from training.parameters import EvaluateParameters
from training.predictions import NONE, Predictions
from training.reliability import Reliability, reliability
from training.slices import Slice
from training.taxonomy import Taxonomy, above, label_ids

UNWEIGHTED, PRODUCTION = "unweighted", "production"
COMPARED = ("language", "source", "department")
"""By what two models are compared, besides the categories."""
EXAMPLES = 20
"""Offers without an answer, and categories outside the taxonomy, that are named."""


class Unanswered(msgspec.Struct, frozen=True):
    """An offer without an answer."""

    offer_id: str
    reason: str
    title: str


class Name(msgspec.Struct, frozen=True):
    """What people call a category."""

    name: str
    path: str  # the names above it, from the top


class TestSet(msgspec.Struct, frozen=True):
    """What was asked, and what of that got no answer or does not fit the taxonomy."""

    sha256: str  # of the offers, labels and weights; equal for equal questions
    offers: int
    clusters: int
    categories: int  # labels that occur
    weighted: bool  # whether there are weights to production's distribution
    effective_offers: float  # under these
    uncovered_mass: float | None  # share of production in categories of none of them
    errors: dict[str, int]  # offers without an answer, by reason
    unanswered: tuple[Unanswered, ...]  # some of them
    labels_outside: dict[str, int]  # labels that are none of the taxonomy's, with their offers
    answers_outside: dict[str, int]  # answers likewise


class SliceFigures(msgspec.Struct, frozen=True):
    """Some of the offers."""

    name: str
    small: bool  # too few offers to say much
    weight: float  # share in production, or of the offers where that is not known
    unweighted: Measured
    production: Measured | None


class Judgement(msgspec.Struct, frozen=True):
    """report.json."""

    format: int
    model: str
    taxonomy: str | None  # version
    test_set: TestSet
    confidence: float  # of the intervals
    resamples: int
    overall: dict[str, Measured]  # "unweighted" and, where there are weights, "production"
    mean_of_sources: dict[str, Estimate] | None  # unweighted, where there are several
    reliability: dict[str, Reliability]
    coverage: dict[str, Coverage]
    slices: dict[str, list[SliceFigures]]  # by what
    categories: list[CategoryFigures]
    confusions: list[Confusion]
    against: dict[str, Comparison]
    names: dict[str, Name]  # of the categories, where they are known


def judge(
    given: Predictions,
    against: Mapping[str, Predictions],
    taxonomy: Taxonomy | None,
    training_offers: Mapping[str, int] | None,
    parameters: EvaluateParameters,
    on_step: Callable[[str], None] = lambda _: None,
    *,
    uncovered_mass: float | None = None,
) -> Judgement:
    """Judge `given` against the others, which were read together with it.

    `uncovered_mass` is the share of production in categories without a test offer.
    `on_step` hears what is being computed.
    """
    how = Bootstrap(parameters.resamples, parameters.confidence, parameters.seed)
    weightings: dict[str, Floats] = {}
    if given.weights is not None:
        weightings[PRODUCTION] = given.weights
    weightings[UNWEIGHTED] = np.ones(len(given))
    weights = weightings.get(PRODUCTION, weightings[UNWEIGHTED])
    everything = Slice("all", np.arange(len(given)))
    on_step("all offers")
    overall = {name: _measured(given, everything, each, how) for name, each in weightings.items()}

    parts = _slices(given, taxonomy, training_offers, parameters)
    figures: dict[str, list[SliceFigures]] = {}
    for kind, some in parts.items():
        on_step(f"by {kind.replace('_', ' ')}")
        figures[kind] = []
        for part in some:
            drawn = draw(given, part.offers, np.ones(len(part.offers)), how)
            figures[kind].append(
                SliceFigures(
                    name=part.name,
                    small=len(part.offers) < parameters.least_offers,
                    weight=float(weights[part.offers].sum() / weights.sum()),
                    unweighted=measured(given, part.offers, np.ones(len(part.offers)), drawn, how),
                    production=None
                    if given.weights is None
                    else _measured(given, part, given.weights, how),
                )
            )
    compared = {kind: some for kind, some in parts.items() if kind in COMPARED}
    comparisons = {}
    for name, other in against.items():
        on_step(f"against {name}")
        comparisons[name] = compare(given, other, compared, how)
    on_step("categories")
    sources = [part.offers for part in parts.get("source", ())]
    return Judgement(
        format=1,
        model=given.model,
        taxonomy=None if taxonomy is None else taxonomy.version,
        test_set=_test_set(given, weights, taxonomy, uncovered_mass),
        confidence=parameters.confidence,
        resamples=parameters.resamples,
        overall=overall,
        mean_of_sources=mean(given, sources, how) if len(sources) > 1 else None,
        reliability={
            name: reliability(given.scores, given.right, each) for name, each in weightings.items()
        },
        coverage={
            name: coverage(given.scores, given.right, each) for name, each in weightings.items()
        },
        slices=figures,
        categories=categories(given, given.weights, training_offers, parameters.confidence),
        confusions=confusions(given, weights, parameters.confusions),
        against=comparisons,
        names=_names(taxonomy, given.category_ids),
    )


def successors(taxonomy: Taxonomy) -> dict[str, str]:
    """What retired categories were merged into, by their ids: the one that is there today."""
    next_of = {each.id: each.successor for each in taxonomy.categories if each.successor}
    became = {}
    for category_id in next_of:
        last = category_id
        while last in next_of:
            last = next_of[last]
        became[category_id] = last
    return became


def _measured(given: Predictions, part: Slice, weights: Floats, how: Bootstrap) -> Measured:
    mine = weights[part.offers]
    return measured(given, part.offers, mine, draw(given, part.offers, mine, how), how)


def _slices(
    given: Predictions,
    taxonomy: Taxonomy | None,
    training_offers: Mapping[str, int] | None,
    parameters: EvaluateParameters,
) -> dict[str, list[Slice]]:
    """By what is known of the offers: nothing that would be one slice of unknowns."""
    parts = {
        "language": sliced.languages(given),
        "source": sliced.sources(given),
        "text_length": sliced.lengths(given, parameters.text_lengths),
    }
    if training_offers is not None:
        parts["category_frequency"] = sliced.frequencies(
            given, training_offers, parameters.category_offers
        )
    if taxonomy is not None:
        parts["department"] = sliced.by_truth(given, _departments(taxonomy))
    parts["shop"] = sliced.shops(given, parameters.least_offers)
    return {
        kind: some
        for kind, some in parts.items()
        if len(some) > 1 or some[0].name != sliced.UNKNOWN
    }


def _called(taxonomy: Taxonomy) -> dict[str, str]:
    return {
        each.id: each.names.get("en") or next(iter(each.names.values()), each.id)
        for each in taxonomy.categories
    }


def _departments(taxonomy: Taxonomy) -> dict[str, str]:
    """The name of what stands at the top, for every category."""
    known, called = {each.id: each for each in taxonomy.categories}, _called(taxonomy)
    return {each: called[[each, *above(known, each)][-1]] for each in known}


def _names(taxonomy: Taxonomy | None, category_ids: list[str]) -> dict[str, Name]:
    if taxonomy is None:
        return {}
    known, called = {each.id: each for each in taxonomy.categories}, _called(taxonomy)
    return {
        each: Name(called[each], " › ".join(called[id_] for id_ in [*above(known, each)][::-1]))
        for each in category_ids
        if each in known
    }


def _test_set(
    given: Predictions, weights: Floats, taxonomy: Taxonomy | None, uncovered_mass: float | None
) -> TestSet:
    missing = [row for row, error in enumerate(given.errors) if error]
    known = None if taxonomy is None else set(label_ids(taxonomy))

    def outside(categories: np.typing.NDArray[np.int64]) -> dict[str, int]:
        counts = Counter(given.category_ids[i] for i in categories.tolist() if i != NONE)
        return {} if known is None else {k: n for k, n in sorted(counts.items()) if k not in known}

    return TestSet(
        sha256=given.test_set(),
        offers=len(given),
        clusters=len(np.unique(given.clusters)),
        categories=len(np.unique(given.truths)),
        weighted=given.weights is not None,
        effective_offers=float(weights.sum() ** 2 / (weights**2).sum()),
        uncovered_mass=uncovered_mass,
        errors=dict(sorted(Counter(filter(None, given.errors)).items())),
        unanswered=tuple(
            Unanswered(given.offer_ids[row], given.errors[row], shortened(given.titles[row]))
            for row in missing[:EXAMPLES]
        ),
        labels_outside=outside(given.truths),
        answers_outside=outside(given.answers),
    )
