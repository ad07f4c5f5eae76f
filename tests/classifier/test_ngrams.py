"""N-grams are those of scikit-learn, whatever the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from classifier import ngrams
from classifier.artifact import ArtifactError
from classifier.ngrams import Cutter, Find, Grams, Ngrams, Span, Vocabulary, most_ngrams
from classifier.offer import Offer
from classifier.text import FieldBudget, TextRecipe

spans = st.tuples(st.integers(1, 3), st.integers(0, 4)).map(lambda at: Span(at[0], at[0] + at[1]))
texts = st.one_of(
    st.text(max_size=60),
    st.text(st.sampled_from("aZ9_-' \t\u00a0\x1c\u2028ßİΣσẞéé漢\u0301\ufeff"), max_size=60),
)


def scikit(span: Span, analyzer: str) -> Callable[[str], list[str]]:
    made = TfidfVectorizer(analyzer=analyzer, ngram_range=(span.shortest, span.longest))
    analyse: Callable[[str], list[str]] = made.build_analyzer()
    return analyse


def growing(into: dict[str, int]) -> Find:
    numbers = count()
    return lambda gram: into.setdefault(gram, next(numbers))


def cut(text: str, words: Span | None, letters: Span | None) -> Counter[str]:
    """The n-grams of a text when every n-gram is known."""
    known: dict[str, int] = {}
    ids = Cutter(words, letters, growing(known), growing(known)).ids(text)
    names = {gram_id: gram for gram, gram_id in known.items()}
    return Counter(names[gram_id] for gram_id in ids)


@given(texts, spans)
@example("Wasserkocher 1,5 l, für's Büro", Span(1, 2))
@example("a b cd", Span(1, 3))
def test_words_are_scikit_learns(text: str, span: Span) -> None:
    assert cut(text, span, None) == Counter(scikit(span, "word")(text))


@given(texts, spans)
@example("x yz", Span(3, 5))
@example("ΟΔΟΣ Οδός", Span(2, 3))
def test_letters_are_scikit_learns(text: str, span: Span) -> None:
    assert cut(text, None, span) == Counter(scikit(span, "char_wb")(text))


@given(st.lists(texts, max_size=8), spans, spans)
def test_what_is_kept_of_one_text_changes_no_other(
    several: list[str], words: Span, letters: Span
) -> None:
    known: dict[str, int] = {}
    together = Cutter(words, letters, growing(known), growing(known))
    for text in [*several, *several]:
        alone = Cutter(words, letters, known.get, known.get)
        assert sorted(together.ids(text)) == sorted(alone.ids(text))


def test_kept_stretches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "KEPT_STRETCHES", 3)
    vocabulary = Vocabulary(words=Grams(1, 2, ("kettle", "red kettle")), letters=None)
    small = Ngrams(vocabulary, 99)
    for _ in range(2):
        rows, _ = small.encode([f"red kettle {number} {number}x" for number in range(9)])
        assert rows == [[0, 1]] * 9
        assert len(small._cutter._kept) <= 3
    small.encode(["x" * 41])
    assert "x" * 41 not in small._cutter._kept


def test_ids_follow_the_vocabulary_and_repeat() -> None:
    made = Ngrams(Vocabulary(Grams(1, 2, ("tent", "tent tent")), Grams(3, 3, (" te", "xyz"))), 99)
    assert made.pad_id == 4
    rows, cuts = made.encode(["Tent tent TENT", "sofa", ""])
    assert [sorted(row) for row in rows] == [[0, 0, 0, 1, 1, 2, 2, 2], [4], [4]]
    assert cuts == 0


def test_longer_texts_are_cut_and_counted() -> None:
    made = Ngrams(Vocabulary(Grams(1, 1, ("aa", "bb")), None), 3)
    assert made.encode(["aa bb aa bb", "aa bb aa"]) == ([[0, 1, 0], [0, 1, 0]], 1)


recipes = st.builds(
    lambda title, brand: TextRecipe(
        fields=(FieldBudget("title", title), FieldBudget("brand", brand))
    ),
    st.integers(1, 30),
    st.integers(1, 30),
)


@given(recipes, st.text(st.sampled_from("ab9 ."), max_size=99), spans, spans)
@example(
    TextRecipe(fields=(FieldBudget("title", 20),)), "a b c d e f g h i j", Span(1, 1), Span(1, 5)
)
def test_no_text_of_a_recipe_is_ever_cut(
    recipe: TextRecipe, raw: str, words: Span, letters: Span
) -> None:
    text = recipe.text(Offer(offer_id="1", title=raw, brand=raw[::-1]))
    assert cut(text, words, letters).total() <= most_ngrams(recipe, words, letters)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ('{"words": null, "letters": null}', "holds no n-gram"),
        ('{"words": {"shortest": 1, "longest": 1, "grams": ["a", "a"]}, "letters": null}', "twice"),
        ('{"words": {"shortest": 2, "longest": 1, "grams": ["a"]}, "letters": null}', "2 to 1"),
        ('{"words": {"shortest": 1, "longest": 1, "grams": [1]}, "letters": null}', "str"),
        ('{"words": null, "letters": null, "more": 1}', "more"),
        (None, "No such file"),
    ],
)
def test_file_that_is_no_vocabulary_is_refused(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "vocabulary.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ArtifactError, match=message) as caught:
        Ngrams.from_file(file, 9)
    assert "\n" not in str(caught.value)
