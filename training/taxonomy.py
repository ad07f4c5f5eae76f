"""The taxonomy: categories in editions, and the way of every label from an older edition to it.

taxonomy.json holds one edition:

    version       "7-3fa9c1d2": the edition's number and a hash of all that follows
    categories    [{id, names, parent, status, successor}], sorted by id
    history       a step for each edition before it: what became of that edition's labels

An id is for ever: a retired category stays in the file, and its id never means anything else. The
labels, which are what offers are put into and what a model answers, are the active categories
without active children. A category with children is a way to get to them and holds no offers.

A file without a version and a history is a first edition, as another system may export it.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from classifier.artifact import Label
from classifier.sample import LANGUAGES
from classifier.whole_file import appearing
from training.stage import StageError

ID_CHARACTERS: Final = 200
TEXT_CHARACTERS: Final = 200  # of a name or a subcategory

# Control characters, halves of surrogate pairs, ends of lines and of paragraphs.
_NOT_ON_A_LINE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


class TaxonomyError(StageError):
    """A taxonomy, or a change of it, contradicts itself. The message is one line."""


class Category(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One category of an edition, active or retired."""

    id: str
    names: dict[str, str]  # language -> name, for each of LANGUAGES
    parent: str | None  # a category's id; None at the top
    status: Literal["active", "retired"] = "active"
    successor: str | None = None  # of a retired one: the category that it was merged into

    @property
    def active(self) -> bool:
        return self.status == "active"


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What becomes of the offers of a label: those of one subcategory, or (None) all the others."""

    label: str
    subcategory: str | None
    new_label: str | None  # None: they lose their label


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an edition did to the labels of the one before it; labels not in `rows` stayed."""

    base: str  # version of the edition before
    added: tuple[str, ...]  # labels that it had not
    rows: tuple[Row, ...]


class Taxonomy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One edition: consistent, in canonical order. Made by `first`, `load`, `from_sample`, `apply`.

    `history[0].base` is the first edition's version, `history[-1].base` that of the one before.
    """

    version: str
    categories: tuple[Category, ...]
    history: tuple[Step, ...] = ()

    def by_id(self) -> dict[str, Category]:
        return {category.id: category for category in self.categories}

    def versions(self) -> list[str]:
        """Of every edition, from the first to this one."""
        return [*(step.base for step in self.history), self.version]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    categories: tuple[Category, ...]
    version: str | None = None
    history: tuple[Step, ...] = ()


class Route(msgspec.Struct, frozen=True):
    """Where the offers of one label go."""

    rest: str | None  # those whose subcategory is none of the following, or not known
    by_subcategory: dict[str, str | None] = {}

    def __call__(self, subcategory: str | None) -> str | None:
        if subcategory is None:
            return self.rest
        return self.by_subcategory.get(subcategory, self.rest)


@dataclass(frozen=True)
class Remap:
    """The way of every label of one edition (`base`) to the labels of a later one (`version`)."""

    base: str
    version: str
    routes: Mapping[str, Route]  # for every label of `base`

    def __call__(self, label: str | None, subcategory: str | None = None) -> str | None:
        """The label that an offer has in `version`; None when it has none, or had none in `base`.

        The subcategory is the lake's own word for a kind of product, and stays with the offer.
        """
        if label is None or (route := self.routes.get(label)) is None:
            return None
        return route(subcategory)

    def then(self, later: Remap) -> Remap:
        """The same as this remap and, after it, `later`.

        Raises TaxonomyError unless `later` starts where this one ends.
        """
        if later.base != self.version:
            raise TaxonomyError(
                f"labels of edition {self.version} cannot be remapped from {later.base}"
            )
        routes = {}
        for label, route in self.routes.items():
            rest = later(route.rest)
            # What tells a subcategory apart may be this remap, or what `later` does to any of the
            # labels that this one gives.
            told = set(route.by_subcategory)
            for middle in (route.rest, *route.by_subcategory.values()):
                if middle is not None and middle in later.routes:
                    told |= later.routes[middle].by_subcategory.keys()
            by = {subcategory: later(route(subcategory), subcategory) for subcategory in told}
            routes[label] = _route(rest, by)
        return Remap(self.base, later.version, routes)

    def rows(self) -> list[Row]:
        """All of it as a table, for a join: (label, subcategory) first, else (label, None).

        A label that has no row is none of `base`. Sorted, the rest of a label before the told.
        """
        return [
            row
            for label, route in sorted(self.routes.items())
            for row in (
                Row(label, None, route.rest),
                *(Row(label, *item) for item in sorted(route.by_subcategory.items())),
            )
        ]

    @classmethod
    def from_rows(cls, base: str, version: str, rows: Iterable[Row]) -> Remap:
        """The remap whose `rows()` these are, in any order.

        Raises TaxonomyError where a row stands twice or a label has no row for the rest.
        """
        rest: dict[str, str | None] = {}
        told: dict[str, dict[str, str | None]] = {}
        for row in rows:
            if row.subcategory is None:
                twice = row.label in rest
                rest[row.label] = row.new_label
            else:
                by = told.setdefault(row.label, {})
                twice = row.subcategory in by
                by[row.subcategory] = row.new_label
            if twice:
                raise TaxonomyError(f"two rows for label {row.label!r}, {row.subcategory!r}")
        if lost := told.keys() - rest.keys():
            raise TaxonomyError(f"label {min(lost)!r} has no row for the rest of its offers")
        routes = {label: _route(new, told.get(label, {})) for label, new in rest.items()}
        return cls(base, version, routes)


def _route(rest: str | None, by_subcategory: Mapping[str, str | None]) -> Route:
    """A route without what needs no telling, so that equal remaps compare equal."""
    return Route(rest, {told: new for told, new in by_subcategory.items() if new != rest})


def first(categories: Iterable[Category]) -> Taxonomy:
    """The first edition. Raises TaxonomyError when the categories contradict each other."""
    return edition(categories, ())


def edition(categories: Iterable[Category], history: tuple[Step, ...]) -> Taxonomy:
    """The edition after `history`. Raises TaxonomyError when it contradicts itself."""
    ordered = tuple(sorted(categories, key=lambda category: category.id))
    _check(ordered)
    taxonomy = Taxonomy(_version(ordered, history), ordered, history)
    _check_history(taxonomy)
    return taxonomy


def from_sample() -> Taxonomy:
    """The sample catalogue's taxonomy."""
    from classifier import sample

    return first(
        Category(category.id, category.names, category.parents[0] if category.parents else None)
        for category in sample.categories().values()
    )


def load(path: Path) -> Taxonomy:
    """Reads taxonomy.json. Raises TaxonomyError when it is none, or was changed by hand."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        taxonomy = edition(file.categories, file.history)
    except OSError as error:
        raise TaxonomyError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise TaxonomyError(f"{path}: is no taxonomy: {error}") from error
    except TaxonomyError as error:
        raise TaxonomyError(f"{path}: {error}") from None
    if file.version is None and file.history:
        raise TaxonomyError(f"{path}: has a history and no version")
    if file.version not in (None, taxonomy.version):
        raise TaxonomyError(
            f"{path}: its version is {file.version}, its content's {taxonomy.version}: it was"
            " changed by hand, and labels would get lost; undo that and write a change set"
        )
    return taxonomy


def save(taxonomy: Taxonomy, path: Path) -> None:
    """Writes taxonomy.json, a category a line, whole or not at all. Raises FileError."""
    lines = [f'"version": {_json(taxonomy.version)}']
    for name, items in (("categories", taxonomy.categories), ("history", taxonomy.history)):
        rows = ",\n".join(_json(item) for item in items)
        lines.append(f'"{name}": [\n{rows}\n]' if rows else f'"{name}": []')
    with appearing(path) as file:
        file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def label_ids(taxonomy: Taxonomy) -> list[str]:
    """The ids of the labels, sorted: the order of a model's logits."""
    inner = {category.parent for category in taxonomy.categories if category.active}
    return [
        category.id
        for category in taxonomy.categories
        if category.active and category.id not in inner
    ]


def labels(taxonomy: Taxonomy) -> tuple[Label, ...]:
    """The labels as an artefact has them, sorted by id."""
    known = taxonomy.by_id()
    return tuple(
        Label(label, known[label].names, tuple(above(known, label)))
        for label in label_ids(taxonomy)
    )


def above(known: Mapping[str, Category], category_id: str) -> Iterator[str]:
    """The ids above a category, nearest first."""
    parent = known[category_id].parent
    while parent is not None:
        yield parent
        parent = known[parent].parent


def outline(taxonomy: Taxonomy, language: str = "en") -> Iterator[str]:
    """The edition as people read it: what it holds, and the active categories as a tree."""
    active = [category for category in taxonomy.categories if category.active]
    beneath: dict[str | None, list[Category]] = {}
    for category in active:
        beneath.setdefault(category.parent, []).append(category)
    yield (
        f"edition {taxonomy.version}: {len(active):,} active categories,"
        f" {len(label_ids(taxonomy)):,} of them labels,"
        f" {len(taxonomy.categories) - len(active):,} retired"
    )
    if taxonomy.history:
        yield "editions before: " + ", ".join(taxonomy.versions()[:-1])
    waiting = [(0, category) for category in reversed(beneath[None])]
    while waiting:
        depth, category = waiting.pop()
        yield f"{'  ' * depth}{category.id}: {category.names[language]}"
        waiting += ((depth + 1, child) for child in reversed(beneath.get(category.id, [])))


def remap_from(taxonomy: Taxonomy, version: str) -> Remap:
    """The way of the labels of an earlier edition, or of this one, to this one.

    Raises TaxonomyError when the taxonomy never was at that version.
    """
    versions = taxonomy.versions()
    if version not in versions:
        raise TaxonomyError(
            f"edition {version} is none of those that led to {taxonomy.version}: "
            + ", ".join(versions)
        )
    now = label_ids(taxonomy)
    whole = Remap(taxonomy.version, taxonomy.version, {label: Route(label) for label in now})
    # Backwards, because the labels of an edition follow from those of the next.
    for step in reversed(taxonomy.history[versions.index(version) :]):
        stayed = whole.routes.keys() - set(step.added) - {row.label for row in step.rows}
        rows = [*step.rows, *(Row(label, None, label) for label in stayed)]
        whole = Remap.from_rows(step.base, whole.base, rows).then(whole)
    return whole


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _version(categories: tuple[Category, ...], history: tuple[Step, ...]) -> str:
    content = msgspec.json.encode([categories, history], order="sorted")
    return f"{len(history) + 1}-{hashlib.sha256(content).hexdigest()[:8]}"


def _check(categories: tuple[Category, ...]) -> None:
    """Raises TaxonomyError unless the categories, sorted by id, make a taxonomy."""
    known: dict[str, Category] = {}
    for category in categories:
        check_category(category)
        if category.id in known:
            raise TaxonomyError(f"category {category.id!r} stands there twice")
        known[category.id] = category
    for category in categories:
        if category.parent is not None:
            if (parent := known.get(category.parent)) is None:
                raise TaxonomyError(
                    f"category {category.id!r} has the parent {category.parent!r}, which is unknown"
                )
            if category.active and not parent.active:
                raise TaxonomyError(
                    f"category {category.id!r} is active and its parent {parent.id!r} retired"
                )
        if category.successor is not None:
            if category.active:
                raise TaxonomyError(f"category {category.id!r} is active and has a successor")
            if category.successor not in known:
                raise TaxonomyError(
                    f"category {category.id!r} has the successor {category.successor!r}, which is"
                    " unknown"
                )
    _check_cycles({category.id: category.parent for category in categories}, "parents")
    _check_cycles({category.id: category.successor for category in categories}, "successors")
    if not any(category.active for category in categories):
        raise TaxonomyError("no category is active")


def _check_cycles(next_of: Mapping[str, str | None], what: str) -> None:
    fine: set[str] = set()
    for start in next_of:
        path: dict[str, None] = {}
        place: str | None = start
        while place is not None and place not in fine:
            if place in path:
                raise TaxonomyError(f"the {what} of category {place!r} lead back to itself")
            path[place] = None
            place = next_of[place]
        fine.update(path)


def _check_history(taxonomy: Taxonomy) -> None:
    """Raises TaxonomyError unless each step fits the labels of the edition that it leads to."""
    versions = taxonomy.versions()
    if len(set(versions)) < len(versions):
        raise TaxonomyError("an edition stands in the history twice")
    after = set(label_ids(taxonomy))
    for step in reversed(taxonomy.history):
        told = {row.label for row in step.rows}
        problem = None
        if unknown := set(step.added) - after:
            problem = f"adds {min(unknown)!r}, which is no label"
        elif unknown := {row.new_label for row in step.rows if row.new_label} - after:
            problem = f"gives {min(unknown)!r}, which is no label"
        elif both := told & set(step.added):
            problem = f"adds {min(both)!r}, which was there before"
        if problem:
            raise TaxonomyError(f"the step after edition {step.base} {problem}")
        Remap.from_rows(step.base, "", step.rows)
        after = (after - set(step.added)) | told


def check_category(category: Category) -> None:
    """Raises TaxonomyError unless it has an id and names that can be used.

    An id is printable and without blanks; a name there is for every language and no other.
    """
    plain = category.id.isprintable() and not any(map(str.isspace, category.id))
    if not (plain and 0 < len(category.id) <= ID_CHARACTERS):
        raise TaxonomyError(
            f"{category.id[:ID_CHARACTERS]!r} is no id: 1 to {ID_CHARACTERS} printable characters"
            " without blanks"
        )
    for language in LANGUAGES:
        if language not in category.names:
            raise TaxonomyError(f"category {category.id!r} has no name in {language!r}")
    if others := category.names.keys() - set(LANGUAGES):
        raise TaxonomyError(
            f"category {category.id!r} has a name in {min(others)!r}; the languages are "
            + ", ".join(LANGUAGES)
        )
    for language, name in category.names.items():
        check_text(name, f"name in {language!r} for category {category.id!r}")


def check_text(text: str, what: str) -> None:
    """Raises TaxonomyError unless it is one line that begins and ends with a visible character."""
    odd = any(unicodedata.category(letter) in _NOT_ON_A_LINE for letter in text)
    if odd or not text or text != text.strip() or len(text) > TEXT_CHARACTERS:
        raise TaxonomyError(
            f"{text[:TEXT_CHARACTERS]!r} is no {what}: 1 to {TEXT_CHARACTERS} characters on one"
            " line, without blanks around them"
        )
