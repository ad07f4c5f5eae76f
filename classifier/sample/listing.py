"""One listing: an offer as a shop's feed has it, drawn from a kit and a row of random numbers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from classifier.sample import dirt, draws
from classifier.sample.kit import LANGUAGE_SHARES, SHARES, Kit, Shop, catalogue

Split = Literal["train", "test"]

# How often, in thousandths, an offer is hard to tell or hard to read. Tuned once, so that a linear
# SVM gets 0.87 (benchmarks/sample_difficulty.py), and then frozen: a test holds what comes out.
BARE = 255  # title with no noun: brand, series, number
GENERIC = 245  # title with the group's noun: "shoes", "cream", "accessory"
MISLEADING = 295  # title that names another product besides: "for ...", "incl. ..."
FOREIGN = 50  # noun in English, whatever the shop's language
STUFFED = 60  # title of all the words the shop could think of
NO_BRAND = 330
NO_PATH = 470
PROMOTED = 100  # path is a promotion's, not a shelf's
NO_DESCRIPTION = 440
TOLD = 205  # a description that names the product
ASIDE = 170  # a description that names other products
NO_TITLE = 6  # the description has it all
NO_LANGUAGE = 25
MISLABELLED = 10  # the truth itself is wrong

TYPO = 110
SHOUT = 70
LOWER = 40
ESCAPED = 70
ESCAPED_TWICE = 25
TAGGED = 110
BROKEN_CHARACTERS = 15
LOST_CHARACTERS = 5

_INITIAL = re.compile(r"\d+|(?<![^\W\d_])[^\W\d_]")
_KEY_PARTS = 12

_LANGUAGE_TABLE = tuple(
    language for language, share in LANGUAGE_SHARES.items() for _ in range(share)
)
_MARKS = ("NEU! ", "TOP ", "★ ", "*NEW* ", "[SALE] ", "2022 ", "✔ ", "🔥 ")


@dataclass(slots=True)
class Listing:
    """What a shop lists. `category` is the truth; the rest is what the feed holds.

    But for `product`, the same for every listing of one product in whatever words and language, and
    `sort`, which of its category's nouns the product is called by, 0 for the commonest: those are
    what a site knows that has matched its offers to products.
    """

    shop: Shop
    category: str
    language: str | None
    title: str | None
    description: str | None
    category_path: str | None
    brand: str | None
    cents: int
    gtin: int
    product: str
    sort: int


def side(title: str) -> Split:
    """Which split a product belongs to, by the clean title under which it is listed.

    Made of the first letters of the first words and of the numbers alone, which no typo, no shout,
    no markup and no mojibake changes: two titles that read the same are on the same side.
    """
    parts = _INITIAL.findall(title.lower())[:_KEY_PARTS]
    return "test" if zlib.crc32(" ".join(parts).encode()) & 1 else "train"


def listings(seed: int, split: Split, stream: int = 0) -> Iterator[Listing]:
    """Endless listings of products of one split."""
    kits = catalogue().kits
    for row in draws.rows(seed, stream):
        kit = kits[_LANGUAGE_TABLE[row[0] % 100]][row[1] % SHARES]
        brand = kit.brands[row[2] & 63]
        sort = kit.sorts[row[3] & 15]
        noun = kit.nouns[row[3] & 15]
        if row[4] % 1000 < FOREIGN:
            noun = kit.foreign[row[3] & 15]
        properties = kit.attributes
        first = properties[row[5] % len(properties)][row[6] & 63]
        second = properties[(row[5] + 1) % len(properties)][(row[6] >> 8) & 63]
        title = _title(kit, row, brand, noun, first, second)
        if side(title) != split:
            continue
        yield _listing(kit, row, title, brand, noun, sort, first, second)


def _model(kit: Kit, number: int) -> str:
    prefix = kit.prefixes[number & 7]
    digits = (number >> 8) % 9990 + 10
    match (number >> 3) & 3:
        case 0:
            return f"{prefix}{digits}"
        case 1:
            return f"{prefix}-{digits}"
        case 2:
            return f"{prefix} {digits % 1000}"
        case _:
            return f"{prefix}{digits % 100}{kit.prefixes[(number >> 5) & 7]}"


def _product(kit: Kit, row: list[int], brand: str, sort: int) -> str:
    """What a product is known by, made of what its title is made of."""
    match kit.kind:
        case "model":
            name = f"{brand}/{_model(kit, row[11])}"
        case "work":
            pick = row[11]
            name = f"{kit.language}/{pick & 15}/{pick >> 4 & 15}/{kit.authors[pick >> 8 & 15]}"
        case _:
            name = f"{brand}/{kit.series[row[9] & 63]}"
    return f"{kit.category}/{sort}/{name}"


def _title(kit: Kit, row: list[int], brand: str, noun: str, first: str, second: str) -> str:
    chance = row[7] % 1000
    bare = chance < BARE
    if BARE <= chance < BARE + GENERIC:
        noun = kit.generics[row[8] & 15]
    series = kit.series[row[9] & 63]
    form = row[10] & 7
    if kit.kind == "work":
        title = _work(kit, row, noun, first, bare, form)
    elif kit.kind == "food":
        title = _food(row, series, brand, noun, first, second, bare, form)
    else:
        if kit.kind == "model":
            name = f"{series} {_model(kit, row[11])}" if form & 1 else _model(kit, row[11])
        else:
            name = f"{series} {row[11] % 900 + 1}" if form == 7 else series
        if kit.hosts and row[12] % 100 < 60:
            name = kit.hosts[(row[12] >> 8) & 63] if form & 2 else f"{name} {kit.fits[form]}"
        title = _good(brand, noun, name, first, second, bare, form)
    misleading = row[13] % 1000
    if misleading < MISLEADING:
        pick = (row[13] >> 16) & 63
        if misleading & 1:
            title = f"{title} {kit.fits[pick]}"
        elif misleading & 2:
            title = f"{title} {kit.bundles[pick]}"
        else:
            title = (
                f"{kit.others[pick]} {title}" if misleading & 4 else f"{title}, {kit.others[pick]}"
            )
    if row[14] % 1000 < STUFFED:
        pick = row[15]
        title = (
            f"{title} {second} {kit.features[pick & 15]} {kit.nouns[pick >> 4 & 15]} "
            f"{kit.generics[pick >> 8 & 15]} {kit.bundles[pick >> 12 & 63]} "
            f"{kit.features[pick >> 18 & 15]} {kit.fits[pick >> 22 & 63]}"
        )
    mark = (row[14] >> 16) & 255
    return _MARKS[mark] + title if mark < len(_MARKS) else title


def _good(brand: str, noun: str, name: str, first: str, second: str, bare: bool, form: int) -> str:
    if bare:
        match form:
            case 0 | 1:
                return f"{brand} {name}"
            case 2 | 3:
                return f"{brand} {name}, {first}"
            case 4:
                return f"{name} {first}"
            case _:
                return f"{brand} {name} {first} {second}"
    match form:
        case 0:
            return f"{brand} {name} {noun} {first}"
        case 1:
            return f"{noun} {brand} {name}"
        case 2:
            return f"{brand} {noun} {name}, {first}, {second}"
        case 3:
            return f"{brand} - {noun} - {name} - {first}"
        case 4:
            return f"{noun} {name} {first}"
        case 5:
            return f"{brand} {name} {noun} ({second})"
        case 6:
            return f"{noun} {first} {brand}"
        case _:
            return f"{noun} {name} {first} / {second} {brand}"


def _food(
    row: list[int],
    series: str,
    brand: str,
    noun: str,
    first: str,
    second: str,
    bare: bool,
    form: int,
) -> str:
    if bare:
        return f"{brand} {series} {first}" if form & 1 else f"{brand} {series} {first}, {second}"
    match form:
        case 0 | 1:
            return f"{brand} {noun} {first}"
        case 2 | 3:
            return f"{noun} {first} {second} {brand}"
        case 4 | 5:
            return f"{brand} {series} {noun} {second}"
        case 6:
            return f"{2 + row[11] % 11}x {brand} {noun} {first}"
        case _:
            return f"{noun} {series}, {first}"


def _work(kit: Kit, row: list[int], noun: str, first: str, bare: bool, form: int) -> str:
    pick = row[11]
    name = f"{kit.starts[pick & 15]} {kit.ends[pick >> 4 & 15]}"
    author = kit.authors[pick >> 8 & 15]
    if pick >> 12 & 7 == 0:
        name = f"{name} {2 + (pick >> 15) % 6}"
    if bare:
        return f"{name} - {author}" if form & 1 else f"{name} {first}"
    match form:
        case 0 | 1:
            return f"{author}: {name} ({noun})"
        case 2 | 3:
            return f"{name} - {noun}, {first}"
        case 4 | 5:
            return f"{name}: {noun} {author}"
        case _:
            return f"{noun} {name} {first}"


def _description(
    kit: Kit, row: list[int], brand: str, noun: str, first: str, second: str
) -> str | None:
    chance = row[16] % 1000
    if chance < NO_DESCRIPTION:
        return None
    pick = row[17]
    if chance < NO_DESCRIPTION + TOLD:
        sentence = kit.told[pick & 63]
    elif chance < NO_DESCRIPTION + TOLD + ASIDE:
        sentence = kit.aside[pick & 63]
    else:
        sentence = kit.plain[pick & 63]
    if pick >> 6 & 3 == 0:
        sentence = f"{sentence} {kit.plain[pick >> 8 & 63]}"
    return sentence.format(
        b=brand,
        n=noun,
        a=first,
        c=second,
        f=kit.features[pick >> 14 & 15],
        x=kit.others[pick >> 18 & 63],
        y=kit.others[pick >> 24 & 63],
    )


def _listing(
    kit: Kit,
    row: list[int],
    title: str,
    brand: str,
    noun: str,
    sort: int,
    first: str,
    second: str,
) -> Listing:
    description = _description(kit, row, brand, noun, first, second)
    shop, path = kit.shelves[row[18] & 63]
    shelf: str | None = path
    chance = row[19] % 1000
    if chance < NO_PATH:
        shelf = None
    elif chance < NO_PATH + PROMOTED:
        shelf = kit.promotions[row[19] >> 16 & 15]
    given: str | None = title
    if row[20] % 1000 < NO_TITLE:
        given, description = None, f"{title}. {description or ''}".rstrip()
    if given is not None:
        given = _dirty_title(given, row)
    if description is not None:
        description = _dirty_description(description, row)
    category = kit.category
    if row[21] % 1000 < MISLABELLED:
        category = kit.mistaken[row[21] >> 16 & 15]
    return Listing(
        shop=shop,
        category=category,
        language=None if row[22] % 1000 < NO_LANGUAGE else kit.language,
        title=given,
        description=description,
        category_path=shelf,
        brand=None if row[23] % 1000 < NO_BRAND else brand,
        cents=199 + (row[24] % 500) * (1 + (row[24] >> 16 & 255)),
        gtin=row[25] * 997 + row[24] % 997,
        product=_product(kit, row, brand, sort),
        sort=sort,
    )


def _dirty_title(title: str, row: list[int]) -> str:
    pick = row[26]
    chance = pick % 1000
    if chance < TYPO:
        title = dirt.misspell(title, pick >> 10)
    chance = row[27] % 1000
    if chance < SHOUT:
        title = title.upper()
    elif chance < SHOUT + LOWER:
        title = title.lower()
    chance = row[28] % 1000
    if chance < ESCAPED:
        return dirt.escape(title, row[28] >> 16)
    if chance < ESCAPED + ESCAPED_TWICE:
        return dirt.escape_twice(title, row[28] >> 16)
    if chance < ESCAPED + ESCAPED_TWICE + BROKEN_CHARACTERS:
        return dirt.mojibake(title)
    if chance > 990:
        return f"<b>{title}</b>"
    return title


def _dirty_description(description: str, row: list[int]) -> str:
    pick = row[29]
    chance = pick % 1000
    if chance < TAGGED:
        description = dirt.wrap(description, pick >> 16)
    chance = row[30] % 1000
    if chance < ESCAPED:
        return dirt.escape(description, row[30] >> 16)
    if chance < ESCAPED + ESCAPED_TWICE:
        return dirt.escape_twice(description, row[30] >> 16)
    if chance < ESCAPED + ESCAPED_TWICE + BROKEN_CHARACTERS:
        return dirt.mojibake(description)
    if chance > 1000 - LOST_CHARACTERS:
        return dirt.lose(description)
    return description
