"""Is the artefact the model that was trained? Its answers against the checkpoint's.

An export can go wrong without any error: dropout left active, weights in the wrong place, labels
swapped, another truncation. Only answers show it, and only answers at every length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from classifier.artifact import Artifact, Golden, Label
from classifier.batching import plan
from classifier.encoder import OfferEncoder
from classifier.engines import Engine
from classifier.precision import LOGIT_BOUND
from classifier.tokens import Tokeniser, pad
from compile.checkpoint import Checkpoint

if TYPE_CHECKING:
    from classifier.wide import Wide

GOLDEN_LOGITS = 5
"""A golden answer keeps so many of the highest logits: enough to tell models apart, few to store"""

BATCH_TOKENS = 1024

Logits = NDArray[np.float32]


class VerificationError(Exception):
    """The artefact does not answer as its checkpoint does. The message is one line."""


class Verification(msgspec.Struct, frozen=True):
    """What was compared and how far apart the answers were."""

    texts: int
    lengths: int  # how many different numbers of tokens
    precision: str
    bound: float  # largest difference of a logit that would have passed
    largest_difference: float  # between a logit of the artefact and of the checkpoint
    largest_neighbour_difference: float  # between a text's logit alone and in a batch
    top1_agreement: float  # share of texts, ties within the bound counted as agreement


def reference_logits(model: OfferEncoder, rows: Sequence[Sequence[int]]) -> Logits:
    """What the checkpoint answers (rows, labels), each row of token ids asked alone: no padding."""
    model.eval()
    answers = []
    with torch.inference_mode(), one_thread():
        for row in rows:
            ids = torch.tensor([row], dtype=torch.int64)
            answers.append(model(ids, torch.ones_like(ids))[0].numpy())
    return np.stack(answers)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: for so little work, handing it out costs more than doing it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def golden_answers(
    model: OfferEncoder, tokeniser: Tokeniser, labels: Sequence[Label], texts: Sequence[str]
) -> tuple[Golden, ...]:
    """The golden questions and what the model answers to them."""
    rows, _ = tokeniser.encode(list(texts))
    golden = []
    for text, logits in zip(texts, reference_logits(model, rows), strict=True):
        best = np.argsort(-logits, kind="stable")[:GOLDEN_LOGITS]
        golden.append(
            Golden(text, labels[best[0]].id, {labels[i].id: float(logits[i]) for i in best})
        )
    return tuple(golden)


def engine_logits(
    engine: Engine, rows: Sequence[Sequence[int]], calls: Sequence[Sequence[int]], pad_id: int
) -> Logits:
    """What the engine answers when it is asked the rows by these calls (indices into `rows`)."""
    answers: dict[int, NDArray[np.float32]] = {}
    for call in calls:
        batch = [list(rows[i]) for i in call]
        logits = engine.logits(*pad(batch, max(map(len, batch)), pad_id))
        answers.update(zip(call, logits, strict=True))
    return np.stack([answers[i] for i in range(len(rows))])


def probes(rows: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """The rows, and one row of tokens from them for every length up to the longest."""
    stream = [token for row in rows for token in row]
    while len(stream) < 2 * max_tokens:
        stream += stream
    starts = [(7 * length) % (len(stream) - max_tokens) for length in range(max_tokens + 1)]
    made = [stream[starts[n] : starts[n] + n] for n in range(1, max_tokens + 1)]
    return [list(row) for row in rows] + made


def verify(
    checkpoint: Checkpoint, artifact: Artifact, engine: Engine, wide: Wide | None = None
) -> Verification:
    """Compare the artefact's encoder, as its engine computes it, with the checkpoint's.

    On the golden texts and on a row of every length: each alone, in batches of its own length
    range, and among longer ones. Raises VerificationError when a logit is not finite or lies
    beyond the precision's bound, or when another category wins by more than that; and when the
    checkpoint's encoder, with the artefact's `wide` part if it has one, answers otherwise than in
    training.
    """
    name = f"artefact of checkpoint {checkpoint.hash[:16]} for {artifact.manifest.target}"
    if artifact.labels != checkpoint.labels:
        raise VerificationError(f"{name}: its labels are not the checkpoint's")
    manifest = artifact.manifest
    tokeniser = Tokeniser.from_file(artifact.path / "tokenizer.json", manifest.max_tokens)
    texts = [question.text for question in checkpoint.golden]
    tokens, _ = tokeniser.encode(texts)
    if tokens != checkpoint.tokeniser().encode(texts)[0]:
        raise VerificationError(f"{name}: it cuts texts into other tokens than the checkpoint")
    rows = probes(tokens, manifest.max_tokens)
    expected = reference_logits(checkpoint.encoder(), rows)
    whole = expected[: len(tokens)]
    _check_training_answers(
        name, checkpoint, whole if wide is None else whole + wide.answers(texts)
    )

    lengths = [len(row) for row in rows]
    by_length = plan(lengths, BATCH_TOKENS, manifest.pad_multiple, manifest.max_tokens)
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    ways = {
        "alone": [[i] for i in range(len(rows))],
        "in batches by length": [call.rows for call in by_length],
        "in mixed batches": [order[i : i + 16] for i in range(0, len(order), 16)],
    }
    bound = LOGIT_BOUND[engine.precision]
    answers = {
        way: engine_logits(engine, rows, calls, tokeniser.pad_id) for way, calls in ways.items()
    }
    agreement = 1.0
    for way, found in answers.items():
        agreement = min(agreement, compare(f"{name}, {way}", expected, found, bound))
    alone = answers["alone"]
    return Verification(
        texts=len(rows),
        lengths=len(set(lengths)),
        precision=engine.precision,
        bound=bound,
        largest_difference=_largest(expected, answers.values()),
        largest_neighbour_difference=_largest(alone, answers.values()),
        top1_agreement=agreement,
    )


def compare(name: str, expected: Logits, found: Logits, bound: float) -> float:
    """The share of rows with the same winner; raises VerificationError beyond the bound."""
    if found.shape != expected.shape:
        raise VerificationError(f"{name}: {found.shape} logits instead of {expected.shape}")
    if not np.isfinite(found).all():
        raise VerificationError(f"{name}: a logit is not finite")
    difference = np.abs(found - expected).max(axis=1)
    worst = int(difference.argmax())
    # The winner's lead in the checkpoint's own eyes over whom the artefact prefers.
    winners = found.argmax(axis=1)
    lead = expected.max(axis=1) - expected[np.arange(len(expected)), winners]
    agreement = float((lead <= 2 * bound).mean())
    if difference[worst] > bound or agreement < 1:
        raise VerificationError(
            f"{name}: row {worst} of {len(expected)} differs by {difference[worst]:.2g}"
            f" (at most {bound:.2g}), and the winner is the same in {agreement:.1%} of rows"
        )
    return agreement


def _check_training_answers(name: str, checkpoint: Checkpoint, expected: Logits) -> None:
    """The weights that were read must answer as training saw its model answer, label by label."""
    position = {label.id: index for index, label in enumerate(checkpoint.labels)}
    bound = LOGIT_BOUND["fp32"]
    for question, logits in zip(checkpoint.golden, expected, strict=True):
        for label, value in question.logits.items():
            difference = abs(float(logits[position[label]]) - value)
            if not difference <= bound:
                raise VerificationError(
                    f"{name}: the checkpoint's weights answer {question.text[:40]!r} otherwise than"
                    f" in training: {label} is {difference:.2g} off, at most {bound:.2g}"
                )


def _largest(expected: Logits, others: object) -> float:
    assert hasattr(others, "__iter__")
    return max(float(np.abs(found - expected).max()) for found in others)
