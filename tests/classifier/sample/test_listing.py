"""Listings look like shops' offers, in the shares that make the catalogue as hard as it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice

import pytest

from classifier.offer import Offer
from classifier.sample import LANGUAGES, offers, taxonomy
from classifier.sample.kit import LANGUAGE_SHARES, catalogue
from classifier.sample.listing import Listing, listings, side
from classifier.text import DEFAULT_RECIPE

COUNT = 20_000


@cache
def some() -> tuple[Listing, ...]:
    return tuple(islice(listings(11, "train"), COUNT))


def share(holds: Callable[[Listing], object]) -> float:
    return sum(bool(holds(listing)) for listing in some()) / COUNT


def text(listing: Listing) -> str:
    return f"{listing.title or ''} {listing.description or ''}"


def test_category_frequency_has_a_long_tail() -> None:
    counts = [count for _, count in Counter(each.category for each in some()).most_common()]
    assert len(counts) == len(taxonomy())
    assert 0.05 < counts[0] / COUNT < 0.08
    assert counts[0] > 25 * counts[-1]
    assert 0.30 < sum(counts[:10]) / COUNT < 0.40
    half = len(counts) // 2
    assert sum(counts[half:]) / COUNT < 0.25


@pytest.mark.parametrize("language", LANGUAGES)
def test_languages_have_their_shares(language: str) -> None:
    expected = LANGUAGE_SHARES[language] / 100
    assert share(lambda each: each.shop.language == language) == pytest.approx(expected, abs=0.015)


def test_the_shares_of_the_languages_are_the_whole() -> None:
    assert tuple(LANGUAGE_SHARES) == LANGUAGES
    assert sum(LANGUAGE_SHARES.values()) == 100


def test_an_offer_is_in_its_shops_language() -> None:
    assert all(each.language in (None, each.shop.language) for each in some())


@pytest.mark.parametrize(
    ("holds", "low", "high"),
    [
        (lambda each: each.title is None, 0.003, 0.010),
        (lambda each: each.description is None, 0.40, 0.46),
        (lambda each: each.category_path is None, 0.44, 0.50),
        (lambda each: each.brand is None, 0.30, 0.36),
        (lambda each: each.language is None, 0.015, 0.035),
        (lambda each: each.title and each.title.isupper(), 0.05, 0.09),
        (lambda each: re.search(r"&\w+;", text(each)), 0.03, 0.10),
        (lambda each: re.search(r"&amp;#?\w+;", text(each)), 0.005, 0.03),
        (lambda each: re.search(r"<\w+", text(each)), 0.04, 0.10),
        (lambda each: re.search("Ã", text(each)), 0.003, 0.015),
        (lambda each: "\ufffd" in text(each), 0.0003, 0.004),
    ],
    ids=[
        "title",
        "description",
        "path",
        "brand",
        "language",
        "shout",
        "entity",
        "twice",
        "tag",
        "mojibake",
        "lost",
    ],
)
def test_what_is_missing_or_dirty_has_its_share(
    holds: Callable[[Listing], object], low: float, high: float
) -> None:
    assert low < share(holds) < high


def test_titles_have_two_to_forty_tokens() -> None:
    lengths = sorted(len(each.title.split()) for each in some() if each.title)
    assert lengths[0] == 2
    assert 30 < lengths[-1] <= 40
    assert 5 <= lengths[len(lengths) // 2] <= 9


def test_every_offer_has_a_text() -> None:
    for offer, _ in offers(3, 2_000):
        assert DEFAULT_RECIPE.text(offer)


def test_labels_are_leaves_and_hardly_ever_wrong() -> None:
    leaves = {leaf.id for leaf in taxonomy()}
    assert {each.category for each in some()} <= leaves
    kits = dict.fromkeys(catalogue().kits["de"])
    shared = {noun for kit in kits for noun in kit.generics}
    owners: dict[str, set[str]] = {}
    for kit in kits:
        for noun in set(kit.nouns) - shared:
            owners.setdefault(noun, set()).add(kit.category)
    # Such a noun, in its usual place in a clean title, tells the label, unless the label is wrong.
    only = {noun: names.pop() for noun, names in owners.items() if len(names) == 1}
    right = wrong = 0
    for each in some():
        parts = (each.title or "").split(" - ")
        if len(parts) == 4 and parts[1] in only and each.shop.language == "de":
            right += only[parts[1]] == each.category
            wrong += only[parts[1]] != each.category
    assert right > 100
    assert wrong / (right + wrong) < 0.03


def test_sides_depend_on_first_letters_and_numbers_alone() -> None:
    assert side("Schuh Größe 42") == side("SCHUH  Größe, 42!") == side("Scuhh Grösse 42")
    sides = Counter(side(f"Schuh {number}") for number in range(1000))
    assert 400 < sides["test"] < 600


def normalised(offer: Offer) -> str:
    return " ".join(re.findall(r"\w+", DEFAULT_RECIPE.text(offer).casefold()))


def test_no_text_of_one_split_is_in_the_other_whatever_the_seeds() -> None:
    train = {normalised(offer) for seed in (0, 1) for offer, _ in offers(seed, 15_000, "train")}
    test = {normalised(offer) for seed in (0, 1) for offer, _ in offers(seed, 15_000, "test")}
    assert len(train) > 25_000
    assert len(test) > 25_000
    assert not train & test


def test_no_title_of_one_split_is_in_the_other() -> None:
    def titles(split_seed: int, split: str) -> set[str]:
        drawn = offers(split_seed, 20_000, "test" if split == "test" else "train")
        bare = (Offer(offer_id="x", title=offer.title) for offer, _ in drawn)
        return {normalised(offer) for offer in bare} - {""}

    assert not titles(5, "train") & titles(5, "test")
