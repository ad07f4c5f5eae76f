"""The model that answers: one artefact, its tokeniser, engine, scores and cache.

Everything uses it, the stream, the batch command and `POST /classify`, so that all give one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from classifier.artifact import WIDE_AND_DEEP, Artifact
from classifier.batching import Call, plan
from classifier.cache import PredictionCache
from classifier.engines import Engine, load_engine
from classifier.ngrams import A_PIECE, VOCABULARY, Ngrams
from classifier.offer import Offer
from classifier.precision import LOGIT_BOUND
from classifier.scores import Prediction, Scorer
from classifier.tokens import Tokeniser, pad

if TYPE_CHECKING:
    from classifier.wide import Wide

TEXT_HASH_BYTES = 16


class ModelError(Exception):
    """The model does not give the answers that its checkpoint gave; one line says where."""


class DeviceError(Exception):
    """The engine fails on a text that it has answered before: the device is at fault, no offer."""


def text_hash(text: str) -> bytes:
    """The 16 bytes that name a text in the cache and in the classification."""
    return blake2b(text.encode(), digest_size=TEXT_HASH_BYTES).digest()


@dataclass(slots=True)
class Question:
    """Texts on their way through the model. `answers` (one a text) are None until known.

    Texts whose answer the cache had are answered from the start; of equal texts one is computed.
    """

    hashes: list[bytes]
    answers: list[Prediction | None]
    askers: list[list[int]] = field(default_factory=list)  # per computed text: who asked
    ids: list[list[int]] = field(default_factory=list)  # per computed text: its tokens
    ngrams: list[list[int]] = field(default_factory=list)  # likewise, for a wide part
    calls: list[Call] = field(default_factory=list)
    cut: int = 0  # texts with more tokens than the model takes

    @property
    def hits(self) -> int:
        """Texts that need no engine call of their own."""
        return len(self.answers) - len(self.ids)

    def tokens(self) -> tuple[int, int]:
        """Real tokens, and tokens of padding, over all engine calls."""
        real = sum(map(len, self.ids))
        return real, sum(len(call.rows) * call.length for call in self.calls) - real


@dataclass(frozen=True, slots=True)
class Asked:
    """Offers on their way through the model."""

    indexes: list[int]  # of the offers that have a text, in their order
    question: Question  # their texts
    cut: int  # texts that lost characters


class Model:
    """Answers texts. Any thread may ask and prepare; only one at a time may compute."""

    def __init__(
        self,
        artifact: Artifact,
        engine: Engine,
        cache_offers: int,
        batch_tokens: int,
        alternatives: int,
        wide: Wide | None = None,
    ) -> None:
        manifest = artifact.manifest
        self.artifact = artifact
        self.recipe = manifest.text
        self._tokeniser = _tokeniser(artifact)
        self.pad_id = self._tokeniser.pad_id
        self._engine = engine
        self._wide = wide
        self._labels = [label.id for label in artifact.labels]
        thresholds = [manifest.thresholds.get(label, manifest.threshold) for label in self._labels]
        self._scorer = Scorer(
            self._labels, manifest.temperature, np.array(thresholds, np.float64), alternatives
        )
        self._cache = PredictionCache(cache_offers)
        self._batch_tokens = batch_tokens * (A_PIECE if manifest.kind == "linear" else 1)

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        threads: int,
        cache_offers: int = 0,
        batch_tokens: int = 2_048,
        alternatives: int = 3,
    ) -> Model:
        """Loads an artefact and asks it its golden questions.

        Raises ArtifactError, EngineError or ModelError, each with one line.
        """
        artifact = Artifact.load(path)
        engine, wide = load_engine(artifact, threads), wide_part(artifact)
        model = cls(artifact, engine, cache_offers, batch_tokens, alternatives, wide)
        model.check_golden()
        return model

    def check_golden(self) -> None:
        """Asks the golden questions; raises ModelError unless the checkpoint's answers come back.

        Top category the same and its highest logits within the precision's bound. Two categories
        that lie closer than the bound are a tie, which may fall either way.
        """
        bound = LOGIT_BOUND[self._engine.precision]
        golden = self.artifact.golden
        position = {label: index for index, label in enumerate(self._labels)}
        asked = Question([], [])
        self._cut(asked, [question.text for question in golden])
        for call in asked.calls:
            logits = self._logits(asked, call)
            for row, values in zip(call.rows, logits, strict=True):
                question = golden[row]
                name = f"artefact {self.artifact.manifest.id}, golden question {row + 1}"
                if not np.isfinite(values).all():
                    raise ModelError(f"{name}: a logit is not finite")
                for label, expected in question.logits.items():
                    off = abs(float(values[position[label]]) - expected)
                    if off > bound:
                        raise ModelError(
                            f"{name}: logit of {label} is {off:.2g} off; at most {bound:.2g}"
                        )
                best = self._labels[int(values.argmax())]
                expected_best = float(values[position[question.category_id]])
                if best != question.category_id and float(values.max()) - expected_best > bound:
                    raise ModelError(f"{name}: {best} instead of {question.category_id}")

    def ask(self, offers: Iterable[Offer]) -> Asked:
        """Makes the offers' texts by the artefact's recipe, and prepares those that have one."""
        indexes: list[int] = []
        texts: list[str] = []
        cuts = 0
        for index, offer in enumerate(offers):
            text, cut = self.recipe.render(offer)
            cuts += cut
            if text:
                indexes.append(index)
                texts.append(text)
        return Asked(indexes, self.prepare(texts), cuts)

    def prepare(self, texts: list[str]) -> Question:
        """Looks the texts up in the cache, tokenises the others and plans their engine calls."""
        hashes = [text_hash(text) for text in texts]
        question = Question(hashes, self._cache.get_many(hashes))
        first: dict[bytes, list[int]] = {}
        missing: list[str] = []
        for index, answer in enumerate(question.answers):
            if answer is not None:
                continue
            asker = first.get(hashes[index])
            if asker is None:
                first[hashes[index]] = asker = []
                question.askers.append(asker)
                missing.append(texts[index])
            asker.append(index)
        if missing:
            self._cut(question, missing)
        return question

    def compute(self, question: Question, call: Call) -> None:
        """Answers the texts of one engine call, and remembers the answers.

        When the engine fails, each text is asked alone, so that a bad one costs its neighbours
        nothing: its answer stays None once the engine has answered the golden questions and failed
        on it again. Raises DeviceError when the engine answers no golden question either.
        """
        predictions: Sequence[Prediction | None]
        try:
            predictions = self._predictions(question, call)
        except Exception as error:  # noqa: BLE001 an engine raises what its runtime raises
            predictions = self._one_by_one(question, call, error)
        answers = question.answers
        known: list[tuple[bytes, Prediction]] = []
        for row, prediction in zip(call.rows, predictions, strict=True):
            if prediction is None:
                continue
            askers = question.askers[row]
            for index in askers:
                answers[index] = prediction
            known.append((question.hashes[askers[0]], prediction))
        self._cache.put_many(known)

    def predict(self, texts: list[str]) -> list[Prediction | None]:
        """The answers to texts, in their order; None where the engine has none."""
        question = self.prepare(texts)
        for call in question.calls:
            self.compute(question, call)
        return question.answers

    def close(self) -> None:
        """Frees the engine."""
        self._engine.close()
        if self._wide is not None:
            self._wide.close()

    def _cut(self, question: Question, texts: list[str]) -> None:
        """Makes ids of the texts and plans their engine calls."""
        question.ids, question.cut = self._tokeniser.encode(texts)
        if self._wide is not None:
            question.ngrams = self._wide.encode(texts)
        question.calls = self._plan(question.ids)

    def _one_by_one(
        self, question: Question, call: Call, error: Exception
    ) -> list[Prediction | None]:
        predictions = [self._alone(question, row, call.length) for row in call.rows]
        if None in predictions:
            try:
                self.check_golden()
            except Exception:  # noqa: BLE001
                raise DeviceError(str(error).split("\n", 1)[0]) from error
            # A device that failed for a moment must not condemn a text: once more, now that it
            # works.
            for index, row in enumerate(call.rows):
                predictions[index] = predictions[index] or self._alone(question, row, call.length)
        return predictions

    def _alone(self, question: Question, row: int, length: int) -> Prediction | None:
        try:
            return self._predictions(question, Call([row], length))[0]
        except Exception:  # noqa: BLE001 see compute
            return None

    def _plan(self, ids: list[list[int]]) -> list[Call]:
        manifest = self.artifact.manifest
        lengths = [len(row) for row in ids]
        return list(plan(lengths, self._batch_tokens, manifest.pad_multiple, manifest.max_tokens))

    def _predictions(self, question: Question, call: Call) -> list[Prediction]:
        return self._scorer.predictions(self._logits(question, call))

    def _logits(self, question: Question, call: Call) -> NDArray[np.float32]:
        padded = pad([question.ids[row] for row in call.rows], call.length, self.pad_id)
        logits = self._engine.logits(*padded)
        if logits.shape != (len(call.rows), len(self._labels)):
            raise ModelError(f"the engine gave {logits.shape} logits for {len(call.rows)} texts")
        if self._wide is not None:
            logits = logits + self._wide.logits([question.ngrams[row] for row in call.rows])
        return logits


def wide_part(artifact: Artifact) -> Wide | None:
    """The wide part of an artefact that has one. Raises ArtifactError, EngineError."""
    if artifact.manifest.kind != WIDE_AND_DEEP:
        return None
    from classifier.wide import Wide

    return Wide(artifact)


def _tokeniser(artifact: Artifact) -> Tokeniser | Ngrams:
    """What cuts texts for the artefact's kind of model. Raises ArtifactError."""
    most = artifact.manifest.max_tokens
    if artifact.manifest.kind == "linear":
        return Ngrams.from_file(artifact.path / VOCABULARY, most)
    return Tokeniser.from_file(artifact.path / "tokenizer.json", most)
