"""Wide and deep: a linear SVM beside a trained encoder, their logits added.

Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems"; here each part is trained by
itself and only how loud each speaks is fitted together, on what they answered to offers that
neither had learnt from by then. An SVM remembers brands and model numbers, an encoder what words
mean, and they err on different offers.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from scipy import optimize, special  # type: ignore[import-untyped]
from tokenizers import Tokenizer

from classifier import cpu
from classifier.artifact import WIDE, WIDE_AND_DEEP, Artifact, ArtifactError, labels_hash
from classifier.engines.linear import MODEL_FILE
from classifier.model import Model
from classifier.ngrams import VOCABULARY
from classifier.tensors import map_tensors
from classifier.wide import Wide
from compile import checkpoint
from compile.build import versions
from compile.checkpoint import Checkpoint, CheckpointError
from compile.verify import reference_logits
from training import baseline, calibration, held_out
from training.comparison import mcnemar
from training.finetuning import CHECKPOINT, results
from training.parameters import WideParameters
from training.scratch import measured
from training.sets import Say, read_held
from training.stage import Record, Stage, StageError, hash_inputs, read_record

VERSION = 1

LOUDEST = (1 / calibration.COLDEST, 1 / baseline.COLDEST)
"""A scale is the inverse of a temperature, and those end here: a few validation offers without an
error would ask for infinity."""

CELLS = 2**21
"""So many logits are summed up at a time."""

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]

SCALED = ("intercept", "dense.weights", "sparse.weights")


class Scales(NamedTuple):
    """What the logits of each part are multiplied by before they are added."""

    encoder: float
    wide: float


def make(
    parameters: WideParameters,
    student: Path,
    linear: Path,
    validation: Path,
    out: Path,
    say: Say,
) -> Record:
    """Put the checkpoint of the stage in `student` and the SVM of the stage in `linear` together.

    The scales, the temperature and the thresholds are fitted on what both answered to `validation`
    before they learnt it, if they did. Writes `out`/checkpoint. Raises StageError, DataError.
    """
    inputs = hash_inputs({"validation": validation})
    try:
        deep, svm = _deep(student), _svm(linear)
        _check(student, linear, deep, svm, inputs["validation"])
        inputs |= {"student": deep.hash, "linear": svm.manifest.id}
        stage = Stage("wide", out, parameters, inputs, version=VERSION)
        if record := stage.done():
            return record
        parts = stage.begin()
        torch.set_num_threads(cpu.quota())
        model, tokeniser = deep.encoder(), deep.tokeniser()
        with closing(Model.load(svm.path, threads=1)):
            pass  # it answers its golden questions as scikit-learn does
        wide = Wide(svm)
    except (ArtifactError, CheckpointError) as error:
        raise StageError(str(error)) from error

    known = deep.description
    label_ids = [label.id for label in deep.labels]
    held = read_held(known.text, validation, label_ids, say)
    if len(held.texts) < 2:
        raise StageError(f"{validation}: {len(held.texts)} offers of known labels are too few")
    own = held_out.read(student, held, known.text.prefix)
    beside = held_out.read(linear, held, known.text.prefix)
    scales = fit_scales(own, beside, held.labels)
    worth = judge(own, beside, held.labels)
    say(f"scales: {scales.encoder:g} of the encoder's logits, {scales.wide:g} of the SVM's")
    say(
        f"validation, by scales of its other half: {worth['encoder']['accuracy']:.1%} right alone,"
        f" {worth['linear']['accuracy']:.1%} the SVM, {worth['both']['accuracy']:.1%} both;"
        f" {worth['encoder']['loss']:.3f}, {worth['linear']['loss']:.3f} and"
        f" {worth['both']['loss']:.3f} nats lost: the wide part"
        f" {'pays' if worth['pays'] else 'does not pay'}"
    )

    logits = scales.encoder * own + scales.wide * beside
    calibrated = calibration.fit(logits, held.labels, parameters.right_share)
    figures = measured(held, logits, calibrated.right, calibrated.certain)
    with torch.no_grad():
        model.head.weight.mul_(scales.encoder)
        model.head.bias.mul_(scales.encoder)
    _write_wide(parts, svm, scales.wide)
    texts = [question.text for question in deep.golden]
    # A text is cut into n-grams as the SVM learnt it, without what the encoder wants before it.
    plain = [text.removeprefix(known.text.prefix) for text in texts]
    rows, _ = tokeniser.encode(texts)
    golden = reference_logits(model, rows) + scales.wide * wide.answers(plain)
    wide.close()
    written = checkpoint.write(
        out / CHECKPOINT,
        model,
        Tokenizer.from_file(str(deep.path / "tokenizer.json")),
        deep.labels,
        tuple(
            msgspec.structs.replace(question, language=asked.language)
            for question, asked in zip(
                baseline.golden(texts, golden.astype(np.float64), label_ids),
                deep.golden,
                strict=True,
            )
        ),
        msgspec.structs.replace(
            known,
            kind=WIDE_AND_DEEP,
            temperature=calibrated.temperature,
            threshold=calibrated.threshold,
            thresholds={label_ids[label]: least for label, least in calibrated.thresholds.items()},
            versions=known.versions | svm.manifest.versions | versions(),
            report={
                "stage": "wide",
                "parameters": parameters.model_dump(mode="json"),
                "scales": scales._asdict(),
                "worth": worth,
                "validation": figures,
                "linear": {"artifact": svm.manifest.id, "checkpoint": svm.manifest.checkpoint},
                "student": {"checkpoint": deep.hash, "report": known.report},
            },
        ),
        wide=parts,
    )
    summary = {
        "checkpoint": written.hash,
        "labels": len(label_ids),
        "scales": scales._asdict(),
        "worth": worth,
        "temperature": calibrated.temperature,
        "validation": figures,
    }
    return stage.finish(summary, results(written))


def fit_scales(encoder: Logits, wide: Logits, labels: Labels) -> Scales:
    """The scales, to four digits, with the highest likelihood of `labels` (rows,) under the softmax
    of the scaled sum of two parts' logits (rows, labels). None is negative.

    The likelihood is concave in the scales: the sum is linear in them.
    """
    return Scales(*_fit(encoder, wide, labels, LOUDEST))


def judge(encoder: Logits, wide: Logits, labels: Labels) -> dict[str, Any]:
    """What each part alone and both are worth on rows that had no part in fitting their scales.

    Each half of the rows, every second one, is judged by scales of the other half, so that one more
    of them is no advantage: mean negative log likelihood in nats, and the share that is right.
    The wide part pays where the loss of both is below that of the encoder alone.
    """
    silent = {"encoder": (LOUDEST[0], 0.0), "linear": (0.0, LOUDEST[1]), "both": LOUDEST}
    losses = {name: np.empty(len(labels)) for name in silent}
    right = {name: np.empty(len(labels), dtype=bool) for name in silent}
    half = np.arange(len(labels)) % 2 == 0
    for name, most in silent.items():
        for own, other in ((half, ~half), (~half, half)):
            scales = _fit(encoder[other], wide[other], labels[other], most)
            logits = scales[0] * encoder[own] + scales[1] * wide[own]
            losses[name][own] = _losses(logits, labels[own])
            right[name][own] = logits.argmax(axis=1) == labels[own]
    gained = int((right["both"] & ~right["encoder"]).sum())
    lost = int((right["encoder"] & ~right["both"]).sum())
    return {
        **{
            name: {
                "accuracy": round(float(right[name].mean()), 4),
                "loss": round(float(losses[name].mean()), 4),
            }
            for name in silent
        },
        "gained": gained,  # answers that only both have right, and only the encoder alone
        "lost": lost,
        "p_value": float(f"{float(mcnemar(np.array(gained), np.array(lost))):.3g}"),
        "pays": bool(losses["both"].mean() < losses["encoder"].mean()),
    }


def _fit(
    encoder: Logits, wide: Logits, labels: Labels, most: tuple[float, float]
) -> tuple[float, float]:
    """The scales from 0 to `most`; one that may be only 0 is left out."""
    # In units of each part's own size, so that neither direction is much steeper.
    sizes = [max(float(np.sqrt(np.square(part).mean())), 1e-6) for part in (encoder, wide)]
    found = optimize.minimize(
        lambda scaled: _loss(np.array(scaled) / sizes, encoder, wide, labels, sizes),
        [0.0, 0.0],
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, top * size) for top, size in zip(most, sizes, strict=True)],
        options={"ftol": 1e-12, "gtol": 1e-7},
    )
    first, second = (float(f"{scale:.4g}") for scale in found.x / sizes)
    return first, second


def _loss(
    scales: NDArray[np.float64],
    encoder: Logits,
    wide: Logits,
    labels: Labels,
    sizes: Sequence[float],
) -> tuple[float, NDArray[np.float64]]:
    """The mean negative log likelihood, and its slope in units of `sizes`."""
    loss = 0.0
    slope = np.zeros(2)
    step = max(1, CELLS // encoder.shape[1])
    for start in range(0, len(labels), step):
        part = slice(start, start + step)
        both = [each[part].astype(np.float64) for each in (encoder, wide)]
        logits = scales[0] * both[0] + scales[1] * both[1]
        loss += float(_losses(logits, labels[part]).sum())
        # How far each label's share is from what it should be, times what moves it.
        off = special.softmax(logits, axis=1)
        off[np.arange(len(off)), labels[part]] -= 1
        slope += [float((off * each).sum()) for each in both]
    return loss / len(labels), slope / len(labels) / sizes


def _losses(logits: NDArray[Any], labels: Labels) -> NDArray[np.float64]:
    """The negative log likelihood of each row's label."""
    given = logits.astype(np.float64)
    losses: NDArray[np.float64] = (
        special.logsumexp(given, axis=1) - given[np.arange(len(labels)), labels]
    )
    return losses


def _deep(directory: Path) -> Checkpoint:
    """The encoder that a finished stage made."""
    record = _record(directory)
    found = Checkpoint.load(directory / CHECKPOINT)
    if record.files.get(f"{CHECKPOINT}/{checkpoint.DESCRIPTION}") != found.hash:
        raise StageError(f"{found.path}: is not what the stage made that was finished there")
    if found.description.kind != "encoder":
        raise StageError(f"{found.path}: is of kind {found.description.kind!r}, not an encoder")
    return found


def _svm(directory: Path) -> Artifact:
    """The SVM that a finished stage made."""
    name = _record(directory).summary.get("artifact")
    if not isinstance(name, str):
        raise StageError(f"{directory}: is not what `training baseline` made")
    return Artifact.load(directory / name)


def _record(directory: Path) -> Record:
    record = read_record(directory)
    if record is None:
        raise StageError(f"{directory}: is not what a finished stage made: it has no stage.json")
    return record


def _check(student: Path, linear: Path, deep: Checkpoint, svm: Artifact, validation: str) -> None:
    """Whether both learnt to tell the same labels apart, of the same texts. Raises StageError."""
    theirs, svms = _record(student), _record(linear)
    if bool(svms.parameters.get("refit")) != bool(theirs.parameters.get("refit_epochs")):
        raise StageError(
            f"{student} and {linear}: one was fitted on validation in the end: both or neither"
        )
    if svm.manifest.labels_sha256 != labels_hash(deep.labels):
        raise StageError(
            f"{linear}: its {len(svm.labels):,} labels are not those of {student},"
            f" {len(deep.labels):,}: refit both on validation or neither"
        )
    if "train" not in theirs.inputs or svms.inputs.get("train") != theirs.inputs["train"]:
        raise StageError(f"{linear}: was fitted on another training set than {student}")
    for directory, record in ((student, theirs), (linear, svms)):
        if record.inputs.get("validation") != validation:
            raise StageError(
                f"{directory}: was calibrated on another validation set; what it learnt may be in"
                " this one"
            )
    recipe = deep.description.text
    if svm.manifest.text != msgspec.structs.replace(recipe, prefix=""):
        fields = ", ".join(f"{field.name}: {field.characters}" for field in recipe.fields)
        raise StageError(
            f"{linear}: reads other fields than {student}: make it with"
            f" --set 'baseline.fields={{{fields}}}'"
        )


def _write_wide(directory: Path, svm: Artifact, scale: float) -> None:
    """The files of the wide part: those of the SVM, its logits times `scale`."""
    shutil.copyfile(svm.path / VOCABULARY, directory / VOCABULARY)
    tensors = map_tensors(svm.path / MODEL_FILE)
    for name in SCALED:
        tensors[name] = np.multiply(tensors[name], np.float32(scale))
    (directory / WIDE).write_bytes(save({name: np.asarray(kept) for name, kept in tensors.items()}))
