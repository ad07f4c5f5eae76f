"""The n-grams worth knowing, chosen as scikit-learn's TfidfVectorizer chooses them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack  # type: ignore[import-untyped]

from classifier.ngrams import Cutter, Grams, Ngrams, Span, Vocabulary
from classifier.tfidf import inverse_frequencies, weigh

_TEXTS = 4_096
"""Texts that are weighed at once; more only take memory."""


class Chosen(NamedTuple):
    """A vocabulary and the inverse document frequencies (n-grams,) of its n-grams."""

    vocabulary: Vocabulary
    idf: NDArray[np.float64]


def choose(
    texts: Sequence[str],
    words: Span | None,
    letters: Span | None,
    least_texts: int,
    most_letters: int,
) -> Chosen:
    """The n-grams that at least so many of the texts have, in the order of their characters.

    Of letters at most `most_letters`, those that occur most often; of equally frequent ones the
    first. Raises ValueError when none is left.
    """
    number = count()
    of_words: defaultdict[str, int] = defaultdict(number.__next__)
    of_letters: defaultdict[str, int] = defaultdict(number.__next__)
    cutter = Cutter(words, letters, of_words.__getitem__, of_letters.__getitem__)
    ids = [np.array(cutter.ids(text), dtype=np.int32) for text in texts]
    seen = len(of_words) + len(of_letters)
    everywhere = np.bincount(np.concatenate(ids), minlength=seen)
    in_texts = np.zeros(seen, dtype=np.int64)
    for row in ids:
        in_texts[np.unique(row)] += 1
    kept = []
    for grams, most in ((of_words, None), (of_letters, most_letters)):
        frequent = [gram for gram, gram_id in grams.items() if in_texts[gram_id] >= least_texts]
        if most is not None and len(frequent) > most:
            frequent.sort(key=lambda gram: (-everywhere[of_letters[gram]], gram))
            del frequent[most:]
        kept.append(tuple(sorted(frequent)))
    if not any(kept):
        raise ValueError(f"no n-gram stands in {least_texts} of {len(texts)} texts")
    order = [of_words[gram] for gram in kept[0]] + [of_letters[gram] for gram in kept[1]]
    vocabulary = Vocabulary(
        words=Grams(words.shortest, words.longest, kept[0]) if words else None,
        letters=Grams(letters.shortest, letters.longest, kept[1]) if letters else None,
    )
    return Chosen(vocabulary, inverse_frequencies(len(texts), in_texts[order]))


def weighed(texts: Sequence[str], chosen: Chosen, most_tokens: int) -> csr_array[Any]:
    """The texts' tf-idf weights (texts, n-grams) float64, by the code that serves."""
    made = Ngrams(chosen.vocabulary, most_tokens)
    words = chosen.vocabulary.sizes[0]
    parts = []
    for start in range(0, len(texts), _TEXTS):
        rows, _ = made.encode(list(texts[start : start + _TEXTS]))
        ids = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
        text = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        known = ids < made.pad_id
        parts.append(weigh(text[known], ids[known], len(rows), chosen.idf, words, np.float64))
    return vstack(parts, format="csr")
