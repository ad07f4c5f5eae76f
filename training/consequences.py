"""Consequences of a change of the taxonomy: what to label, to retrain and to classify again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from training.taxonomy import Remap, Route, Taxonomy, above, label_ids

HEAD_SHARE: Final = 0.1
"""Up to this share of new or divided labels a new head on the old encoder is worth a try before
all is trained again: the encoder has seen nine of ten labels. The evaluation decides."""

Offers = Mapping[tuple[str, str | None], int]  # (label, subcategory) -> labelled offers
Production = Mapping[str, int]  # category -> stored classifications


class Lost(msgspec.Struct, frozen=True):
    """A label whose offers, or the rest of them, have no label any more."""

    category: str
    kept: dict[str, str]  # subcategories that have one -> the label
    offers: int | None  # labelled offers that need a label; None where they were not counted


class Fresh(msgspec.Struct, frozen=True):
    """A label that the edition before did not have."""

    category: str
    follows: tuple[str, ...]  # labels whose offers came into it; none: it has no example yet
    offers: int | None  # labelled offers that came with them


class Unseen(msgspec.Struct, frozen=True):
    """A subcategory of a split that no labelled offer has: misspelt, or not sold yet."""

    category: str
    subcategory: str


class Stale(msgspec.Struct, frozen=True):
    """A label whose stored classifications are not what the new edition would give.

    `rename`: all of them become `to`, without a model. `classify`: by the new model. `check`: right
    until the new label `to`, which no old label leads to, draws some of them away; by the new model
    when there is time.
    """

    category: str
    how: Literal["rename", "classify", "check"]
    to: str | None
    offers: int | None  # in production


class Retraining(msgspec.Struct, frozen=True):
    """What the model needs.

    `none`: the labels are the same. `outputs`: whole labels were merged or retired; the old model's
    probabilities add up, or are left out, until the next training. `head`: few labels are new or
    divided. `all`: many are.
    """

    needs: Literal["none", "outputs", "head", "all"]
    added: tuple[str, ...]
    gone: tuple[str, ...]
    changed: tuple[str, ...]  # in both editions, with other offers


class Report(msgspec.Struct, frozen=True):
    """What a change set asks for."""

    base: str
    version: str
    labels: int
    label_lost: tuple[Lost, ...]
    added: tuple[Fresh, ...]
    unseen: tuple[Unseen, ...]
    retrain: Retraining
    reclassify: tuple[Stale, ...]


def consequences(
    before: Taxonomy,
    after: Taxonomy,
    remap: Remap,
    told: Sequence[tuple[str, str, list[str]]],
    offers: Offers | None,
    production: Production | None,
) -> Report:
    """What follows from going from one edition to the next by `remap`.

    `told` holds, for every split, the category, a subcategory that it names, and the labels of
    `before` whose offers were in the category.
    """
    old, new = label_ids(before), label_ids(after)
    added, gone = sorted(set(new) - set(old)), sorted(set(old) - set(new))
    follows: dict[str, set[str]] = {label: set() for label in new}
    for label, route in remap.routes.items():
        for end in (route.rest, *route.by_subcategory.values()):
            if end is not None:
                follows[end].add(label)
    lost_offers = dict.fromkeys(old, 0)
    new_offers = dict.fromkeys(new, 0)
    for (label, subcategory), count in (offers or {}).items():
        if (end := remap(label, subcategory)) is not None:
            new_offers[end] += count
        elif label in lost_offers:
            lost_offers[label] += count
    divided = {label for label, route in remap.routes.items() if route.by_subcategory}
    changed = sorted(
        label
        for label in set(old) & set(new)
        if remap.routes[label] != Route(label) or follows[label] != {label}
    )
    return Report(
        base=before.version,
        version=after.version,
        labels=len(new),
        label_lost=tuple(
            Lost(
                label,
                {sub: end for sub, end in sorted(route.by_subcategory.items()) if end is not None},
                None if offers is None else lost_offers[label],
            )
            for label, route in sorted(remap.routes.items())
            if route.rest is None
        ),
        added=tuple(
            Fresh(
                label,
                tuple(sorted(follows[label])),
                None if offers is None else new_offers[label],
            )
            for label in added
        ),
        unseen=tuple(
            Unseen(category, subcategory)
            for category, subcategory, sources in told
            if offers is not None
            and not any(offers.get((source, subcategory)) for source in sources)
        ),
        retrain=_retraining(added, gone, changed, follows, divided),
        reclassify=tuple(_stale(after, remap, follows, production)),
    )


def _retraining(
    added: list[str],
    gone: list[str],
    changed: list[str],
    follows: Mapping[str, set[str]],
    divided: set[str],
) -> Retraining:
    # Labels that the old model's outputs say nothing about, or not enough.
    untold = [label for label in follows if not follows[label] or follows[label] & divided]
    needs: Literal["none", "outputs", "head", "all"]
    if not (added or gone or changed):
        needs = "none"
    elif not untold:
        needs = "outputs"
    else:
        needs = "head" if len(untold) <= HEAD_SHARE * len(follows) else "all"
    return Retraining(needs, tuple(added), tuple(gone), tuple(changed))


def _stale(
    after: Taxonomy,
    remap: Remap,
    follows: Mapping[str, set[str]],
    production: Production | None,
) -> Iterator[Stale]:
    def stored(label: str) -> int | None:
        return None if production is None else production.get(label, 0)

    settled = set()
    for label, route in sorted(remap.routes.items()):
        if route.rest is None:
            yield Stale(label, "classify", None, stored(label))
        elif route.rest != label:
            yield Stale(label, "rename", route.rest, stored(label))
        else:
            settled.add(label)
    known = after.by_id()
    beneath: dict[str | None, list[str]] = {}
    for label in sorted(settled):
        for parent in (*above(known, label), None):
            beneath.setdefault(parent, []).append(label)
    for label, sources in sorted(follows.items()):
        if not sources:
            places = (*above(known, label), None)
            near: Iterable[str] = next((beneath[at] for at in places if at in beneath), ())
            yield from (Stale(other, "check", label, stored(other)) for other in near)


def lines(report: Report) -> Iterator[str]:
    """A report as people read it."""
    retrain = report.retrain
    yield (
        f"edition {report.base} -> {report.version}: {report.labels:,} labels,"
        f" {len(retrain.added)} new, {len(retrain.gone)} gone, {len(retrain.changed)} changed"
    )
    yield from _lines("to label", [*_lost(report), *_fresh(report)])
    yield f"to retrain: {_NEEDS[retrain.needs]}"
    yield from _lines("to reclassify", _reclassify(report))


_NEEDS: Final = {
    "none": "nothing, the labels are the same; names and parents come with the next model",
    "outputs": "at the next occasion; until then the old model's probabilities of merged labels"
    " add up, and those of retired ones are left out",
    "head": "a new head on the old encoder is worth a try; the evaluation decides",
    "all": f"all of it: more than {HEAD_SHARE:.0%} of the labels are new or divided",
}


def _lines(what: str, items: Sequence[str]) -> Iterator[str]:
    yield f"{what}:" if items else f"{what}: nothing"
    yield from (f"  {item}" for item in items)


def _lost(report: Report) -> Iterator[str]:
    for lost in report.label_lost:
        offers = "" if lost.offers is None else f" ({lost.offers:,})"
        kept = ", ".join(f"{sub!r} to {label}" for sub, label in lost.kept.items())
        yield f"{lost.category}: offers without a label{offers}" + (f", but {kept}" if kept else "")
    for unseen in report.unseen:
        yield f"{unseen.category}: no offer has the subcategory {unseen.subcategory!r}: misspelt?"


def _fresh(report: Report) -> Iterator[str]:
    for fresh in report.added:
        if not fresh.follows:
            yield f"{fresh.category}: new, without an example"
        elif fresh.offers == 0:
            yield f"{fresh.category}: new, and no labelled offer came from {_some(fresh.follows)}"


def _reclassify(report: Report) -> list[str]:
    items = []
    near: dict[str | None, list[Stale]] = {}
    for stale in report.reclassify:
        stored = "" if stale.offers is None else f" ({stale.offers:,} stored)"
        match stale.how:
            case "rename":
                items.append(f"{stale.category}{stored}: all become {stale.to}, without a model")
            case "classify":
                items.append(f"{stale.category}{stored}: by the new model")
            case "check":
                near.setdefault(stale.to, []).append(stale)
    for label, others in near.items():
        counts = [stale.offers for stale in others if stale.offers is not None]
        stored = f" ({sum(counts):,} stored)" if counts else ""
        names = _some([stale.category for stale in others])
        items.append(f"{names}{stored}: when there is time, {label} may draw some away")
    return items


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
