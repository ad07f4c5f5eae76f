"""All that an offer of one category in one language is put together from, laid out in tables.

Every table is a tuple whose length is a power of two, so that a random integer picks from it with
one mask, and skewed choices are entries that stand in it more than once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

import msgspec

from classifier.sample.taxonomy import DATA, LANGUAGES, categories, taxonomy

Kind = Literal["model", "series", "work", "food"]
"""What tells products of a group apart: a model number, a series, a title, or a flavour."""

T = TypeVar("T")

Words = dict[str, tuple[str, ...]]
"""Words by language."""

SMALL, LARGE, SHARES = 16, 64, 4096

# A category's weight is 1 / (its rank + RANK_SHIFT): Zipf's law with Mandelbrot's shift, so that
# the most frequent category has about 6 % of the offers and the rarest a fortieth of that.
RANK_SHIFT = 3

# Hundredths of the offers in each language.
LANGUAGE_SHARES = {"de": 25, "en": 25, "fr": 20, "es": 15, "it": 15}


class Attribute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A property of a product: values and how they are written, or words."""

    values: tuple[str, ...] = ()
    forms: Words = {}
    words: Words = {}


class _AttributeUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    values: tuple[str, ...] = ()


class _Department(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    shelves: Words
    features: Words


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    kind: Kind
    nouns: Words
    brands: tuple[str, ...]


class _Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    nouns: Words
    attributes: tuple[_AttributeUse, ...]
    hosts: tuple[str, ...]
    rank: int


class _Products(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    departments: tuple[_Department, ...]
    groups: tuple[_Group, ...]
    leaves: tuple[_Leaf, ...]


class Phrases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What shops of one language write around a product; `{}` and `{b}` are places to fill."""

    promotions: tuple[str, ...]
    fits: tuple[str, ...]
    bundles: tuple[str, ...]
    told: tuple[str, ...]
    plain: tuple[str, ...]
    aside: tuple[str, ...]
    work_starts: tuple[str, ...]
    work_ends: tuple[str, ...]


class _Lexicon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attributes: dict[str, Attribute]
    brands: dict[str, tuple[str, ...]]
    authors: tuple[str, ...]
    languages: dict[str, Phrases]


class Shop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shop: what it sells, how it names its shelves, and what its feed leaves out."""

    id: str
    language: str
    departments: tuple[str, ...]  # empty: all
    separator: str
    depth: Literal["leaf", "group", "department", "promotion"]
    revisions: bool
    links: bool
    gtins: bool
    nulls: bool  # a missing field is null, not absent
    capitals: bool


class _Shops(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shops: tuple[Shop, ...]


@dataclass(frozen=True, slots=True)
class Kit:
    """The tables of one category in one language; see the module's head."""

    category: str
    language: str
    kind: Kind
    nouns: tuple[str, ...]
    sorts: tuple[int, ...]  # for each of the nouns its place among them, the commonest first
    foreign: tuple[str, ...]  # the same nouns in English
    generics: tuple[str, ...]  # nouns that the whole group shares
    brands: tuple[str, ...]
    series: tuple[str, ...]
    prefixes: tuple[str, ...]  # of model numbers
    attributes: tuple[tuple[str, ...], ...]  # one table a property, a power of two of them
    features: tuple[str, ...]
    fits: tuple[str, ...]  # "for ...": other products, which the offer is not
    hosts: tuple[str, ...]  # brands and series of those products; empty when it fits none
    bundles: tuple[str, ...]  # "incl. ...": the same
    others: tuple[str, ...]  # nouns of other categories
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    authors: tuple[str, ...]
    told: tuple[str, ...]
    plain: tuple[str, ...]
    aside: tuple[str, ...]
    promotions: tuple[str, ...]
    shelves: tuple[tuple[Shop, str], ...]  # the shops that sell it, and under which path
    mistaken: tuple[str, ...]  # categories it is taken for when a label is wrong


class Chance:
    """A sequence of choices that depends on its name alone: the catalogue's fixed facts.

    CRC-32 of name and counter, since `hash` differs from process to process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._drawn = 0

    def below(self, limit: int) -> int:
        self._drawn += 1
        # CRC-32 is linear, so that near names give related numbers; the product mixes them.
        mixed = zlib.crc32(f"{self._drawn}/{self._name}".encode()) * 0x9E3779B1
        return ((mixed >> 15) & 0xFFFFFFFF) % limit

    def one(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def some(self, options: Iterable[T], count: int) -> list[T]:
        """At most `count` of the options, in a new order."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]


def _zipf(options: Sequence[T], size: int) -> tuple[T, ...]:
    """A table in which the first option stands most often, the second half as often, and so on."""
    weights = [1 / (place + 1) for place in range(len(options))]
    total = sum(weights)
    table: list[T] = []
    reached = 0.0
    for option, weight in zip(options, weights, strict=True):
        reached += weight
        table.extend([option] * (round(size * reached / total) - len(table)))
    return tuple(table)


def _even(options: Sequence[T], size: int) -> tuple[T, ...]:
    return tuple(options[place % len(options)] for place in range(size))


_ONSETS = ("b br c cr d dr f fl g gr k kl l m n p pl qu r s st t tr v w x z").split()  # noqa: SIM905
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "io")
_CODAS = ("l", "n", "r", "s", "x", "m", "lto", "ndo", "rra", "sto", "vel", "nix", "ra")


@cache
def _series_names() -> tuple[str, ...]:
    chance = Chance("series")
    names: dict[str, None] = {}
    while len(names) < 500:
        name = chance.one(_ONSETS) + chance.one(_VOWELS)
        if chance.below(2):
            name += chance.one(_ONSETS) + chance.one(_VOWELS)
        names[(name + chance.one(_CODAS)).capitalize()] = None
    return tuple(names)


class Catalogue:
    """The files under data/, and the kits that are made of them."""

    def __init__(self) -> None:
        products = _read("products.json", _Products)
        self._lexicon = _read("words.json", _Lexicon)
        self._shops = _read("shops.json", _Shops).shops
        self._departments = {department.id: department for department in products.departments}
        self._groups = {group.id: group for group in products.groups}
        self._leaves = {leaf.id: leaf for leaf in products.leaves}
        self._parents = {leaf.id: leaf.parents for leaf in taxonomy()}
        self.kits = {
            language: _by_rank([(leaf.rank, self._kit(leaf, language)) for leaf in products.leaves])
            for language in LANGUAGES
        }
        """For each language SHARES kits, each as often as its category is frequent."""

    def _kit(self, leaf: _Leaf, language: str) -> Kit:
        group_id, department_id = self._parents[leaf.id]
        group = self._groups[group_id]
        department = self._departments[department_id]
        phrases = self._lexicon.languages[language]
        chance = Chance(f"kit/{leaf.id}/{language}")
        near = [other for other in self._leaves.values() if self._parents[other.id][0] == group_id]
        beside = [
            other
            for other in self._leaves.values()
            if self._parents[other.id][1] == department_id and other.id != leaf.id
        ]
        others = [noun for other in beside for noun in other.nouns[language]]
        others += [
            chance.one(other.nouns[language]) for other in chance.some(self._leaves.values(), 12)
        ]
        hosts = self._hosts(leaf, chance, language)
        fits = [chance.one(phrases.fits).format(host) for host in hosts]
        fits += [
            chance.one(phrases.fits).format(noun)
            for noun in (others if not hosts else others[:2])
            if chance.below(2)
        ]
        return Kit(
            category=leaf.id,
            language=language,
            kind=group.kind,
            nouns=_zipf(leaf.nouns[language], SMALL),
            sorts=_zipf(range(len(leaf.nouns[language])), SMALL),
            foreign=_zipf(leaf.nouns["en"], SMALL),
            generics=_even(group.nouns[language], SMALL),
            brands=self.brands(leaf.id),
            series=self.series(leaf.id),
            prefixes=self._prefixes(leaf.id),
            attributes=(
                *(self._attribute(use, chance, language) for use in leaf.attributes),
                _even(department.features[language], LARGE),
            ),
            features=_even(department.features[language], SMALL),
            fits=_even(chance.some(fits, LARGE) or [""], LARGE),
            hosts=_even(hosts, LARGE) if hosts else (),
            bundles=_even(
                [chance.one(phrases.bundles).format(noun) for noun in chance.some(others, 48)],
                LARGE,
            ),
            others=_even(chance.some(others, LARGE), LARGE),
            starts=_even(chance.some(phrases.work_starts, SMALL), SMALL),
            ends=_even(chance.some(phrases.work_ends, SMALL), SMALL),
            authors=_zipf(chance.some(self._lexicon.authors, 8), SMALL),
            told=_even(phrases.told, LARGE),
            plain=_even(phrases.plain, LARGE),
            aside=_even(phrases.aside, LARGE),
            promotions=_even(phrases.promotions, SMALL),
            shelves=_even(self._shelves(leaf, language), LARGE),
            mistaken=_even(
                [other.id for other in (near if len(near) > 1 else beside) if other.id != leaf.id],
                SMALL,
            ),
        )

    def brands(self, leaf: str) -> tuple[str, ...]:
        """A table of the brands that make it; a group's brands make all of the group's goods."""
        group = self._groups[self._parents[leaf][0]]
        names = [name for pool in group.brands for name in self._lexicon.brands[pool]]
        return _zipf(Chance(f"brands/{leaf}").some(dict.fromkeys(names), 10), LARGE)

    def series(self, leaf: str) -> tuple[str, ...]:
        """A table of series: half its own, the rest those of its group and its department."""
        names = _series_names()
        group, department = self._parents[leaf]
        own = Chance(f"series/{leaf}").some(names, 14)
        shared = Chance(f"series/{group}").some(names, 8)
        broad = Chance(f"series/{department}").some(names, 6)
        return _zipf([name for trio in _interleave(own, shared, broad) for name in trio], LARGE)

    def _prefixes(self, leaf: str) -> tuple[str, ...]:
        chance = Chance(f"prefixes/{leaf}")
        letters = "ABCDEFGHKLMNPRSTVWXZ"
        return tuple(
            "".join(chance.one(letters) for _ in range(1 + chance.below(3))) for _ in range(8)
        )

    def _attribute(self, use: _AttributeUse, chance: Chance, language: str) -> tuple[str, ...]:
        attribute = self._lexicon.attributes[use.name]
        if attribute.words:
            return _even(attribute.words[language], LARGE)
        written = [
            form.format(value)
            for value in use.values or attribute.values
            for form in attribute.forms[language]
        ]
        return _even(chance.some(written, LARGE), LARGE)

    def _hosts(self, leaf: _Leaf, chance: Chance, language: str) -> list[str]:
        named = []
        for place in range(LARGE if leaf.hosts else 0):
            host = leaf.hosts[place % len(leaf.hosts)]
            name = chance.one(self.brands(host))
            if chance.below(4):
                name += f" {chance.one(self.series(host))}"
            if chance.below(2):
                name += f" {2 + chance.below(14)}"
            if chance.below(3) == 0:
                name = f"{chance.one(self._leaves[host].nouns[language])} {name}"
            named.append(name)
        return named

    def _shelves(self, leaf: _Leaf, language: str) -> list[tuple[Shop, str]]:
        department = self._parents[leaf.id][1]
        return [
            (shop, self._path(shop, leaf.id))
            for shop in self._shops
            if shop.language == language
            and (not shop.departments or department in shop.departments)
        ]

    def _path(self, shop: Shop, leaf: str) -> str:
        """Where the shop files the category: in its own words, as deep as it files anything, and
        now and then where nobody else would."""
        chance = Chance(f"shelf/{shop.id}/{leaf}")
        group, department = self._parents[leaf]
        lot = chance.below(100)
        if lot < MISFILED + MISFILED_FAR:
            everywhere = lot < MISFILED_FAR
            leaf = chance.one(
                [
                    other
                    for other, above in self._parents.items()
                    if everywhere or department in above
                ]
            )
            group, department = self._parents[leaf]
        own = Chance(f"words/{shop.id}/{department}")
        steps = [own.one(self._departments[department].shelves[shop.language])]
        own = Chance(f"words/{shop.id}/{group}")
        if shop.depth in ("group", "leaf"):
            words = (*self._groups[group].nouns[shop.language], self._group_name(group, shop))
            steps.append(own.one(words))
        if shop.depth == "leaf":
            steps.append(chance.one(self._leaves[leaf].nouns[shop.language]))
        if shop.depth == "promotion":
            promotions = self._lexicon.languages[shop.language].promotions
            steps = [chance.one(promotions), *steps][: 1 + chance.below(2)]
        path = shop.separator.join(steps)
        return path.upper() if shop.capitals else path

    def _group_name(self, group: str, shop: Shop) -> str:
        return categories()[group].names[shop.language]


MISFILED, MISFILED_FAR = 15, 3
"""Of a hundred categories, how many a shop files under another one's name: one of the same
department, and any."""


def _interleave(*lists: list[str]) -> list[tuple[str, ...]]:
    longest = max(map(len, lists))
    return [
        tuple(names[place] for names in lists if place < len(names)) for place in range(longest)
    ]


def _by_rank(kits: list[tuple[int, Kit]]) -> tuple[Kit, ...]:
    weights = [1 / (rank + RANK_SHIFT) for rank, _ in kits]
    total, reached = sum(weights), 0.0
    table: list[Kit] = []
    for weight, (_, kit) in zip(weights, kits, strict=True):
        reached += weight
        table.extend([kit] * (round(SHARES * reached / total) - len(table)))
    return tuple(table)


def _read(name: str, kind: type[T]) -> T:
    return msgspec.json.decode((DATA / name).read_bytes(), type=kind)


@cache
def catalogue() -> Catalogue:
    """The catalogue, read and laid out once a process; takes up to a second."""
    return Catalogue()
