"""Changes of the taxonomy: what the content team writes, applied.

A change set is a YAML or JSON file made for one edition:

    taxonomy: 7-3fa9c1d2
    changes:
      - {change: new, id: earbuds, parent: audio, names: {de: ..., en: ..., fr: ..., ...}}
      - {change: rename, id: radios, names: {en: Radios}}
      - {change: move, id: radios, parent: audio}
      - {change: retire, id: fax-machines}
      - {change: merge, id: mp3-players, into: portable-audio}
      - {change: split, id: headphones, into: {earbuds: [in-ear], headsets: [gaming, office]}}

Changes apply one after the other, each to what those before it left: editions made one by one and
one made of the same changes at once have the same categories and the same labels. All of a set's
changes apply or none.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from classifier.whole_file import appearing
from compile import strict_yaml
from training import sampling
from training.consequences import Offers, Production, Report, consequences, lines
from training.production import read as read_production
from training.stage import StageError, write_json
from training.taxonomy import (
    Category,
    Remap,
    Route,
    Step,
    Taxonomy,
    TaxonomyError,
    above,
    check_category,
    check_text,
    edition,
    label_ids,
    load,
    save,
)

if TYPE_CHECKING:
    from training.engines import SqlEngine
    from training.lake import Lake


class _Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="change"):
    id: str


class New(_Change, frozen=True, tag="new"):
    """A category that was not there."""

    names: dict[str, str]
    parent: str | None


class Rename(_Change, frozen=True, tag="rename"):
    """Other names, in the languages given."""

    names: dict[str, str]


class Move(_Change, frozen=True, tag="move"):
    """Another parent; None is the top."""

    parent: str | None


class Retire(_Change, frozen=True, tag="retire"):
    """The category goes, and its offers lose their label."""


class Merge(_Change, frozen=True, tag="merge"):
    """The category goes, and its offers follow into another."""

    into: str


class Split(_Change, frozen=True, tag="split"):
    """Offers of the subcategories named go into other categories; the rest lose their label.

    The category is retired, unless it is among those that take offers or has children by now.
    """

    into: dict[str, tuple[str, ...]]  # category -> subcategories


Change = New | Rename | Move | Retire | Merge | Split


class ChangeSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes made for one edition."""

    taxonomy: str  # its version
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Applied:
    """What applying a change set gives."""

    taxonomy: Taxonomy  # the next edition
    remap: Remap  # from the edition before
    report: Report


def load_changes(path: Path) -> ChangeSet:
    """Reads a change set. Raises TaxonomyError."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = (
            json.loads(text, object_pairs_hook=_no_key_twice)
            if path.suffix == ".json"
            else strict_yaml.load(text)
        )
        return msgspec.convert(raw, ChangeSet)
    except OSError as error:
        raise TaxonomyError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise TaxonomyError(f"{path}: {_readable(str(error))}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TaxonomyError(f"{path}: is no change set: {' '.join(str(error).split())}") from error


def apply(
    taxonomy: Taxonomy,
    changes: ChangeSet,
    offers: Offers | None = None,
    production: Production | None = None,
) -> Applied:
    """The next edition, the way of the labels to it, and what must be done.

    Raises TaxonomyError when the set was made for another edition, when a change contradicts what
    the changes before it left, or when in the end an offer would have no label to be put into.
    """
    if changes.taxonomy != taxonomy.version:
        raise TaxonomyError(
            f"made for edition {changes.taxonomy}, but the taxonomy is at {taxonomy.version}"
        )
    if not changes.changes:
        raise TaxonomyError("holds no changes")
    draft = _Draft(taxonomy)
    for number, change in enumerate(changes.changes, start=1):
        try:
            draft.apply(change)
        except TaxonomyError as error:
            kind = type(change).__name__.lower()
            raise TaxonomyError(f"change {number} ({kind} {change.id!r}): {error}") from None
    after, remap = draft.finish()
    return Applied(
        after, remap, consequences(taxonomy, after, remap, draft.told, offers, production)
    )


def apply_files(
    taxonomy: Path,
    changes: Path,
    out: Path,
    say: Callable[[str], None],
    lake: str | None = None,
    production: Path | None = None,
) -> Applied:
    """Applies a change set's file to a taxonomy's, and writes the next edition to `out`.

    `out` may be the taxonomy's own file. Beside it stands the report, for out.json as
    out.report.json; what it says for people goes to `say`, a line at a time. It counts the offers
    of `lake` (labelled by the edition that is changed) and of `production` (a file of counts)
    where these are given. With a lake, out.to-label.jsonl.gz has its offers that lose their label.
    Raises StageError, FileError.
    """
    before = load(taxonomy)
    loaded = load_changes(changes)
    to_label = out.with_suffix(".to-label.jsonl.gz")
    with contextlib.ExitStack() as stack:
        try:
            apply(before, loaded)  # what is refused is refused before a lake is read
            engine = None if lake is None else stack.enter_context(_reading(lake, to_label))
            offers = None if engine is None else labelled_offers(engine)
            stored = None if production is None else read_production(production, before).counts
            applied = apply(before, loaded, offers, stored)
        except TaxonomyError as error:
            raise TaxonomyError(f"{changes}: {error}") from None
        known = set(label_ids(before))
        counts = (offers or {}).items()
        if other := sum(count for (label, _), count in counts if label not in known):
            say(f"{lake}: offers with labels that edition {before.version} has not: {other:,}")
        lost = None if engine is None else write_lost(engine, applied.remap, to_label)
    # The edition comes last: where it is, its report is, too.
    write_json(out.with_suffix(".report.json"), applied.report)
    save(applied.taxonomy, out)
    for line in lines(applied.report):
        say(line)
    if lost is not None:
        say(f"{to_label}: {lost:,} offers to label")
    return applied


# Each offer once, in the row that the data-set stage takes.
_NEWEST = """
WITH placed AS (
  SELECT
    l.offer_id, l.title, l.label, l.subcategory,
    ROW_NUMBER() OVER (
      PARTITION BY l.offer_id ORDER BY COALESCE(l.revision, -1) DESC, l.row_id
    ) AS place
  FROM lake AS l JOIN repeated AS r ON r.offer_id = l.offer_id
)
SELECT l.offer_id, l.title, l.label, l.subcategory
FROM lake AS l LEFT JOIN repeated AS r ON r.offer_id = l.offer_id
WHERE r.offer_id IS NULL AND l.offer_id IS NOT NULL
UNION ALL
SELECT offer_id, title, label, subcategory FROM placed WHERE place = 1
"""
_BY_LABEL = """
SELECT label, subcategory, COUNT(*) FROM newest WHERE label IS NOT NULL GROUP BY label, subcategory
"""
_LOST = """
SELECT n.offer_id, n.label, n.subcategory, n.title
FROM newest AS n
LEFT JOIN routes AS told ON told.label = n.label AND told.subcategory = n.subcategory
JOIN routes AS rest ON rest.label = n.label AND rest.subcategory IS NULL
WHERE CASE WHEN told.label IS NULL THEN rest.new_label ELSE told.new_label END IS NULL
ORDER BY n.label, n.subcategory, n.offer_id
"""
_LOST_FIELDS = ("offer_id", "label", "subcategory", "title")


@contextlib.contextmanager
def _reading(where: str, beside: Path) -> Iterator[SqlEngine]:
    """The lake's offers as the table `newest`, where it would not hold the file `beside` later."""
    from classifier import cpu
    from training import engines
    from training.lake import open_lake

    lake: Lake = open_lake(where)
    if lake.would_hold(beside):
        raise StageError(f"{beside}: would be one of the lake's files; choose another --out")
    with tempfile.TemporaryDirectory(prefix="taxonomy-") as folder:
        engine = engines.start("duckdb", lake, Path(folder), "1GB", cpu.quota())
        with contextlib.closing(engine):
            engine.show(sampling.VIEW, sampling.statement(sampling.VIEW, {}, engine.dialect))
            engine.make("repeated", sampling.statement("repeated", {}, engine.dialect))
            engine.show("newest", _NEWEST)
            yield engine


def labelled_offers(engine: SqlEngine) -> dict[tuple[str, str | None], int]:
    """The labelled offers of a lake by label and subcategory. Raises StageError."""
    counts = {(row[0], row[1]): row[2] for row in engine.rows(_BY_LABEL)}
    return msgspec.convert(counts, dict[tuple[str, str | None], int])


def write_lost(engine: SqlEngine, remap: Remap, path: Path) -> int:
    """Writes the offers whose label leads to none, a line each, and gives how many they are.

    They go through one by one, in the order of label, subcategory and id. Raises StageError,
    FileError.
    """
    import pyarrow as pa

    rows = remap.rows()
    columns = {
        name: pa.array([getattr(row, name) for row in rows], pa.string())
        for name in ("label", "subcategory", "new_label")
    }
    engine.put("routes", pa.table(columns))
    encoder = msgspec.json.Encoder()
    count = 0
    # Without a time and a name in it, the same offers are the same bytes.
    with appearing(path) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        for batch in engine.batches(_LOST, _LOST_FIELDS):
            for offer in batch.to_pylist():
                packed.write(encoder.encode(offer) + b"\n")
            count += batch.num_rows
    return count


@dataclass
class _Draft:
    """An edition in the making: the categories, and where each label of the base leads so far."""

    base: Taxonomy
    known: dict[str, Category] = field(init=False)
    routes: dict[str, Route] = field(init=False)
    inner: set[str] = field(init=False)  # categories of the base that are no labels
    filled: set[str] = field(init=False, default_factory=set)  # that merges and splits lead to
    # Of each split: the category, a subcategory, and the labels of the base that lead there.
    told: list[tuple[str, str, list[str]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.known = self.base.by_id()
        self.routes = {label: Route(label) for label in label_ids(self.base)}
        self.inner = self.known.keys() - self.routes.keys()

    def apply(self, change: Change) -> None:
        match change:
            case New():
                if change.id in self.known:
                    raise TaxonomyError("the id is taken, and an id never gets another meaning")
                self._parent(change.parent)
                self._put(Category(change.id, change.names, change.parent))
            case Rename():
                old = self._active(change.id)
                if not change.names:
                    raise TaxonomyError("gives no name")
                self._put(msgspec.structs.replace(old, names={**old.names, **change.names}))
            case Move():
                old = self._active(change.id)
                self._parent(change.parent)
                if change.parent is not None and change.id in (
                    change.parent,
                    *above(self.known, change.parent),
                ):
                    raise TaxonomyError(f"{change.parent!r} is the category itself or under it")
                self._put(msgspec.structs.replace(old, parent=change.parent))
            case Retire():
                self._end(change.id, None)
                self._lead(change.id, Route(None))
            case Merge():
                self._active(change.into)
                if change.into == change.id:
                    raise TaxonomyError("merges the category into itself")
                self._end(change.id, change.into)
                self._lead(change.id, Route(change.into))
                self.filled.add(change.into)
            case Split():
                self._split(change)

    def _split(self, change: Split) -> None:
        self._active(change.id)
        if change.id in self.inner and change.id not in self.filled:
            raise TaxonomyError("it had children, so no offers are in it")
        leading = sorted(self._leading(change.id))
        by: dict[str, str | None] = {}
        for category, subcategories in change.into.items():
            self._active(category)
            if not subcategories:
                raise TaxonomyError(f"no subcategory goes into {category!r}")
            for subcategory in subcategories:
                check_text(subcategory, "subcategory")
                if subcategory in by:
                    raise TaxonomyError(f"subcategory {subcategory!r} goes two ways")
                by[subcategory] = category
                self.told.append((change.id, subcategory, leading))
        if not by:
            raise TaxonomyError("goes into nothing: retire it")
        if change.id not in change.into and not self._children(change.id):
            self._end(change.id, None)
        self._lead(change.id, Route(None, by))
        self.filled |= change.into.keys()

    def finish(self) -> tuple[Taxonomy, Remap]:
        """The edition and the remap to it, when every label leads to labels."""
        ways = {
            new: label
            for label, route in self.routes.items()
            for new in (route.rest, *route.by_subcategory.values())
            if new is not None
        }
        active = [category for category in self.known.values() if category.active]
        inner = {category.parent: category.id for category in active}
        for new in sorted(ways.keys() & inner.keys()):
            raise TaxonomyError(
                f"offers of {ways[new]!r} would be in {new!r}, which has children, such as"
                f" {inner[new]!r}, and only a category without any holds offers: split {new!r}, or"
                " give its children another parent"
            )
        now = {category.id for category in active} - inner.keys()
        before = self.inner | self.routes.keys()
        for category_id in sorted((now & before) - self.filled - ways.keys()):
            raise TaxonomyError(
                f"{category_id!r} would be left without children, and offers be put into it: retire"
                " it, or merge one of its children into it"
            )
        rows = Remap("", "", self.routes).rows()
        changed = {label for label, route in self.routes.items() if route != Route(label)}
        step = Step(
            self.base.version,
            tuple(sorted(now - self.routes.keys())),
            tuple(row for row in rows if row.label in changed),
        )
        after = edition(self.known.values(), (*self.base.history, step))
        return after, Remap(self.base.version, after.version, self.routes)

    def _put(self, category: Category) -> None:
        check_category(category)
        self.known[category.id] = category

    def _active(self, category_id: str) -> Category:
        if (category := self.known.get(category_id)) is None:
            raise TaxonomyError(f"category {category_id!r} is unknown")
        if not category.active:
            raise TaxonomyError(f"category {category_id!r} is retired")
        return category

    def _parent(self, category_id: str | None) -> None:
        if category_id is not None:
            self._active(category_id)

    def _children(self, category_id: str) -> list[str]:
        return [
            category.id
            for category in self.known.values()
            if category.active and category.parent == category_id
        ]

    def _end(self, category_id: str, successor: str | None) -> None:
        old = self._active(category_id)
        if children := self._children(category_id):
            raise TaxonomyError(
                f"it has active children, such as {min(children)!r}: move, merge or retire them"
                " before"
            )
        self._put(msgspec.structs.replace(old, status="retired", successor=successor))

    def _lead(self, category_id: str, route: Route) -> None:
        """What led to a category so far goes that way."""
        leading = self._leading(category_id)
        ends = {
            end
            for old in leading.values()
            for end in (old.rest, *old.by_subcategory.values())
            if end
        }
        way = {end: Route(end) for end in ends} | {category_id: route}
        self.routes |= Remap("", "", leading).then(Remap("", "", way)).routes

    def _leading(self, category_id: str) -> dict[str, Route]:
        """The labels of the base whose offers are in a category so far, or some of them."""
        return {
            label: route
            for label, route in self.routes.items()
            if category_id in (route.rest, *route.by_subcategory.values())
        }


_PLACE = re.compile(r"\$\.changes\[(\d+)\]")
_NOT_TEXT = re.compile(r"Expected `str(?: \| null)?`, got `(?:int|float|bool|date|datetime)`")


def _readable(message: str) -> str:
    """A decoder's message for people: changes counted from 1, and what helps against numbers."""
    message = _PLACE.sub(lambda place: f"change {int(place[1]) + 1}", message)
    return f"{message}: put it in quotes" if _NOT_TEXT.search(message) else message


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} stands there twice")
    return made
