"""From a pretrained encoder to a calibrated checkpoint: what teacher and student have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from classifier.encoder import OfferEncoder, longest_input
from classifier.tokens import Tokeniser
from compile import checkpoint
from compile.build import versions
from compile.checkpoint import Checkpoint
from compile.verify import golden_answers
from training import calibration, held_out, loop, priors, processes, pruning
from training.distillation import UNLABELLED, Learner
from training.embeddings import answers, embed
from training.encoders import Encoder
from training.examples import joined
from training.fit import Rows
from training.loop import Data
from training.parameters import EncoderParameters, LoopParameters
from training.pruning import PruningError
from training.scratch import PAD_MULTIPLE, encode, golden_texts, measured
from training.sets import Say, Sets
from training.stage import StageError

CHECKPOINT = "checkpoint"
"""The result of a stage, in its directory."""


class Lesson(NamedTuple):
    """What a teacher adds: a place for every text, and texts that nobody labelled."""

    training: NDArray[np.float16]  # (training texts, the teacher's width)
    validation: NDArray[np.float16]  # likewise; empty where they are not learnt
    unlabelled: list[str]
    unlabelled_targets: NDArray[np.float16]
    weight: float


def finetune(
    name: str,
    encoder: Encoder,
    sets: Sets,
    parameters: EncoderParameters,
    parts: Path,
    out: Path,
    say: Say,
    *,
    lesson: Lesson | None = None,
    refit: LoopParameters | None = None,
    origin: dict[str, Any],
) -> Checkpoint:
    """Train the encoder under a new head, and write it to `out`, calibrated on validation.

    What it then answers to validation is kept beside it (training.held_out), and with `refit` it is
    trained on, on validation too. Its vocabulary is pruned first where `parameters` say so. `parts`
    keeps the loop's checkpoints; `origin` goes into the report. Several processes train together
    and the first one writes. Raises StageError.
    """
    if parameters.batch % processes.count():
        raise StageError(
            f"{name}: a batch of {parameters.batch} cannot be dealt out evenly among"
            f" {processes.count()} processes: change {name}.batch"
        )
    torch.set_num_threads(processes.threads())
    encoder, pruned = _pruned(name, encoder, sets, parameters, lesson, say)
    torch.manual_seed(parameters.seed)
    model = OfferEncoder(encoder.model, len(sets.labels))
    width = None if lesson is None else lesson.training.shape[1]
    learner = Learner(model, width)
    tokeniser = Tokeniser(encoder.tokenizer, parameters.max_tokens)
    longest = longest_input(model)
    if longest is not None and parameters.max_tokens > longest:
        raise StageError(
            f"max_tokens is {parameters.max_tokens}, but {parameters.encoder} has positions for"
            f" {longest}"
        )
    rows = encode(tokeniser, sets.training.texts)
    held = encode(tokeniser, sets.validation.texts)
    data = _data(tokeniser, sets, rows, lesson)
    say(
        f"{name}: {len(data.rows):,} texts of {len(sets.labels):,} categories,"
        f" {np.mean([len(row) for row in data.rows]):.0f} tokens each"
    )
    weight = 0.0 if lesson is None else lesson.weight
    try:
        with processes.bar(name) as show:
            loop.fit(
                learner,
                data,
                parameters,
                tokeniser.pad_id,
                parts / "loop",
                loss_weight=weight,
                show=show,
            )
        logits = answers(model, embed(model, held, tokeniser.pad_id))
        learnt = sets.training.labels
        if refit is not None:
            with processes.bar(f"{name}, on validation too") as show:
                loop.fit(
                    learner,
                    _refitted(sets, rows, held, lesson),
                    refit,
                    tokeniser.pad_id,
                    parts / "refit",
                    loss_weight=weight,
                    show=show,
                )
            learnt = np.concatenate([learnt, sets.validation.labels])
    except FloatingPointError as error:
        raise StageError(f"{name}: {error}; a lower rate may help") from error
    if parameters.prior == "validation":
        before, labels = sets.training.labels, sets.validation.labels
        logits, shift = priors.adapted(logits, labels, before, learnt)
        with torch.no_grad():
            model.head.bias.add_(torch.from_numpy(shift).to(model.head.bias.device))
    with processes.lead_first():
        if not processes.leads():
            return Checkpoint.load(out / CHECKPOINT)
        return _write(
            name,
            model,
            encoder,
            (rows, held),
            logits,
            sets,
            parameters,
            out,
            say,
            refitted=refit is not None,
            unlabelled=len(data.rows) - len(rows),
            origin={"pruned": pruned, **origin},
        )


def _write(
    name: str,
    model: OfferEncoder,
    encoder: Encoder,
    encoded: tuple[Rows, Rows],
    logits: NDArray[np.float32],
    sets: Sets,
    parameters: EncoderParameters,
    out: Path,
    say: Say,
    *,
    refitted: bool,
    unlabelled: int,
    origin: dict[str, Any],
) -> Checkpoint:
    """The trained model as a checkpoint, calibrated by its `logits` of validation (rows, labels)
    from before it learnt that. `encoded` are the ids of training's texts and of validation's.
    """
    tokeniser = Tokeniser(encoder.tokenizer, parameters.max_tokens)
    rows, held = encoded
    held_out.write(out, sets.validation, logits, parameters.prefix)
    calibrated = calibration.fit(logits, sets.validation.labels, parameters.right_share)
    figures = measured(sets.validation, logits, calibrated.right, calibrated.certain)
    say(
        f"{name}: {figures['accuracy']:.1%} of {len(held):,} right in validation,"
        f" {figures['precision']:.1%} of the {figures['coverage']:.1%} above their threshold"
    )
    model.cpu()
    label_ids = sets.training.label_ids
    questions = golden_texts(sets.training, rows, sets.validation, held)
    learnt = joined(sets.training, sets.validation) if refitted else sets.training
    return checkpoint.write(
        out / CHECKPOINT,
        model,
        encoder.tokenizer,
        sets.labels,
        golden_answers(model, tokeniser, sets.labels, questions),
        checkpoint.Description(
            data={"rows": len(learnt.texts), "sha256": learnt.sha256()},
            taxonomy=sets.taxonomy,
            text=parameters.recipe(),
            max_tokens=parameters.max_tokens,
            pad_multiple=PAD_MULTIPLE,
            temperature=calibrated.temperature,
            threshold=calibrated.threshold,
            thresholds={label_ids[label]: least for label, least in calibrated.thresholds.items()},
            versions=versions(),
            report={
                "stage": name,
                "parameters": parameters.model_dump(mode="json"),
                "trained_in": "bf16" if loop.in_bf16(parameters.precision) else "fp32",
                "weights": sum(weights.numel() for weights in model.parameters()),
                "rows": {
                    "training": len(rows),
                    "fitted": len(learnt.texts),
                    "unlabelled": unlabelled,
                    "validation": len(held),
                    "without_text": sets.training.without_text,
                },
                "labels": len(sets.labels),
                "validation": figures,
                **origin,
            },
        ),
    )


def results(written: Checkpoint) -> dict[str, Path]:
    """The files of a checkpoint, by their names in the stage's directory."""
    files = (*written.description.files, checkpoint.DESCRIPTION)
    return {f"{CHECKPOINT}/{file}": written.path / file for file in files}


def summary(written: Checkpoint) -> dict[str, Any]:
    """What a stage says of the checkpoint that it wrote."""
    known = written.description
    return {
        "checkpoint": written.hash,
        "labels": len(written.labels),
        "weights": known.report["weights"],
        "pruned": known.report["pruned"],
        "temperature": known.temperature,
        "validation": known.report["validation"],
    }


def _pruned(
    name: str,
    encoder: Encoder,
    sets: Sets,
    parameters: EncoderParameters,
    lesson: Lesson | None,
    say: Say,
) -> tuple[Encoder, dict[str, int] | None]:
    """The encoder without the pieces that no text uses, and the figures of that."""
    if not parameters.prune:
        return encoder, None
    texts = [*sets.training.texts, *sets.validation.texts]
    if lesson is not None:
        texts += lesson.unlabelled
    try:
        pruned = pruning.prune(encoder, sorted(set(texts)))
    except PruningError as error:
        raise StageError(f"{name}: {error}: set {name}.prune to false") from error
    say(
        f"{name}: {len(pruned.kept):,} of {pruned.rows_before:,} pieces are kept,"
        f" {pruned.parameters / 1e6:,.1f} of {pruned.parameters_before / 1e6:,.1f} million weights"
    )
    return pruned.encoder, pruned.report()


def _data(tokeniser: Tokeniser, sets: Sets, rows: Rows, lesson: Lesson | None) -> Data:
    if lesson is None:
        return Data(rows, sets.training.labels)
    unlabelled = encode(tokeniser, lesson.unlabelled)
    labels = np.concatenate(
        [sets.training.labels, np.full(len(unlabelled), UNLABELLED, dtype=np.int64)]
    )
    targets = np.concatenate([lesson.training, lesson.unlabelled_targets])
    return Data([*rows, *unlabelled], labels, targets)


def _refitted(sets: Sets, rows: Rows, held: Rows, lesson: Lesson | None) -> Data:
    """All that is labelled."""
    labels = np.concatenate([sets.training.labels, sets.validation.labels])
    targets = None if lesson is None else np.concatenate([lesson.training, lesson.validation])
    return Data([*rows, *held], labels, targets)
