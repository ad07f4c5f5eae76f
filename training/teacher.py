"""The teacher: a larger encoder that reads more of an offer, fine-tuned on labels and frozen."""

from __future__ import annotations

from pathlib import Path

from training import encoders, finetuning, held_out, sets
from training.encoders import EncoderError
from training.parameters import TeacherParameters
from training.sets import Say
from training.stage import Record, Stage, StageError, hash_inputs

VERSION = 1


def make(
    parameters: TeacherParameters,
    train: Path,
    validation: Path,
    taxonomy: Path | None,
    out: Path,
    say: Say,
) -> Record:
    """Fine-tune the encoder by cross-entropy, and write `out`/checkpoint.

    Raises StageError, DataError.
    """
    paths = {"train": train, "validation": validation}
    if taxonomy is not None:
        paths["taxonomy"] = taxonomy
    try:
        inputs = hash_inputs(paths) | {"encoder": encoders.sha256(parameters.encoder)}
        stage = Stage("teacher", out, parameters, inputs, version=VERSION)
        if record := stage.done():
            return record
        parts = stage.begin()
        encoder = encoders.load(parameters.encoder)
    except EncoderError as error:
        raise StageError(str(error)) from error
    given = sets.read(parameters.recipe(), train, validation, taxonomy, say)
    origin = {"encoder": {"name": parameters.encoder, "sha256": inputs["encoder"]}}
    written = finetuning.finetune(
        "teacher", encoder, given, parameters, parts, out, say, origin=origin
    )
    kept = {held_out.FILE: out / held_out.FILE}
    return stage.finish(finetuning.summary(written), finetuning.results(written) | kept)
