"""Checks: what an artefact, its answers and its speed are held against, each with its own reason.

A champion is whatever serves now, of any kind. Both answered the same offers, so tests are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.artifact import Artifact
from classifier.precision import LOGIT_BOUND, NEIGHBOUR_BOUND
from classifier.record import Reason
from compile.prices import Prices
from training import slices
from training.bootstrap import Bootstrap
from training.comparison import Comparison, Difference, compare, mcnemar
from training.measures import Estimate, measure
from training.parameters import GateParameters
from training.predictions import NONE, Predictions
from training.taxonomy import Taxonomy, label_ids
from training.throughput import Throughput
from training.verdict import Check

NAMED = 5
"""Categories that a reason names at most."""

CERTAIN = "precision when certain"


class Contender(NamedTuple):
    """An artefact, what it answered and how fast that was."""

    artifact: Artifact
    predictions: Predictions
    throughput: Throughput | None

    @property
    def road(self) -> tuple[str, str]:
        """Target and kind: speeds are compared where both are the same."""
        return self.artifact.manifest.target, self.artifact.manifest.kind


def of_artifact(artifact: Artifact, taxonomy: Taxonomy) -> Iterator[Check]:
    """What the artefact itself tells."""
    manifest = artifact.manifest
    yield _parity(artifact)
    yield Check(
        name="taxonomy",
        passed=manifest.taxonomy == taxonomy.version,
        says=f"its labels are of edition {manifest.taxonomy}, and {taxonomy.version} is current",
    )
    has, wanted = {label.id for label in artifact.labels}, set(label_ids(taxonomy))
    missing, others = sorted(wanted - has), sorted(has - wanted)
    says = f"all {len(wanted):,} labels of edition {taxonomy.version}, and no others"
    if missing or others:
        wrong = [f"lacks {_named(missing)}"] if missing else []
        wrong += [f"has {_named(others)}, not in edition {taxonomy.version}"] if others else []
        says = "; ".join(wrong)
    yield Check(
        name="label map",
        passed=not (missing or others),
        says=says,
        figure=len(has & wanted),
        bound=len(wanted),
    )


def of_answers(
    own: Predictions, champion: Predictions | None, parameters: GateParameters, how: Bootstrap
) -> Iterator[Check]:
    """What the answers tell, of models that were read together."""
    yield Check(
        name="test set",
        passed=len(own) >= parameters.least_offers,
        says=f"{len(own):,} offers were asked; on fewer than {parameters.least_offers:,} no test"
        " tells models apart",
        figure=len(own),
        bound=parameters.least_offers,
    )
    yield from _whole(own, parameters)
    compared = None
    if champion is not None:
        compared = compare(own, champion, {"language": slices.languages(own)}, how)
    figures, production = _figures(own, compared, how)
    yield from _accuracy(figures, production, compared, parameters)
    if compared is not None and champion is not None:
        yield from _languages(compared, parameters)
        yield from _categories(own, champion, parameters)
    # As production sees them, where that is known.
    yield from _certainty(own, champion, production or figures, parameters)


def of_throughput(
    own: Contender, champion: Contender | None, parameters: GateParameters, prices: Prices
) -> Iterator[Check]:
    """What the run of the service tells. Raises PriceError."""
    found = own.throughput
    if found is None or 2 * found.offers < len(own.predictions):
        yield Check(
            name="throughput",
            passed=False,
            says=f"measured on {0 if found is None else found.offers:,} of"
            f" {len(own.predictions):,} offers only, since a run that was killed had the others;"
            " answer the test set anew",
        )
        return
    yield Check(
        name="throughput",
        passed=found.offers_per_second >= parameters.least_offers_per_second,
        says=f"a worker did {found.offers_per_second:,.0f} offers a second; at least"
        f" {parameters.least_offers_per_second:,.0f} are asked",
        figure=found.offers_per_second,
        bound=parameters.least_offers_per_second,
    )
    target = own.artifact.manifest.target
    if (name := parameters.instances.get(target)) is None:
        yield Check(
            name="cost",
            passed=False,
            says=f"nobody said which instance serves {target}: gate.instances",
        )
    else:
        instance, workers = prices.instance(name, target)
        rate, per = _rates(target, found)
        cost = instance.million(rate[0], workers)
        yield Check(
            name="cost",
            passed=cost <= parameters.most_cost,
            says=f"a million offers cost {cost:.3g} {prices.currency} on {name} with {workers}"
            f" workers ({prices.date}), by {rate[0]:,.0f} offers {per} as measured on"
            f" {found.machine}; at most {parameters.most_cost:g}",
            figure=cost,
            bound=parameters.most_cost,
        )
    memory = None if found.peak_memory_bytes is None else found.peak_memory_bytes / 1e6
    yield Check(
        name="memory",
        passed=memory is None or memory <= parameters.most_memory,
        says="not measured on this system"
        if memory is None
        else f"a worker took {memory:,.0f} MB at its peak; at most {parameters.most_memory:,}",
        figure=memory,
        bound=parameters.most_memory,
    )
    if champion is not None and champion.road == own.road:
        yield from _against(found, champion, parameters)


def _parity(artifact: Artifact) -> Check:
    """Whether report.json tells of a verification of these very files, and what it found."""
    manifest = artifact.manifest
    name = "verified parity"
    if manifest.kind == "linear":
        return Check(
            name=name,
            passed=True,
            says="a linear model is served as it was trained, and compiled into nothing; the"
            " service asked it its golden questions",
        )
    try:
        report = msgspec.json.decode((artifact.path / "report.json").read_bytes(), type=_Report)
    except msgspec.DecodeError as error:
        return Check(
            name=name, passed=False, says=f"its report.json tells of no verification: {error}"
        )
    found = report.compile.verification
    if found is None:
        return Check(
            name=name,
            passed=False,
            says=f"nobody verified it: {report.compile.unverified or 'its report says no reason'};"
            " compile it on a machine that has the device",
        )
    files = {file: each for file, each in manifest.files.items() if file != "report.json"}
    bound = LOGIT_BOUND[manifest.precision]
    figures: dict[str, Any] = {"name": name, "figure": found.largest_difference, "bound": bound}
    if report.compile.sha256 != files:
        changed = sorted(
            file
            for file in files.keys() | report.compile.sha256.keys()
            if files.get(file) != report.compile.sha256.get(file)
        )
        return Check(
            **figures,
            passed=False,
            says=f"what was verified is not this artefact: another {', '.join(changed)}",
        )
    if (report.compile.target, found.precision) != (manifest.target, manifest.precision):
        return Check(
            **figures,
            passed=False,
            says=f"verified for {report.compile.target} in {found.precision}, and it is for"
            f" {manifest.target} in {manifest.precision}",
        )
    neighbours = NEIGHBOUR_BOUND[manifest.precision]
    same = ""
    if found.same_winner is not None:
        same = f"; {found.same_winner:.2%} have the very same winner"
        same += ", the others are ties within the bound" if found.same_winner < 1 else ""
    return Check(
        **figures,
        # So written that NaN does not pass.
        passed=found.texts > 0
        and found.largest_difference <= bound
        and found.largest_neighbour_difference <= neighbours,
        says=f"on {found.texts} texts of {found.lengths} lengths its logits differ from the"
        f" checkpoint's by {found.largest_difference:.2g}, at most {bound:g}, and by"
        f" {found.largest_neighbour_difference:.2g} with other neighbours, at most"
        f" {neighbours:g}{same}",
    )


class _Verification(msgspec.Struct, frozen=True):
    """What compile.verify.Verification says, whatever else there is."""

    texts: int
    lengths: int
    precision: str
    largest_difference: float
    largest_neighbour_difference: float
    same_winner: float | None = None  # share of texts; not in the reports of older versions


class _Compiled(msgspec.Struct, frozen=True):
    target: str
    verification: _Verification | None  # None: compiled where its device is not
    sha256: dict[str, str]
    unverified: str = ""  # why there is none


class _Report(msgspec.Struct, frozen=True):
    compile: _Compiled


def _whole(own: Predictions, parameters: GateParameters) -> Iterator[Check]:
    """Whether there are answers at all, and not one for everything."""
    failed = own.errors.count(Reason.INFERENCE)
    yield Check(
        name="answered",
        passed=not failed,
        says=f"{failed:,} offers got no answer from the model, such as a logit that is not finite;"
        f" {sum(map(bool, own.errors)) - failed:,} others were set aside",
        figure=failed,
        bound=0,
    )
    count = len(own.category_ids)
    answers = np.bincount(own.answers[own.answers != NONE], minlength=count) / len(own)
    excess = answers - np.bincount(own.truths, minlength=count) / len(own)
    most = int(excess.argmax())
    yield Check(
        name="spread",
        passed=float(excess[most]) <= parameters.answer_excess,
        says=f"{own.category_ids[most]} is {answers[most]:.1%} of the answers and"
        f" {answers[most] - excess[most]:.1%} of the labels; at most"
        f" {parameters.answer_excess:.1%} more",
        figure=float(excess[most]),
        bound=parameters.answer_excess,
    )


Figures = Mapping[str, Difference]


def _figures(
    own: Predictions, compared: Comparison | None, how: Bootstrap
) -> tuple[Figures, Figures | None]:
    """The figures, unweighted and, where there are weights, in production."""
    if compared is not None:
        return compared.unweighted, compared.production

    def alone(weights: NDArray[np.float64]) -> Figures:
        found = measure(own, np.arange(len(own)), weights, how).figures
        return {name: Difference(each.value, None, Estimate(None)) for name, each in found.items()}

    return alone(np.ones(len(own))), None if own.weights is None else alone(own.weights)


def _accuracy(
    figures: Figures,
    production: Figures | None,
    compared: Comparison | None,
    parameters: GateParameters,
) -> Iterator[Check]:
    accuracy = figures["accuracy"]
    yield Check(
        name="least accuracy",
        passed=(accuracy.own or 0.0) >= parameters.least_accuracy,
        says="no answer counted"
        if accuracy.own is None
        else f"{accuracy.own:.2%} of the answers are right; at least"
        f" {parameters.least_accuracy:.2%} whatever the champion",
        figure=accuracy.own,
        bound=parameters.least_accuracy,
    )
    if compared is None:
        return
    bound, significance = parameters.accuracy_fall, parameters.significance
    yield _fall("accuracy", accuracy, bound, significance, compared.p_value)
    if production is not None:
        yield _fall("accuracy in production", production["accuracy"], bound, significance, None)


def _fall(
    name: str, found: Difference, bound: float, significance: float, p_value: float | None
) -> Check:
    """Refused is a fall by more than the bound that noise does not explain.

    Both the exact McNemar test, where it can be had, and the paired bootstrap of whole clusters
    must say so: the one holds for few offers, the other where offers resemble each other.
    """
    nothing = "no answer counted" if name != CERTAIN else "no answer was certain"
    if found.own is None:
        return Check(
            name=name,
            passed=False,
            says=f"{nothing}, so that there is no such figure",
            champion=found.other,
            bound=bound,
        )
    if found.other is None:
        return Check(
            name=name,
            passed=True,
            says=f"{found.own:.2%}; of the champion's {nothing}, so there is none to fall from",
            figure=found.own,
            bound=bound,
        )
    change = found.difference
    fell = -(change.value or 0.0) > bound
    noise = (p_value is not None and p_value >= significance) or (
        change.high is not None and change.high >= 0
    )
    interval = "" if change.low is None else f", from {change.low:+.2%} to {change.high:+.2%}"
    tested = "" if p_value is None else f", p = {p_value:.2g}"
    said = ", which noise explains" if fell and noise else ""
    return Check(
        name=name,
        passed=not fell or noise,
        says=f"{found.own:.2%}, the champion {found.other:.2%}: "
        f"{change.value or 0.0:+.2%}{interval}{tested}{said}; a fall by more than {bound:.2%} is"
        " refused unless noise explains it",
        figure=found.own,
        champion=found.other,
        bound=bound,
        p_value=p_value,
    )


def _languages(compared: Comparison, parameters: GateParameters) -> Iterator[Check]:
    """Each language, with p-values for as many tests as there are languages (Holm)."""
    for part in compared.parts["language"]:
        yield _fall(
            f"language {part.name}",
            part.accuracy,
            parameters.language_fall,
            parameters.significance,
            part.adjusted,
        )


def _categories(
    own: Predictions, champion: Predictions, parameters: GateParameters
) -> Iterator[Check]:
    """One for every category that fell too far, and one for all the others."""
    count = len(own.category_ids)
    right, theirs = own.right, champion.right
    offers, mine, others, gained, lost = (
        np.bincount(own.truths[mask], minlength=count)
        for mask in (right | True, right, theirs, right & ~theirs, ~right & theirs)
    )
    enough = np.flatnonzero(offers >= parameters.category_offers)
    falls = (others[enough] - mine[enough]) / offers[enough]
    p_values = mcnemar(gained[enough], lost[enough])
    bound = parameters.category_fall
    order = np.argsort(-falls, kind="stable")
    for i in order[falls[order] > bound].tolist():
        category = enough[i]
        yield Check(
            name=f"category {own.category_ids[category]}",
            passed=False,
            says=f"of its {offers[category]} offers {mine[category]} are right, and"
            f" {others[category]} with the champion: {-falls[i]:+.1%}; at most -{bound:.1%}",
            figure=float(mine[category] / offers[category]),
            champion=float(others[category] / offers[category]),
            bound=bound,
            p_value=float(p_values[i]),
        )
    within = order[falls[order] <= bound]
    worst = ""
    if len(within):
        category = enough[within[0]]
        worst = f"; the worst, {own.category_ids[category]}, {-falls[within[0]]:+.1%}"
    yield Check(
        name="categories",
        passed=True,
        says=f"{len(within)} of the {len(enough)} with {parameters.category_offers} test offers or"
        f" more fall by no more than {bound:.1%}{worst}; {(offers > 0).sum() - len(enough)} have"
        " fewer, and are not judged one by one",
        figure=len(within),
        bound=len(enough),
    )


def _certainty(
    own: Predictions, champion: Predictions | None, figures: Figures, parameters: GateParameters
) -> Iterator[Check]:
    ece = figures["ece"]
    yield _risen("calibration", ece.own, ece.other, parameters.most_ece, parameters.ece_rise)
    theirs = None if champion is None else _uncertain(champion)
    yield _risen(
        "uncertain",
        _uncertain(own),
        theirs,
        parameters.most_uncertain,
        parameters.uncertain_rise,
    )
    if champion is not None:
        # Else whoever is certain of everything would pass the check above best.
        yield _fall(
            CERTAIN,
            figures["precision"],
            parameters.precision_fall,
            parameters.significance,
            None,
        )


_WHAT = {
    "calibration": "scores are off by {:.2%} on average (expected calibration error)",
    "uncertain": "{:.2%} of the offers are answered as uncertain",
}


def _risen(
    name: str, figure: float | None, champion: float | None, most: float, rise: float
) -> Check:
    """Bounded by itself, and by how far it may rise above the champion's."""
    bound = most if champion is None else min(most, champion + rise)
    against = "" if champion is None else f", {champion:.2%} of the champion's"
    return Check(
        name=name,
        passed=figure is not None and figure <= bound,
        says="nothing was answered"
        if figure is None
        else f"{_WHAT[name].format(figure)}{against}; at most {bound:.2%}",
        figure=figure,
        champion=champion,
        bound=bound,
    )


def _uncertain(given: Predictions) -> float | None:
    """Share of what was answered that is uncertain, in production where that is known."""
    answered = given.answers != NONE
    weights = np.ones(len(given)) if given.weights is None else given.weights
    if not weights[answered].sum():
        return None
    return float(np.average(~given.certain[answered], weights=weights[answered]))


def _rates(target: str, *measured: Throughput) -> tuple[list[float], str]:
    """How fast each worker is and by which seconds, the same for all: see
    GateParameters.throughput_share.
    """
    on_cpu = [each.offers_per_cpu_second for each in measured]
    known = [rate for rate in on_cpu if rate is not None]
    if target.endswith("-cpu") and len(known) == len(measured):
        return known, "a processor second"
    return [each.offers_per_second for each in measured], "a second"


def _against(found: Throughput, champion: Contender, parameters: GateParameters) -> Iterator[Check]:
    name, theirs = "throughput beside the champion", champion.throughput
    asked = len(champion.predictions)
    few = theirs is not None and 2 * theirs.offers < asked
    if theirs is None or few or (theirs.machine, theirs.workers) != (found.machine, found.workers):
        where = "was not measured"
        if theirs is not None and few:
            where = f"was measured on {theirs.offers:,} of {asked:,} offers only"
        elif theirs is not None:
            where = f"was measured on {theirs.machine} with {theirs.workers} workers, and"
            where += f" this one's on {found.machine} with {found.workers}"
        yield Check(
            name=name, passed=False, says=f"the champion's {where}; answer the test set anew"
        )
        return
    (rate, other), per = _rates(champion.artifact.manifest.target, found, theirs)
    yield Check(
        name=name,
        passed=rate >= parameters.throughput_share * other,
        says=f"{rate:,.0f} offers {per}, the champion {other:,.0f}:"
        f" {rate / other - 1:+.0%}; at least {parameters.throughput_share:.0%} of the champion's",
        figure=rate,
        champion=other,
        bound=parameters.throughput_share * other,
    )
    if found.peak_memory_bytes is not None and theirs.peak_memory_bytes is not None:
        memory, most = found.peak_memory_bytes / 1e6, theirs.peak_memory_bytes / 1e6
        bound = most * (1 + parameters.memory_rise)
        yield Check(
            name="memory beside the champion",
            passed=memory <= bound,
            says=f"{memory:,.0f} MB at its peak, the champion {most:,.0f}; at most {bound:,.0f}",
            figure=memory,
            champion=most,
            bound=bound,
        )


def _named(category_ids: list[str]) -> str:
    more = f" and {len(category_ids) - NAMED:,} more" if len(category_ids) > NAMED else ""
    return f"{', '.join(category_ids[:NAMED])}{more}"
