"""The student: the encoder that serves, taught by labels and by where its teacher places offers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from classifier.text import TextRecipe
from compile.checkpoint import Checkpoint, CheckpointError
from compile.labelled import read_labelled, read_offers
from training import encoders, finetuning, held_out, processes, sets
from training.embeddings import Store, embedder
from training.encoders import Encoder, EncoderError
from training.finetuning import CHECKPOINT, Lesson
from training.parameters import StudentParameters
from training.sets import Say, Sets
from training.stage import Record, Stage, StageError, hash_inputs

VERSION = 1

EMBEDDINGS = "embeddings"
"""Where the teacher's embeddings are kept, in its stage's directory: every student finds them."""


def make(
    parameters: StudentParameters,
    train: Path,
    validation: Path,
    transfer: Path | None,
    teacher: Path | None,
    taxonomy: Path | None,
    out: Path,
    say: Say,
) -> Record:
    """Train the student on labelled offers and on unlabelled ones, and write `out`/checkpoint.

    `teacher` is the directory of its stage; without one the student has its labels alone, and no
    use for `transfer`. Temperature and thresholds are those of the student of training offers
    alone; where `refit_epochs` says so it then learns validation's, too.

    Raises StageError, DataError.
    """
    if transfer is not None and teacher is None:
        raise StageError(f"{transfer}: without a teacher there is nothing to learn of it")
    paths = {"train": train, "validation": validation, "transfer": transfer, "taxonomy": taxonomy}
    inputs = hash_inputs({name: path for name, path in paths.items() if path is not None})
    try:
        inputs["encoder"] = encoders.sha256(parameters.encoder)
        known = None if teacher is None else Checkpoint.load(teacher / CHECKPOINT)
        if known is not None:
            inputs["teacher"] = known.hash
        stage = Stage("student", out, parameters, inputs, version=VERSION)
        if record := stage.done():
            return record
        parts = stage.begin()
        encoder = encoders.load(parameters.encoder)
        layers = _layers(encoder, parameters)
    except (EncoderError, CheckpointError) as error:
        raise StageError(str(error)) from error
    refit = parameters.refit()
    given = sets.read(
        parameters.recipe(), train, validation, taxonomy, say, learns_both=refit is not None
    )
    lesson = None
    if teacher is not None and known is not None:
        labelled = [train] if refit is None else [train, validation]
        lesson = _lesson(parameters, known, given, labelled, transfer, teacher / EMBEDDINGS, say)
    origin = {
        "encoder": {"name": parameters.encoder, "sha256": inputs["encoder"], "layers": layers},
        "teacher": None if known is None else known.hash,
    }
    written = finetuning.finetune(
        "student",
        encoder,
        given,
        parameters,
        parts,
        out,
        say,
        lesson=lesson,
        refit=refit,
        origin=origin,
    )
    kept = {held_out.FILE: out / held_out.FILE}
    return stage.finish(finetuning.summary(written), finetuning.results(written) | kept)


def _layers(encoder: Encoder, parameters: StudentParameters) -> list[int]:
    """Which layers the encoder is left with."""
    if parameters.layers is None:
        return list(range(len(encoder.layers)))
    return encoders.keep_layers(encoder, parameters.layers)


def _lesson(
    parameters: StudentParameters,
    teacher: Checkpoint,
    given: Sets,
    labelled: Sequence[Path],
    transfer: Path | None,
    kept: Path,
    say: Say,
) -> Lesson:
    """Each offer as the student reads it, with the embedding of what the teacher reads of it."""
    recipe, more = parameters.recipe(), teacher.description.text
    texts = [text for path in labelled for text in training_texts(path, recipe, more)]
    count = len(texts)
    unlabelled = [] if transfer is None else transfer_texts(transfer, recipe, more)
    texts += [text for _, text in unlabelled]
    model, tokeniser = teacher.encoder(), teacher.tokeniser()
    torch.set_num_threads(processes.threads())
    if torch.cuda.is_available():
        model.cuda()
    say(f"{len(texts):,} texts for the teacher to embed, where it has not yet")
    with processes.lead_first(), processes.bar("the teacher's embeddings") as show:
        targets = Store(kept, teacher.hash).get(texts, embedder(model, tokeniser), show)
    training = len(given.training.texts)
    assert count == training + (len(given.validation.texts) if len(labelled) > 1 else 0)
    return Lesson(
        training=targets[:training],
        validation=targets[training:count],
        unlabelled=[text for text, _ in unlabelled],
        unlabelled_targets=targets[count:],
        weight=parameters.loss_weight,
    )


def training_texts(train: Path, recipe: TextRecipe, more: TextRecipe) -> list[str]:
    """What the teacher reads (`more`) of the offers, in the order of training.examples.examples."""
    rows = []
    for offer, label in read_labelled(train):
        if text := recipe.text(offer):
            rows.append((text, label, offer.language or "", more.text(offer) or text))
    return [text for _, _, _, text in sorted(rows)]


def transfer_texts(transfer: Path, recipe: TextRecipe, more: TextRecipe) -> list[tuple[str, str]]:
    """What student and teacher read of the unlabelled offers, each pair once, sorted."""
    pairs = set()
    for offer in read_offers(transfer):
        if text := recipe.text(offer):
            pairs.add((text, more.text(offer) or text))
    return sorted(pairs)
