"""The wide part: a linear model over n-grams beside an encoder. Their logits are added.

Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems". The n-grams remember brands and
model numbers, the encoder what words mean, and the two err on different offers. In the artefact

    vocabulary.json     the n-grams
    wide.safetensors    the weights, as classifier/engines/linear.py has them

Both parts' weights were scaled when they were put together, so that the sum is a plain one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from classifier.artifact import WIDE, WIDE_AND_DEEP, Artifact
from classifier.engines.linear import MODEL_FILE, LinearEngine
from classifier.ngrams import VOCABULARY, Ngrams, most_ngrams, read_vocabulary
from classifier.tokens import pad

TEXTS_AT_ONCE = 256
"""As many as make an engine call worth its overhead."""


class Wide:
    """The wide part of an artefact, or all of one of kind "linear".

    Any thread may encode; only one at a time may ask for logits. Raises ArtifactError, EngineError.
    """

    def __init__(self, artifact: Artifact) -> None:
        recipe = artifact.manifest.text
        vocabulary = read_vocabulary(artifact.path / VOCABULARY)
        # What an encoder wants before each text tells no two texts apart.
        self._prefix = recipe.prefix
        most = most_ngrams(recipe, vocabulary.words, vocabulary.letters)
        self._ngrams = Ngrams(vocabulary, most)
        name = WIDE if artifact.manifest.kind == WIDE_AND_DEEP else MODEL_FILE
        self._engine = LinearEngine(artifact, 1, name)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text's n-grams, without those of the recipe's prefix."""
        rows, _ = self._ngrams.encode([text.removeprefix(self._prefix) for text in texts])
        return rows

    def logits(self, rows: list[list[int]]) -> NDArray[np.float32]:
        """Logits (rows, labels) of rows of ids."""
        return self._engine.logits(*pad(rows, max(map(len, rows)), self._ngrams.pad_id))

    def answers(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Logits (texts, labels) of the wide part alone, for at least one text."""
        rows = self.encode(texts)
        starts = range(0, len(rows), TEXTS_AT_ONCE)
        return np.concatenate([self.logits(rows[i : i + TEXTS_AT_ONCE]) for i in starts])

    def close(self) -> None:
        """Frees the weights."""
        self._engine.close()
