"""Is the artefact the model that was trained? Its settings and answers against the checkpoint's.

An export can go wrong without any error: dropout left active, weights in the wrong place, labels
swapped, another truncation, a range of int8 that saturates. Mostly only answers show it, and only
answers at every length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from classifier.artifact import Artifact, Golden, Label
from classifier.batching import plan
from classifier.encoder import OfferEncoder
from classifier.engines import Engine
from classifier.precision import LOGIT_BOUND, NEIGHBOUR_BOUND
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


NOTHING = ("", ".", "-", "\N{NO-BREAK SPACE}")
"""Texts with next to nothing in them."""

SAME = (
    "kind", "data", "taxonomy", "text", "max_tokens", "pad_multiple", "temperature", "threshold",
    "thresholds",
)  # fmt: skip
"""What an artefact's manifest has from its checkpoint."""


class Reached(msgspec.Struct, frozen=True):
    """How far the answers to some of the texts were apart."""

    texts: int
    largest_difference: float
    same_winner: float  # share of texts; a tie that fell the other way counts against it


class Verification(msgspec.Struct, frozen=True):
    """What was compared and how far apart the answers were, over every way of asking."""

    texts: int
    lengths: int  # how many different numbers of tokens
    precision: str
    bound: float  # largest difference of a logit that would have passed
    largest_difference: float  # between a logit of the artefact and of the checkpoint
    neighbour_bound: float  # as `bound`, for the next
    largest_neighbour_difference: float  # between a text's logit alone and in a batch
    top1_agreement: float  # share of texts, ties within the bound counted as agreement
    same_winner: float  # share of texts, ties counted as they fell
    by_length: dict[str, Reached]  # by the number of tokens, padded to the artefact's multiple
    by_language: dict[str, Reached]  # of the golden texts, where those say theirs
    verified_on: str = ""  # what computed the artefact's answers; "" where nobody said


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
    model: OfferEncoder,
    tokeniser: Tokeniser,
    labels: Sequence[Label],
    texts: Mapping[str, str] | Sequence[str],
) -> tuple[Golden, ...]:
    """The golden questions and what the model answers to them.

    `texts` may say the language of each: text -> language, "" where it has none.
    """
    rows, _ = tokeniser.encode(list(texts))
    golden = []
    for text, logits in zip(texts, reference_logits(model, rows), strict=True):
        best = np.argsort(-logits, kind="stable")[:GOLDEN_LOGITS]
        golden.append(
            Golden(
                text,
                labels[best[0]].id,
                {labels[i].id: float(logits[i]) for i in best},
                texts[text] if isinstance(texts, Mapping) else "",
            )
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
    checkpoint: Checkpoint,
    artifact: Artifact,
    engine: Engine,
    wide: Wide | None = None,
    verified_on: str = "",
) -> Verification:
    """Compare the artefact's encoder, as its engine computes it, with the checkpoint's.

    On the golden texts, on the longest text and on next to none, and on a row of every length: each
    alone, in batches of its own length range, and among longer ones. Raises VerificationError when
    a logit is not finite or lies beyond the precision's bound, when another category wins by more
    than that, and when a text's answer moves with its neighbours; when the manifest, labels, golden
    questions or tokens are not the checkpoint's, or the graph is none to be served; and when the
    checkpoint's encoder, with the artefact's `wide` part if it has one, answers otherwise than in
    training.
    """
    name = f"artefact of checkpoint {checkpoint.hash[:16]} for {artifact.manifest.target}"
    _check_settings(name, checkpoint, artifact)
    _check_languages(name, checkpoint)
    manifest = artifact.manifest
    tokeniser = Tokeniser.from_file(artifact.path / "tokenizer.json", manifest.max_tokens)
    texts = [question.text for question in checkpoint.golden]
    tokens = _tokens(name, checkpoint, tokeniser, texts)
    model = checkpoint.encoder()
    _check_graph(name, artifact, model)
    rows = probes(tokens, manifest.max_tokens)
    expected = reference_logits(model, rows)
    whole = expected[: len(texts)]
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
    bound, neighbour_bound = LOGIT_BOUND[engine.precision], NEIGHBOUR_BOUND[engine.precision]
    answers = {
        way: engine_logits(engine, rows, calls, tokeniser.pad_id) for way, calls in ways.items()
    }
    answers |= _by_graph(engine, rows, answers["alone"], tokeniser.pad_id)
    agreement = 1.0
    for way, found in answers.items():
        agreement = min(agreement, compare(f"{name}, {way}", expected, found, bound))
    neighbours = _differences(answers["alone"], answers.values())
    if neighbours.max() > neighbour_bound:
        raise VerificationError(
            f"{name}: neighbours move the answer to row {neighbours.argmax()} of {len(rows)} by"
            f" {neighbours.max():.2g} (at most {neighbour_bound:.2g})"
        )
    difference = _differences(expected, answers.values())
    same = np.logical_and.reduce(
        [found.argmax(axis=1) == expected.argmax(axis=1) for found in answers.values()]
    )
    padded = [
        str(min(-(-length // manifest.pad_multiple) * manifest.pad_multiple, manifest.max_tokens))
        for length in lengths
    ]
    languages = [question.language for question in checkpoint.golden]
    return Verification(
        texts=len(rows),
        lengths=len(set(lengths)),
        precision=engine.precision,
        bound=bound,
        largest_difference=float(difference.max()),
        neighbour_bound=neighbour_bound,
        largest_neighbour_difference=float(neighbours.max()),
        top1_agreement=agreement,
        same_winner=float(same.mean()),
        by_length=_reached(padded, difference, same),
        by_language=_reached(languages, difference, same),
        verified_on=verified_on,
    )


def _by_graph(
    engine: Engine, rows: Sequence[Sequence[int]], alone: Logits, pad_id: int
) -> dict[str, Logits]:
    """Of an engine with a graph for each of several shapes: the rows that fit, by each of them.

    However the engine deals calls out, some graph may get none of these. Rows that do not fit stay
    as they were `alone`.
    """
    answers = {}
    for bucket in getattr(engine, "buckets", ()):
        fitting = [i for i, row in enumerate(rows) if len(row) <= bucket.length]
        calls = [
            list(range(first, min(first + bucket.batch, len(fitting))))
            for first in range(0, len(fitting), bucket.batch)
        ]
        found = alone.copy()
        if fitting:
            one: Any = engine
            found[fitting] = engine_logits(
                one.only(bucket), [rows[i] for i in fitting], calls, pad_id
            )
        answers[f"by {bucket.file}"] = found
    return answers


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


def _check_settings(name: str, checkpoint: Checkpoint, artifact: Artifact) -> None:
    """What is written beside the model must be what the checkpoint says."""
    if artifact.manifest.checkpoint != checkpoint.hash:
        raise VerificationError(
            f"{name}: {artifact.path} was made of checkpoint {artifact.manifest.checkpoint[:16]}"
        )
    for setting in SAME:
        found, known = (getattr(x, setting) for x in (artifact.manifest, checkpoint.description))
        if found != known:
            raise VerificationError(
                f"{name}: its {setting} is {_short(found)}, the checkpoint's is {_short(known)}"
            )
    if artifact.labels != checkpoint.labels:
        raise VerificationError(f"{name}: its labels are not the checkpoint's")
    if artifact.golden != checkpoint.golden:
        raise VerificationError(f"{name}: its golden questions are not the checkpoint's")


def _check_languages(name: str, checkpoint: Checkpoint) -> None:
    """Of each language that validation had, a golden text that says so."""
    asked = {question.language for question in checkpoint.golden if question.language}
    validation = checkpoint.description.report.get("validation")
    figures = validation.get("by_language") if isinstance(validation, dict) else None
    had = set(figures or ()) - {"unknown"}
    if had - asked:
        raise VerificationError(
            f"{name}: no golden text of the checkpoint is in {', '.join(sorted(had - asked))},"
            " which its validation set has"
            + ("" if asked else ": none says its language, so train it anew")
        )


def _check_graph(name: str, artifact: Artifact, model: OfferEncoder) -> None:
    """What answers do not show, of a model that is a graph."""
    if not artifact.manifest.target.startswith("onnx-"):
        return
    from compile import onnx

    config: Any = model.encoder.config
    file = artifact.path / onnx.FILE
    try:
        onnx.check_served(file, config.num_hidden_layers, artifact.manifest.precision)
    except onnx.ExportError as error:
        raise VerificationError(f"{name}: {error}") from error


def _tokens(
    name: str, checkpoint: Checkpoint, tokeniser: Tokeniser, texts: list[str]
) -> list[list[int]]:
    """Ids of the texts, of all of them in one and of next to nothing, as both cut them."""
    asked = [*texts, " ".join(texts), *NOTHING]
    # A tokeniser that minds case, or does not, shows on few of the texts as they are.
    cased = [text.swapcase() for text in texts]
    tokens, _ = tokeniser.encode(asked + cased)
    if tokens != checkpoint.tokeniser().encode(asked + cased)[0]:
        raise VerificationError(f"{name}: it cuts texts into other tokens than the checkpoint")
    kept = tokens[: len(texts)]
    # One without special tokens makes nothing at all of nothing, and no one asks a model that.
    return kept + [row for row in tokens[len(texts) : len(asked)] if row]


def _differences(expected: Logits, others: Iterable[Logits]) -> Logits:
    """The largest of each row's logits, over all the others (rows,)."""
    found = np.stack([np.abs(found - expected).max(axis=1) for found in others])
    return np.asarray(found.max(axis=0), dtype=np.float32)


def _reached(
    groups: Sequence[str], difference: Logits, same: NDArray[np.bool_]
) -> dict[str, Reached]:
    """By group, of the first rows that have one; "" is none."""
    of = np.array(groups)
    found = {}
    for group in sorted(set(groups) - {""}, key=lambda name: (len(name), name)):
        rows = np.flatnonzero(of == group)
        found[group] = Reached(
            len(rows), float(difference[rows].max()), round(float(same[rows].mean()), 4)
        )
    return found


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
