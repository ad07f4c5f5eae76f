"""The taxonomy is complete: three levels, five languages, ids and names that tell apart."""

from __future__ import annotations

import re

import pytest

from classifier import sample
from classifier.sample import LANGUAGES, categories, taxonomy


def test_some_150_leaves_of_all_departments_stand_on_the_third_level() -> None:
    assert 140 <= len(taxonomy()) <= 170
    assert {len(leaf.parents) for leaf in taxonomy()} == {2}
    departments = {leaf.parents[-1] for leaf in taxonomy()}
    assert len(departments) == 22
    assert {"electronics", "furniture", "fashion", "food", "media", "pets"} <= departments


def test_the_levels_hang_together() -> None:
    known = categories()
    leaves = {leaf.id for leaf in taxonomy()}
    for category in known.values():
        assert all(parent in known and parent not in leaves for parent in category.parents)
        if category.parents:
            assert category.parents[1:] == known[category.parents[0]].parents
    levels = [len(category.parents) for category in known.values()]
    assert set(levels) == {0, 1, 2}
    assert {parent for leaf in taxonomy() for parent in leaf.parents} | leaves == set(known)


def test_ids_are_plain_words_and_unique() -> None:
    leaves = [leaf.id for leaf in taxonomy()]
    assert len(set(leaves)) == len(leaves)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", category) for category in categories())


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_category_has_a_name_in_every_language(language: str) -> None:
    for category in categories().values():
        assert tuple(category.names) == LANGUAGES
        name = category.names[language]
        assert name == name.strip()
        assert re.search(r"[^\W\d_]{2}", name), category.id


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_two_leaves_have_one_name(language: str) -> None:
    names = [leaf.names[language].casefold() for leaf in taxonomy()]
    assert len(set(names)) == len(names)


def test_the_version_says_whose_taxonomy_it_is() -> None:
    assert sample.version() == "sample-1"
