"""N-grams: what the linear model reads instead of tokens, by the rules of scikit-learn.

Of words as TfidfVectorizer's analyzer "word" finds them, and of letters as "char_wb" does, within
one word and its two blanks. Both depend on one stretch between white space alone (only n-grams of
several words look further), and stretches come again and again, so what was made of one is kept.
That is what makes this several times faster than scikit-learn, which cuts every word anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from classifier.artifact import ArtifactError
from classifier.text import TextRecipe

VOCABULARY = "vocabulary.json"

KEPT_STRETCHES = 100_000
"""About 40 MB. When so many are kept all are forgotten: the frequent ones are soon back."""
LONGEST_KEPT = 40
"""A longer stretch is an address or a number, and hardly comes again."""

A_PIECE = 8
"""About so many n-grams stand where an encoder has one word piece: the token budget of an engine
call is for so many times as many of them, or calls would be of a few texts each and mostly
overhead."""

_WORD = re.compile(r"(?u)\b\w\w+\b")  # TfidfVectorizer's default token_pattern

Find = Callable[[str], int | None]
"""The id of an n-gram; None where it has none."""


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """N-grams of so many words or letters, from and to."""

    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"n-grams of {self.shortest} to {self.longest} are none")


class Grams(Span, frozen=True, forbid_unknown_fields=True):
    """The n-grams of one kind that the model knows, in the order of their ids."""

    grams: tuple[str, ...]


class Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vocabulary.json. The ids of n-grams of letters follow those of n-grams of words."""

    words: Grams | None
    letters: Grams | None

    @property
    def sizes(self) -> tuple[int, int]:
        """How many n-grams of words and of letters there are."""
        return (
            len(self.words.grams) if self.words else 0,
            len(self.letters.grams) if self.letters else 0,
        )


def read_vocabulary(file: Path) -> Vocabulary:
    """The vocabulary of a vocabulary.json; raises ArtifactError when it is not one."""
    try:
        vocabulary = msgspec.json.decode(file.read_bytes(), type=Vocabulary)
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{file}: cannot be read: {error}") from error
    for kind in (vocabulary.words, vocabulary.letters):
        if kind and len(set(kind.grams)) < len(kind.grams):
            raise ArtifactError(f"{file}: an n-gram stands there twice")
    if not any(vocabulary.sizes):
        raise ArtifactError(f"{file}: holds no n-gram")
    return vocabulary


class Cutter:
    """Cuts texts into n-grams and gives their ids. Threads may share one."""

    def __init__(
        self,
        words: Span | None,
        letters: Span | None,
        word_id: Find,
        letters_id: Find,
    ) -> None:
        self._words = range(words.shortest, words.longest + 1) if words else range(0)
        self._letters = range(letters.shortest, letters.longest + 1) if letters else range(0)
        self._word_id = word_id
        self._letters_id = letters_id
        self._several = [n for n in self._words if n > 1]
        # Stretch -> ids of what lies within it, and its words for what reaches beyond.
        self._kept: dict[str, tuple[list[int], list[str]]] = {}

    def ids(self, text: str) -> list[int]:
        """Ids of the text's n-grams that have one, as often as they occur."""
        ids: list[int] = []
        words: list[str] = []
        kept = self._kept
        for stretch in text.lower().split():
            own_ids, own_words = kept.get(stretch) or self._cut(stretch)
            ids += own_ids
            words += own_words
        find = self._word_id
        for n in self._several:
            if n == 2:
                for pair in map(" ".join, pairwise(words)):
                    if (found := find(pair)) is not None:
                        ids.append(found)
            else:
                for start in range(len(words) - n + 1):
                    if (found := find(" ".join(words[start : start + n]))) is not None:
                        ids.append(found)
        return ids

    def _cut(self, stretch: str) -> tuple[list[int], list[str]]:
        words = _WORD.findall(stretch) if self._words else []
        found = [self._word_id(word) for word in words] if 1 in self._words else []
        found += map(self._letters_id, _within(stretch, self._letters))
        cut = [gram_id for gram_id in found if gram_id is not None], words
        if len(stretch) <= LONGEST_KEPT:
            if len(self._kept) >= KEPT_STRETCHES:
                self._kept.clear()
            self._kept[stretch] = cut
        return cut


class Ngrams:
    """The n-grams of a vocabulary, with the interface of a tokeniser."""

    def __init__(self, vocabulary: Vocabulary, max_tokens: int) -> None:
        words, letters = vocabulary.words, vocabulary.letters
        self.max_tokens = max_tokens
        count = vocabulary.sizes[0]
        word_ids = {gram: i for i, gram in enumerate(words.grams)} if words else {}
        letters_ids = {gram: i for i, gram in enumerate(letters.grams, count)} if letters else {}
        self.pad_id = sum(vocabulary.sizes)
        self._cutter = Cutter(words, letters, word_ids.get, letters_ids.get)

    @classmethod
    def from_file(cls, path: Path, max_tokens: int) -> Ngrams:
        """Reads a `vocabulary.json`; raises ArtifactError."""
        return cls(read_vocabulary(path), max_tokens)

    def encode(self, texts: list[str]) -> tuple[list[list[int]], int]:
        """Ids of each text's n-grams, unpadded, and how many texts had to be cut.

        An n-gram stands there as often as the text has it, and one that the vocabulary lacks not at
        all. A text without any has the padding alone, so that no row is empty.
        """
        rows = []
        cut = 0
        for text in texts:
            ids = self._cutter.ids(text) or [self.pad_id]
            if len(ids) > self.max_tokens:
                ids = ids[: self.max_tokens]
                cut += 1
            rows.append(ids)
        return rows, cut


def most_ngrams(recipe: TextRecipe, words: Span | None, letters: Span | None) -> int:
    """No text of the recipe has more n-grams than this, so none is ever cut.

    Unless it grows when it is put into small letters, as the Turkish dotted capital I does.
    """
    fields = [field.characters + len(recipe.separator) for field in recipe.fields]
    characters = len(recipe.prefix) + sum(fields)
    stretches = (characters + 1) // 2
    kinds = [span.longest - span.shortest + 1 if span else 0 for span in (words, letters)]
    return max(3, kinds[0] * stretches + kinds[1] * (characters + stretches))


def _within(stretch: str, lengths: Sequence[int]) -> list[str]:
    """The n-grams of letters in a stretch between its two blanks; a shorter one whole, but once."""
    padded = f" {stretch} "
    grams: list[str] = []
    for n in lengths:
        if n >= len(padded):
            grams.append(padded)
            break
        grams += [padded[start : start + n] for start in range(len(padded) - n + 1)]
    return grams
