"""Refit: a new head on a student's frozen encoder, for when the taxonomy has changed.

The encoder's embeddings of the offers are computed once and kept, so the next change costs a head
alone: minutes where the whole training takes hours. What the encoder never learnt to tell apart no
head will, so that training still follows, by its schedule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from tokenizers import Tokenizer

from classifier import cpu
from classifier.encoder import OfferEncoder
from classifier.progress import bar
from classifier.tokens import Tokeniser
from classifier.whole_file import appearing
from compile import checkpoint
from compile.build import versions
from compile.checkpoint import Checkpoint, CheckpointError
from compile.verify import golden_answers
from training import calibration, head, held_out, priors, sets, taxonomy
from training.embeddings import Store, embedder
from training.finetuning import CHECKPOINT, results
from training.head import Head
from training.parameters import RefitParameters
from training.scratch import Stopwatch, encode, golden_texts, measured
from training.sets import Say, Sets
from training.stage import Record, Stage, StageError, hash_inputs

VERSION = 1

EMBEDDINGS = "embeddings"
"""Where a student's embeddings are kept, in its stage's directory: every refit finds them."""


class Change(NamedTuple):
    """The student's labels against those of the training set, sorted."""

    kept: list[str]
    new: list[str]
    gone: list[str]


def make(
    parameters: RefitParameters,
    student: Path,
    train: Path,
    validation: Path,
    edition: Path | None,
    out: Path,
    say: Say,
) -> Record:
    """Fit a head for the labels of `train`, and write `out`/checkpoint, calibrated on `validation`.

    `student` is the directory of its stage, whose recipe makes the texts, and `edition` the
    taxonomy that the labels are of. Raises StageError, DataError.
    """
    clock = Stopwatch()
    paths = {"train": train, "validation": validation, "taxonomy": edition}
    inputs = hash_inputs({name: path for name, path in paths.items() if path is not None})
    try:
        known = Checkpoint.load(student / CHECKPOINT)
        if (kind := known.description.kind) != "encoder":
            raise StageError(f"{student}: is {kind}: refit the student that it was made of")
        stage = Stage("refit", out, parameters, inputs | {"student": known.hash}, version=VERSION)
        if record := stage.done():
            return record
        parts = stage.begin()
        model = known.encoder()
    except CheckpointError as error:
        raise StageError(str(error)) from error
    torch.set_num_threads(cpu.quota())
    given = sets.read(known.description.text, train, validation, edition, say)
    if not given.validation.texts:
        raise StageError(f"{validation}: has no offer of any label of {train}")
    change = _change(known, given, train, edition, say)
    clock.lap("read")

    embedded, computed = _embedded(known, model, given, student / EMBEDDINGS, say)
    clock.lap("embed")
    rows = len(given.training.texts)
    fitted, decay = _fitted(known, model, given, embedded, parameters, parts)
    clock.lap("fit")

    held = embedded[rows:]
    logits = fitted(held)
    if _learns_evenly(known, parameters):
        logits, shift = priors.adapted(logits, given.validation.labels, given.training.labels)
        fitted = fitted._replace(bias=fitted.bias + shift)
    kept = held_out.write(out, given.validation, logits, known.description.text.prefix)
    calibrated = calibration.fit(logits, given.validation.labels, parameters.right_share)
    figures = measured(given.validation, logits, calibrated.right, calibrated.certain)
    figures |= _apart(known, Head.of(model), given, held, calibrated.right)
    say(
        f"refit: {figures['accuracy']:.1%} of {len(held):,} right in validation,"
        f" {figures['precision']:.1%} of the {figures['coverage']:.1%} above their threshold"
    )
    origin = {
        "stage": "refit",
        "parameters": parameters.model_dump(mode="json"),
        "student": {"checkpoint": known.hash, "taxonomy": known.description.taxonomy},
        "encoder": known.description.report.get("encoder"),
        "encoder_sha256": encoder_sha256(model),
        "change": change._asdict(),
        "decay": decay,
        "validation": figures,
    }
    written = _write(known, fitted.on(model), given, calibrated, out, origin)
    clock.lap("write")
    return stage.finish(
        {
            "checkpoint": written.hash,
            "student": known.hash,
            "encoder_sha256": origin["encoder_sha256"],
            "labels": {"kept": len(change.kept), "new": change.new, "gone": change.gone},
            "texts": {"training": rows, "validation": len(held), "embedded": computed},
            "decay": decay,
            "temperature": calibrated.temperature,
            "validation": figures,
            "seconds": clock.laps,
        },
        results(written) | {held_out.FILE: kept},
    )


def _learns_evenly(known: Checkpoint, parameters: RefitParameters) -> bool:
    """Whether the student answers by validation's shares, and no balancing is in the way."""
    own = known.description.report.get("parameters", {})
    balance = parameters.balance or own.get("balance", "none")
    return own.get("prior") == "validation" and balance == "none"


def encoder_sha256(model: OfferEncoder) -> str:
    """A hash of the encoder's weights, without the head: with equal ones the space is the same."""
    digest = hashlib.sha256()
    for name, weights in sorted(model.encoder.state_dict().items()):
        array = weights.cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _change(known: Checkpoint, given: Sets, train: Path, edition: Path | None, say: Say) -> Change:
    """What becomes of the student's labels. Raises StageError where one has nothing to learn of."""
    old, now = {label.id for label in known.labels}, {label.id for label in given.labels}
    change = Change(sorted(old & now), sorted(now - old), sorted(old - now))
    if edition is not None:
        _check_empty(known, old, now, train, edition, say)
    say(f"refit: {len(change.kept):,} labels stay{_named('new', change.new)}"
        f"{_named('gone', change.gone)}")  # fmt: skip
    asked = {given.validation.label_ids[label] for label in given.validation.labels.tolist()}
    if silent := sorted(set(change.new) - asked):
        say(f"{len(silent):,} new categories have no offer in validation, {silent[0]!r} for one")
    return change


def _check_empty(
    known: Checkpoint, old: set[str], now: set[str], train: Path, edition: Path, say: Say
) -> None:
    """Categories of the edition that no model could answer after this. One that was there and empty
    when the student was trained is only said.
    """
    latest, before = taxonomy.load(edition), known.description.taxonomy
    empty = set(taxonomy.label_ids(latest)) - now
    had = empty  # where the student's edition led elsewhere, what is new is not known
    if before in latest.versions():
        had = empty & taxonomy.remap_from(latest, before).routes.keys()
    for refused, what in ((empty & old, "that the student answers"), (empty - had, "that is new")):
        if refused:
            raise StageError(
                f"{train}: has no offer of {min(refused)!r}, a category of {edition} {what}"
                f" ({len(refused)} in all): label some"
            )
    if empty:
        say(f"{train}: {len(empty):,} categories of {edition} have no offer and get no answer")


def _named(what: str, labels: Sequence[str], most: int = 5) -> str:
    names = f" ({', '.join(labels[:most])}{', ...' if len(labels) > most else ''})"
    return f", {len(labels):,} {what}{names if labels else ''}"


def _embedded(
    known: Checkpoint, model: OfferEncoder, given: Sets, kept: Path, say: Say
) -> tuple[NDArray[np.float16], int]:
    """Embeddings of the training texts, then of validation's, and how many had to be computed."""
    texts = [*given.training.texts, *given.validation.texts]
    if torch.cuda.is_available():
        model.cuda()
    ask, computed = embedder(model, known.tokeniser()), 0

    def counted(some: list[str]) -> NDArray[np.float32]:
        nonlocal computed
        computed += len(some)
        return ask(some)

    with bar("the student's embeddings") as show:
        found = Store(kept, known.hash).get(texts, counted, show)
    model.cpu()
    say(f"refit: {computed:,} of {len(set(texts)):,} texts had to be embedded")
    return found, computed


def _fitted(
    known: Checkpoint,
    model: OfferEncoder,
    given: Sets,
    embedded: NDArray[np.float16],
    parameters: RefitParameters,
    parts: Path,
) -> tuple[Head, float]:
    """The head that is best in validation, and its decay; of equal ones that of the larger."""
    own = dict(known.description.report.get("parameters", {}))
    own |= parameters.model_dump(include={"label_smoothing", "balance"}, exclude_none=True)
    rows, labels = len(given.training.texts), given.training.labels
    fitted = head.starting(
        Head.of(model),
        [label.id for label in known.labels],
        given.training.label_ids,
        embedded[:rows],
        labels,
    )
    found: list[tuple[float, float, Head]] = []
    decays = sorted(set(parameters.decays), reverse=True)
    with bar("head") as show:
        for number, decay in enumerate(decays, start=1):
            part = parts / f"head-{number}.safetensors"
            if not part.exists():
                # From the strongest decay on, each fit starts where the one before it ended.
                fitted = head.fit(
                    embedded[:rows],
                    labels,
                    fitted,
                    decay=decay,
                    iterations=parameters.iterations,
                    label_smoothing=own.get("label_smoothing", 0.0),
                    balance=own.get("balance", "none"),
                )
                with appearing(part) as file:
                    file.write(save(fitted._asdict()))
            fitted = Head(**load_file(part))
            right = fitted(embedded[rows:]).argmax(axis=1) == given.validation.labels
            found.append((float(right.mean()), decay, fitted))
            show(number / len(decays), number, f"decay {decay:g}: {right.mean():.1%} right")
    _, decay, best = max(found, key=lambda each: each[:2])
    if not all(np.isfinite(array).all() for array in best):
        raise StageError("refit: the head has weights that are not finite")
    return best, decay


def _apart(
    known: Checkpoint,
    old: Head,
    given: Sets,
    held: NDArray[np.float16],
    right: NDArray[np.bool_],
) -> dict[str, Any]:
    """Validation accuracy on labels that stay, by the student and by the refit, and on new ones."""
    old_ids = np.array([label.id for label in known.labels])
    truths = np.array(given.validation.label_ids)[given.validation.labels]
    stays = np.isin(truths, old_ids)
    before = old_ids[old(held).argmax(axis=1)] == truths

    def share(some: NDArray[np.bool_]) -> float | None:
        return round(float(some.mean()), 4) if len(some) else None

    return {
        "kept_labels": {
            "offers": int(stays.sum()),
            "student": share(before[stays]),
            "refit": share(right[stays]),
        },
        "new_labels": {"offers": int((~stays).sum()), "refit": share(right[~stays])},
    }


def _write(
    known: Checkpoint,
    model: OfferEncoder,
    given: Sets,
    calibrated: calibration.Calibration,
    out: Path,
    origin: dict[str, Any],
) -> Checkpoint:
    """The student's checkpoint with another head, and what follows from that."""
    tokenizer = Tokenizer.from_file(str(known.path / "tokenizer.json"))
    tokeniser = Tokeniser(tokenizer, known.description.max_tokens)
    training, validation = given.training, given.validation
    rows, held = (encode(tokeniser, part.texts) for part in (training, validation))
    questions = golden_texts(training, rows, validation, held)
    return checkpoint.write(
        out / CHECKPOINT,
        model,
        tokenizer,
        given.labels,
        golden_answers(model, tokeniser, given.labels, questions),
        msgspec.structs.replace(
            known.description,
            data={"rows": len(rows), "sha256": training.sha256()},
            taxonomy=given.taxonomy,
            temperature=calibrated.temperature,
            threshold=calibrated.threshold,
            thresholds={
                training.label_ids[label]: least for label, least in calibrated.thresholds.items()
            },
            versions=versions(),
            report=origin
            | {
                "weights": sum(weights.numel() for weights in model.parameters()),
                "rows": {
                    "training": len(rows),
                    "validation": len(held),
                    "without_text": training.without_text,
                },
                "labels": len(given.labels),
            },
        ),
    )
