"""The n-grams that are worth knowing are those that scikit-learn's vectorizer would know."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from classifier.ngrams import Span
from training.ngrams import choose

words = st.sampled_from(("red", "Red", "steel", "kettle", "kettles", "1,5", "l", "für", "x"))
texts = st.lists(st.lists(words, max_size=8).map(" ".join), min_size=1, max_size=12)
WORDS, LETTERS = Span(1, 2), Span(3, 5)


@given(texts, st.integers(1, 3))
def test_vocabulary_and_frequencies_are_scikit_learns(some: list[str], least: int) -> None:
    given = ["red kettle"] * 3 + some
    chosen = choose(given, WORDS, LETTERS, least, 10_000)
    assert chosen.vocabulary.words is not None
    assert chosen.vocabulary.letters is not None
    idf = []
    for analyzer, span, found in (
        ("word", (1, 2), chosen.vocabulary.words),
        ("char_wb", (3, 5), chosen.vocabulary.letters),
    ):
        theirs = TfidfVectorizer(analyzer=analyzer, ngram_range=span, min_df=least).fit(given)
        assert found.grams == tuple(theirs.get_feature_names_out())
        idf.append(theirs.idf_)
    np.testing.assert_allclose(chosen.idf, np.concatenate(idf), rtol=1e-12)


def test_the_most_frequent_n_grams_of_letters_are_kept_ties_by_their_order() -> None:
    some = ["abab abab xyxy", "abab xyxy", "abab qrst"]
    chosen = choose(some, None, Span(3, 3), 1, 6)
    assert chosen.vocabulary.words is None
    assert chosen.vocabulary.letters is not None
    # "aba", "bab", " ab", "ab " four times; then " xy", "xyx", "xy " and "yxy" twice.
    assert chosen.vocabulary.letters.grams == (" ab", " xy", "ab ", "aba", "bab", "xy ")
    # As many as there are is no bound.
    everything = choose(some, None, Span(3, 3), 1, 12).vocabulary.letters
    assert everything is not None
    assert len(everything.grams) == 12


def test_order_of_texts_changes_nothing() -> None:
    some = [f"{a} {b} {a}{b}" for a in ("red", "blue", "für") for b in ("tent", "sofa", "x")]
    first = choose(some, WORDS, LETTERS, 1, 40)
    random.Random(1).shuffle(some)
    second = choose(some, WORDS, LETTERS, 1, 40)
    assert first.vocabulary == second.vocabulary
    np.testing.assert_array_equal(first.idf, second.idf)


def test_texts_without_n_grams_are_refused() -> None:
    with pytest.raises(ValueError, match="no n-gram stands in 2 of 2 texts"):
        choose(["abc", "xyz"], WORDS, LETTERS, 2, 40)
