"""The tables are complete, and the catalogue's facts are the same in every process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from classifier.sample import LANGUAGES, taxonomy
from classifier.sample.kit import LARGE, SHARES, SMALL, Chance, Kit, catalogue

TABLES = {
    SMALL: [
        "nouns",
        "foreign",
        "generics",
        "features",
        "starts",
        "ends",
        "authors",
        "promotions",
        "mistaken",
    ],
    LARGE: ["brands", "series", "fits", "bundles", "others", "told", "plain", "aside", "shelves"],
}


def kits() -> Iterator[Kit]:
    for language in LANGUAGES:
        yield from dict.fromkeys(catalogue().kits[language])


def test_every_category_can_be_offered_in_every_language() -> None:
    leaves = {leaf.id for leaf in taxonomy()}
    for language in LANGUAGES:
        assert {kit.category for kit in catalogue().kits[language]} == leaves
        assert len(catalogue().kits[language]) == SHARES


def test_tables_have_the_length_that_masks_pick_from() -> None:
    for kit in kits():
        for length, names in TABLES.items():
            for name in names:
                assert len(getattr(kit, name)) == length, (kit.category, kit.language, name)
        assert len(kit.prefixes) == 8
        assert len(kit.hosts) in (0, LARGE)
        assert len(kit.attributes) >= 2
        assert {len(table) for table in kit.attributes} == {LARGE}


def test_no_word_is_empty_and_no_place_is_left_unfilled() -> None:
    for kit in kits():
        words = [
            *(kit.nouns + kit.generics + kit.brands + kit.series + kit.features),
            *(kit.fits + kit.hosts + kit.bundles + kit.others),
            *(word for table in kit.attributes for word in table),
            *(path for _, path in kit.shelves),
        ]
        assert all(word.strip() == word != "" for word in words), (kit.category, kit.language)
        assert not [word for word in words if "{" in word or "|" in word.replace(" | ", "")]


def test_sentences_name_only_what_the_listing_fills_in() -> None:
    for language in LANGUAGES:
        kit = catalogue().kits[language][0]
        for sentence in kit.told + kit.plain + kit.aside:
            assert set(re.findall(r"{(.*?)}", sentence)) <= set("bnacfxy"), sentence
        assert all("{n}" in sentence for sentence in kit.told)
        assert not any("{n}" in sentence for sentence in kit.plain + kit.aside)
        assert all("{x}" in sentence for sentence in kit.aside)


def test_several_nouns_name_each_category_in_each_language() -> None:
    for kit in kits():
        assert len(set(kit.nouns)) >= 3, (kit.category, kit.language)


def test_near_categories_share_nouns_and_brands() -> None:
    nouns: Counter[str] = Counter()
    brands: Counter[str] = Counter()
    for kit in dict.fromkeys(catalogue().kits["de"]):
        nouns.update(set(kit.nouns) | set(kit.generics))
        brands.update(set(kit.brands))
    assert nouns["Notebook-Zubehör"] >= 4
    assert sum(count > 1 for count in nouns.values()) > 80
    assert sum(count > 1 for count in brands.values()) / len(brands) > 0.9


def test_most_shelves_are_not_named_as_our_categories_are() -> None:
    for language in LANGUAGES:
        ours = {leaf.names[language].casefold() for leaf in taxonomy()}
        paths = [
            path.casefold()
            for kit in dict.fromkeys(catalogue().kits[language])
            for _, path in kit.shelves
        ]
        assert sum(path in ours for path in paths) / len(paths) < 0.02


@pytest.mark.parametrize(("name", "drawn"), [("kit", [87, 69, 65]), ("shelf", [49, 35, 63])])
def test_choices_depend_on_their_name_alone(name: str, drawn: list[int]) -> None:
    chance = Chance(name)
    assert [chance.below(100) for _ in range(3)] == drawn


def test_some_options_are_distinct_and_no_more_than_there_are() -> None:
    assert sorted(Chance("x").some("abc", 9)) == ["a", "b", "c"]
