"""Dirt spoils a text, and yet leaves what says to which split it belongs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.sample import dirt
from classifier.sample.listing import side
from classifier.text import clean

PICKS = st.integers(min_value=0, max_value=2**22)
# Titles like the catalogue's. No word begins with an ß, whose capital is two letters.
WORDS = ["Größe", "Étui", "TV", "GX450B", "128", "GB", "à", "señal", "15,6", "f/2.8", '10"', "R&D"]
TITLES = st.lists(
    st.one_of(st.sampled_from(WORDS), st.from_regex("[abcäéñœ][abcäéñßœ]{0,8}", fullmatch=True)),
    min_size=1,
).map(" ".join)


@given(TITLES, PICKS)
def test_a_typo_changes_neither_first_letters_nor_numbers(title: str, pick: int) -> None:
    spoilt = dirt.misspell(title, pick)
    assert side(spoilt) == side(title)
    assert len(spoilt.split()) == len(title.split())
    assert abs(len(spoilt) - len(title)) <= 1
    assert [c for c in spoilt if c.isdigit()] == [c for c in title if c.isdigit()]


@given(TITLES)
def test_shouting_changes_neither_first_letters_nor_numbers(title: str) -> None:
    assert side(title.upper()) == side(title) == side(title.lower())


@given(TITLES, PICKS)
def test_entities_read_as_what_they_stood_for(title: str, pick: int) -> None:
    plain = clean(title, 10_000)
    assert clean(dirt.escape(title, pick), 10_000) == plain
    assert clean(dirt.escape_twice(title, pick), 10_000) == plain


def test_entities_are_named_numbered_or_escaped_again() -> None:
    assert dirt.escape('für 10" & mehr', 1) == "f&uuml;r 10&quot; &amp; mehr"
    assert dirt.escape("für", 4) == "f&#252;r"
    assert dirt.escape_twice("für", 1) == "f&amp;uuml;r"


@pytest.mark.parametrize("pick", range(6))
def test_tags_stand_around_words_and_replace_none(pick: int) -> None:
    text = "Rot, 12 cm. Neu, mit Tasche."
    tagged = dirt.wrap(text, pick)
    assert "<" in tagged
    read = clean(tagged, 1000)[0].replace(",", "").replace(".", "").split()
    assert read == ["Rot", "12", "cm", "Neu", "mit", "Tasche"]


@pytest.mark.parametrize(
    ("pick", "spoilt"),
    [(0, "Shcuh 7"), (1, "Shcuh 7"), (2, "Scchuh 7"), (3, "Shuh 7"), (3 + 4 * 4, "Schuh 7")],
)
def test_a_typo_swaps_doubles_or_loses_a_letter_or_finds_none(pick: int, spoilt: str) -> None:
    assert dirt.misspell("Schuh 7", pick) == spoilt


def test_mojibake_is_utf_8_read_as_latin_1() -> None:
    assert dirt.mojibake("für") == "fÃ¼r"
    assert dirt.lose("für") == "f\ufffdr"
