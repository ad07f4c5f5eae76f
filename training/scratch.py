"""A model from scratch: examples in, a calibrated checkpoint out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertConfig

from classifier.artifact import Label
from classifier.encoder import OfferEncoder
from classifier.text import TextRecipe
from classifier.tokens import Tokeniser
from compile import checkpoint
from compile.build import versions
from compile.checkpoint import Checkpoint
from compile.labelled import DataError
from compile.verify import golden_answers
from training import calibration, fit
from training.examples import Examples, hold_out
from training.fit import Schedule
from training.vocabulary import train_tokeniser

PAD_MULTIPLE = 8
TARGET_PRECISION = 0.9
"""Thresholds are set so that of the answers above them this share is right."""

HELD_OUT = 0.05
MOST_HELD_OUT = 4_000
"""Enough for a temperature and the thresholds of the common categories; more is taken from
training."""

GOLDEN_TEXTS = 96

Say = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """The size of everything. A BERT, since ONNX Runtime fuses its attention whole."""

    pieces: int = 32_000
    hidden: int = 256
    layers: int = 2
    heads: int = 4
    inner: int = 256
    max_tokens: int = 40
    dropout: float = 0.0

    def config(self, pieces: int, pad_id: int) -> BertConfig:
        """The encoder's configuration for a tokeniser of so many pieces."""
        return BertConfig(
            vocab_size=pieces,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.inner,
            max_position_embeddings=self.max_tokens,
            type_vocab_size=1,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            pad_token_id=pad_id,
        )


def train(
    path: Path,
    given: Examples,
    recipe: TextRecipe,
    names: Mapping[str, Label],
    *,
    shape: Shape,
    schedule: Schedule,
    data: dict[str, str | int],
    taxonomy: str,
    seed: int,
    say: Say = lambda line: None,
    show: fit.Show = lambda share, rows, note: None,
) -> Checkpoint:
    """Train on the examples and write the checkpoint to `path`.

    A few examples are held out, on which it is calibrated and its accuracy is estimated. `names`
    describes labels by id; one that it lacks is known by its id alone. Raises DataError when there
    is too little to hold anything out.
    """
    rng = np.random.default_rng(seed)
    clock = Stopwatch()
    training, validation = hold_out(given, HELD_OUT, MOST_HELD_OUT, rng)
    if not validation.texts:
        raise DataError(
            f"{len(given.texts)} offers of {len(given.label_ids)} labels: too few to hold some out,"
            " without which scores cannot be calibrated"
        )
    tokenizer = train_tokeniser(training.texts, shape.pieces)
    tokeniser = Tokeniser(tokenizer, shape.max_tokens)
    rows = encode(tokeniser, training.texts)
    clock.lap("tokeniser")
    say(
        f"{len(rows):,} texts of {len(given.label_ids):,} categories,"
        f" {np.mean([len(row) for row in rows]):.0f} of {tokenizer.get_vocab_size():,} pieces each"
    )

    torch.manual_seed(seed)
    config = shape.config(tokenizer.get_vocab_size(), tokeniser.pad_id)
    model = OfferEncoder.new(config, len(given.label_ids))
    fit.fit(model, rows, training.labels, schedule, tokeniser.pad_id, seed, show)
    clock.lap("fit")

    held = encode(tokeniser, validation.texts)
    logits = fit.logits(model, held, tokeniser.pad_id)
    calibrated = calibration.fit(logits, validation.labels, TARGET_PRECISION)
    figures = measured(validation, logits, calibrated.right, calibrated.certain)
    labels = tuple(names.get(label_id, Label(label_id)) for label_id in given.label_ids)
    questions = golden_texts(training, rows, validation, held)
    golden = golden_answers(model, tokeniser, labels, questions)
    clock.lap("calibrate")
    say(
        f"validation: {figures['accuracy']:.1%} of {len(validation.texts):,} right,"
        f" {figures['precision']:.1%} of the {figures['coverage']:.1%} above their threshold"
    )
    return checkpoint.write(
        path,
        model,
        tokenizer,
        labels,
        golden,
        checkpoint.Description(
            data=data,
            taxonomy=taxonomy,
            text=recipe,
            max_tokens=shape.max_tokens,
            pad_multiple=PAD_MULTIPLE,
            temperature=calibrated.temperature,
            threshold=calibrated.threshold,
            thresholds={
                given.label_ids[label]: least for label, least in calibrated.thresholds.items()
            },
            versions=versions(),
            report={
                "seconds": clock.laps,
                "seed": seed,
                "shape": asdict(shape),
                "schedule": asdict(schedule),
                "parameters": sum(weights.numel() for weights in model.parameters()),
                "rows": {
                    "training": len(training.texts),
                    "validation": len(validation.texts),
                    "without_text": given.without_text,
                },
                "labels": len(labels),
                "validation": figures,
            },
        ),
    )


def encode(tokeniser: Tokeniser, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """Token ids of each text, as serving makes them."""
    rows, _ = tokeniser.encode(list(texts))
    return [np.array(row, dtype=np.int64) for row in rows]


def measured(
    validation: Examples,
    logits: NDArray[np.float32],
    right: NDArray[np.bool_],
    certain: NDArray[np.bool_],
) -> dict[str, Any]:
    """Accuracy (all, by language, among the top 3), macro F1 (over what is a label or an answer)
    and what the thresholds do to them.
    """
    best = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    languages = np.array(validation.languages)
    return {
        "accuracy": round(float(right.mean()), 4),
        "macro_f1": round(_macro_f1(validation.labels, best[:, 0]), 4),
        "top_3": round(float((best == validation.labels[:, None]).any(axis=1).mean()), 4),
        "by_language": {
            language or "unknown": {
                "accuracy": round(float(right[languages == language].mean()), 4),
                "offers": int((languages == language).sum()),
            }
            for language in sorted(set(validation.languages))
        },
        "coverage": round(float(certain.mean()), 4),
        "precision": round(float(right[certain].mean()), 4) if certain.any() else 0.0,
    }


def _macro_f1(labels: NDArray[np.int64], answers: NDArray[np.int64]) -> float:
    """As sklearn.metrics.f1_score(average="macro")."""
    most = int(max(labels.max(), answers.max())) + 1
    right = np.bincount(labels[labels == answers], minlength=most)
    occurring = np.bincount(labels, minlength=most) + np.bincount(answers, minlength=most)
    return float((2 * right[occurring > 0] / occurring[occurring > 0]).mean())


def golden_texts(
    training: Examples, rows: fit.Rows, validation: Examples, held: fit.Rows
) -> dict[str, str]:
    """Texts of every length and language, mostly such as the model was not trained on, each with
    its language.

    `rows` and `held` are the token ids of the two. The longest and the shortest text are always
    among them, and so is next to nothing.
    """
    by_length = sorted(
        zip(map(len, (*rows, *held)), (*training.texts, *validation.texts), strict=True)
    )
    chosen = [by_length[-1][1], by_length[0][1], "a", "?"]
    groups: dict[tuple[int, str], list[str]] = {}
    for row, text, language in zip(held, validation.texts, validation.languages, strict=True):
        groups.setdefault((-(-len(row) // PAD_MULTIPLE), language), []).append(text)
    # In turn from each group of a length and a language, until there are enough.
    depth = 0
    while len(chosen) < GOLDEN_TEXTS and any(len(texts) > depth for texts in groups.values()):
        for _, texts in sorted(groups.items()):
            if len(texts) > depth and len(chosen) < GOLDEN_TEXTS:
                chosen.append(texts[depth])
        depth += 1
    languages = dict(
        zip(
            (*training.texts, *validation.texts),
            (*training.languages, *validation.languages),
            strict=True,
        )
    )
    return {text: languages.get(text, "") for text in chosen}


class Stopwatch:
    """Seconds a stage, by the wall clock."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """End the stage of that name."""
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 2)
        self._last = now
