"""N-grams weigh what scikit-learn's vectorizers make them weigh."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, hstack  # type: ignore[import-untyped]
from sklearn.feature_extraction.text import TfidfVectorizer

from classifier.ngrams import Span
from classifier.tfidf import weigh
from training.ngrams import choose, weighed

words = st.sampled_from(
    ["red", "Red", "blue", "steel", "kettle", "kettles", "1,5", "l", "für", "x"]
)
texts = st.lists(st.lists(words, max_size=8).map(" ".join), min_size=2, max_size=12)


def scikit_learns(given: list[str], asked: list[str], least: int) -> csr_array:
    made = []
    for analyzer, span in (("word", (1, 2)), ("char_wb", (3, 5))):
        vectorizer = TfidfVectorizer(
            analyzer=analyzer, ngram_range=span, min_df=least, sublinear_tf=True
        )
        vectorizer.fit(given)
        made.append(vectorizer.transform(asked))
    return hstack(made)


@given(texts, texts)
def test_weights_are_scikit_learns(given: list[str], asked: list[str]) -> None:
    given = ["red kettle", "red kettle", *given]
    chosen = choose(given, Span(1, 2), Span(3, 5), least_texts=2, most_letters=10_000)
    expected = scikit_learns(given, asked, 2).toarray()
    found = weighed(asked, chosen, 500)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-12)


def test_each_kind_of_n_grams_has_length_one() -> None:
    rows = np.array([1, 0, 1, 0, 1, 1])
    ids = np.array([0, 0, 2, 0, 0, 3], dtype=np.int32)
    idf = np.array([1.0, 5.0, 3.0, 4.0])
    made = weigh(rows, ids, 3, idf, 2, np.float64).toarray()
    np.testing.assert_allclose(made, np.array([[1, 0, 0, 0], [1, 0, 0.6, 0.8], [0] * 4]))


def test_repeated_n_grams_count_by_their_logarithm() -> None:
    rows, ids = np.zeros(5, dtype=np.int64), np.array([0, 1, 1, 1, 1], dtype=np.int32)
    (made,) = weigh(rows, ids, 1, np.array([1.0, 2.0]), 2, np.float64).toarray()
    assert made[1] / made[0] == 2 * (1 + np.log(4))


def test_no_texts_make_no_rows() -> None:
    none = np.array([], dtype=np.int64)
    assert weigh(none, none.astype(np.int32), 0, np.ones(3), 1, np.float32).shape == (0, 3)
