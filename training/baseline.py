"""The baseline: a tuned and calibrated linear SVM as an artefact, which every claim is against."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from scipy.sparse import csr_array, hstack, vstack  # type: ignore[import-untyped]

from classifier import artifact, cpu
from classifier.artifact import Golden, file_hash
from classifier.engines.linear import MODEL_FILE
from classifier.model import Model
from classifier.ngrams import VOCABULARY, Span, most_ngrams
from classifier.progress import bar
from compile.labelled import DataError
from training import calibration, held_out, ngrams, svm
from training.examples import Examples, joined, limit
from training.ngrams import Chosen
from training.parameters import BaselineParameters
from training.sets import Sets, read
from training.stage import Record, Stage, hash_inputs

VERSION = 1

COLDEST = 0.02
"""Decision values of an SVM lie about 1 from the border, so a temperature of 0.1 to 0.2 makes
probabilities of them; that of logits would leave no answer certain."""

GOLDEN_TEXTS = 96
GOLDEN_LOGITS = 5
"""A golden answer keeps so many of the highest logits: enough to tell models apart, few to store"""

DENSE_FROM = 0.1
"""An n-gram with a weight for a larger share of the labels is stored as a row of them all: to add a
whole row takes a processor about as long as to pick a tenth of it out. With 2,205 labels and
274,000 n-grams a text took 0.13 ms and the weights 370 MB (with 0.05 as long and 560 MB, with 0.5
nearly twice as long and 235 MB, all as rows 0.17 ms and 2.4 GB)."""

PACKAGES = ("numpy", "safetensors", "scikit-learn", "scipy")

Say = Callable[[str], None]


class _Final(NamedTuple):
    """The model that is published."""

    given: Examples
    chosen: Chosen
    fitted: svm.Svm
    questions: list[Golden]
    most_tokens: int


class _Calibration(NamedTuple):
    temperature: float
    threshold: float
    thresholds: dict[int, float]
    figures: dict[str, Any]


def make(
    parameters: BaselineParameters,
    train: Path,
    validation: Path,
    taxonomy: Path | None,
    out: Path,
    say: Say,
) -> Record:
    """Tune, calibrate, fit and publish `out`/<id>, which `out`/current then names.

    The cost is the one with the best accuracy on validation, of models fitted on at most
    `tuning_offers`; the temperature and the thresholds are those of the model fitted on training
    alone; the published model is then fitted on both, unless `refit` says no.

    Raises StageError, DataError.
    """
    paths = {"train": train, "validation": validation}
    if taxonomy is not None:
        paths["taxonomy"] = taxonomy
    stage = Stage("baseline", out, parameters, hash_inputs(paths), version=VERSION)
    if record := stage.done():
        return record
    parts = stage.begin()
    sets = read(parameters.recipe(), train, validation, taxonomy, say, learns_both=parameters.refit)
    work = _Work(parameters, len(sets.labels), parts)

    questions = golden_texts(sets.validation)
    cost, tuning = work.tune(sets, say)
    if parameters.refit:
        answers = work.answers("training", sets.training, sets.validation, cost)
        final, _ = work.final(joined(sets.training, sets.validation), questions, [], cost)
    else:
        final, answers = work.final(sets.training, questions, sets.validation.texts, cost)
    calibrated = _calibrate(answers, sets.validation, parameters.precision)
    figures = calibrated.figures
    say(
        f"validation: {figures['accuracy']:.1%} of {figures['offers']:,} right,"
        f" {figures['precision']:.1%} of the {figures['coverage']:.1%} above their threshold"
    )
    if unfinished := final.fitted.unfinished():
        say(
            f"{unfinished:,} of {len(sets.labels):,} labels have not converged in"
            f" {svm.MOST_PASSES:,} passes with C = {cost:g}: lower costs would"
        )
    figures_of_fit = {
        "cost": cost,
        "tuning": tuning,
        "most_passes": final.fitted.most_passes(),
        "unfinished": unfinished,
    }
    published = _publish(parameters, sets, final, calibrated, figures_of_fit, out)
    artifact.set_current(out, published)
    manifest = artifact.Artifact.load(published).manifest
    results = {f"{published.name}/{name}": published / name for name in manifest.files}
    results[f"{published.name}/{artifact.MANIFEST}"] = published / artifact.MANIFEST
    results[artifact.CURRENT] = out / artifact.CURRENT
    results[held_out.FILE] = held_out.write(out, sets.validation, answers.astype(np.float32))
    summary = {
        "artifact": published.name,
        "cost": cost,
        "labels": len(sets.labels),
        "temperature": calibrated.temperature,
        "tuning": tuning,
        "validation": figures,
    }
    return stage.finish(summary, results)


class _Work:
    """The fits of one run of the stage."""

    def __init__(self, parameters: BaselineParameters, labels: int, parts: Path) -> None:
        self.words = Span(*parameters.words) if parameters.words else None
        self.letters = Span(*parameters.letters) if parameters.letters else None
        self.most_tokens = most_ngrams(parameters.recipe(), self.words, self.letters)
        self.parameters = parameters
        self._labels = labels
        self._parts = parts
        self._known: dict[tuple[str, float], NDArray[np.float64]] = {}

    def choose(self, texts: Sequence[str]) -> Chosen:
        """The n-grams of training texts. Raises DataError where there are none."""
        given = self.parameters
        try:
            return ngrams.choose(
                texts, self.words, self.letters, given.min_offers, given.most_letters
            )
        except ValueError as error:
            raise DataError(str(error)) from error

    def tune(self, sets: Sets, say: Say) -> tuple[float, dict[str, Any]]:
        """The cost with the best accuracy on validation, the lowest of equals, and all figures."""
        given = self.parameters
        costs = sorted(set(given.costs))
        if len(costs) == 1:
            return costs[0], {}
        some = limit(sets.training, given.tuning_offers, np.random.default_rng(given.seed))
        # A model on all of training is the one to calibrate, too.
        name = "training" if len(some.texts) == len(sets.training.texts) else "tuning"
        figures = {}
        for cost in costs:
            answers = self.answers(name, some, sets.validation, cost)
            right = answers.argmax(axis=1) == sets.validation.labels
            figures[f"{cost:g}"] = round(float(right.mean()), 4)
            say(f"C = {cost:g}: {right.mean():.2%} of {len(right):,} right in validation")
        return max(costs, key=lambda cost: figures[f"{cost:g}"]), figures

    def answers(
        self, name: str, training: Examples, asked: Examples, cost: float
    ) -> NDArray[np.float64]:
        """What an SVM fitted on `training` answers, (asked, labels)."""
        if (name, cost) not in self._known:
            chosen = self.choose(training.texts)
            asked_texts = ngrams.weighed(asked.texts, chosen, self.most_tokens)
            fitted = self.fit(name, training, chosen, asked_texts, cost, keep_weights=False)
            self._known[name, cost] = fitted.answers()
        return self._known[name, cost]

    def final(
        self, given: Examples, questions: Sequence[str], others: Sequence[str], cost: float
    ) -> tuple[_Final, NDArray[np.float64]]:
        """The model fitted on `given`, and what it answers to other texts (others, labels)."""
        chosen = self.choose(given.texts)
        # By scikit-learn's own analyzers and weights, so that golden answers vouch for ours.
        asked = scikit_learns(questions, chosen)
        if others:
            ours = ngrams.weighed(others, chosen, self.most_tokens)
            asked = csr_array(vstack([asked, ours], format="csr"))
        fitted = self.fit("final", given, chosen, asked, cost, keep_weights=True)
        answers = fitted.answers()
        at = len(questions)
        made = golden(questions, answers[:at], given.label_ids)
        return _Final(given, chosen, fitted, made, self.most_tokens), answers[at:]

    def fit(
        self,
        name: str,
        training: Examples,
        chosen: Chosen,
        asked: csr_array[Any],
        cost: float,
        *,
        keep_weights: bool,
    ) -> svm.Svm:
        """An SVM fitted on `training`, in parts that a killed run leaves to the next."""
        texts = ngrams.weighed(training.texts, chosen, self.most_tokens)
        problem = svm.Problem(texts, training.labels, self._labels, asked)
        with bar(f"{name}, C = {cost:g}") as show:
            return svm.fit(
                problem,
                cost,
                self.parameters.seed,
                self._parts / f"{name}-{cost:g}",
                cpu.quota(),
                keep_weights=keep_weights,
                show=show,
            )


def _calibrate(
    answers: NDArray[np.float64], validation: Examples, precision: float
) -> _Calibration:
    """Fitted on what a model answers to offers that it was not trained on."""
    logits, labels = answers.astype(np.float32), validation.labels
    calibrated = calibration.fit(logits, labels, precision, COLDEST)
    right, certain = calibrated.right, calibrated.certain
    best = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    figures = {
        "offers": len(labels),
        "accuracy": round(float(right.mean()), 4),
        "top_3": round(float((best == labels[:, None]).any(axis=1).mean()), 4),
        "coverage": round(float(certain.mean()), 4),
        "precision": round(float(right[certain].mean()), 4) if certain.any() else 0.0,
    }
    return _Calibration(
        calibrated.temperature, calibrated.threshold, calibrated.thresholds, figures
    )


def _publish(
    parameters: BaselineParameters,
    sets: Sets,
    final: _Final,
    calibrated: _Calibration,
    figures: Mapping[str, Any],
    out: Path,
) -> Path:
    """Publish the model once the code that serves it answers as scikit-learn does."""
    label_ids = [label.id for label in sets.labels]
    vocabulary = final.chosen.vocabulary
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=out))
    try:
        artifact.write_labels(staging / "labels.json", sets.labels)
        artifact.write_golden(staging / "golden.jsonl", final.questions)
        (staging / VOCABULARY).write_bytes(msgspec.json.encode(vocabulary))
        _write_model(staging / MODEL_FILE, final.fitted, final.chosen)
        report = {
            "rows": {"training": len(sets.training.texts), "fitted": len(final.given.texts)},
            "labels": len(label_ids),
            "ngrams": dict(zip(("words", "letters"), vocabulary.sizes, strict=True)),
            "bytes": {file.name: file.stat().st_size for file in sorted(staging.iterdir())},
            "validation": calibrated.figures,
            **figures,
        }
        encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
        (staging / "report.json").write_bytes(encoded + b"\n")
        description = artifact.Description(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            kind="linear",
            target="linear-cpu",
            precision="fp32-linear",
            checkpoint=file_hash(staging / MODEL_FILE),
            data={"rows": len(final.given.texts), "sha256": final.given.sha256()},
            taxonomy=sets.taxonomy,
            text=parameters.recipe(),
            max_tokens=final.most_tokens,
            versions={name: importlib.metadata.version(name) for name in PACKAGES},
            temperature=calibrated.temperature,
            threshold=calibrated.threshold,
            thresholds={label_ids[label]: least for label, least in calibrated.thresholds.items()},
        )
        artifact.seal(staging, description)
        # Asked is the very directory that gets published, by the very code that will serve it.
        with closing(Model.load(staging, threads=1)):
            pass
        staging.chmod(0o755)
        return artifact.publish(staging, description, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_model(file: Path, fitted: svm.Svm, chosen: Chosen) -> None:
    """model.safetensors; see classifier/engines/linear.py."""
    parts = [svm.read(part) for part in fitted.files]
    words = chosen.vocabulary.sizes[0]
    weights = csr_array(vstack([part.weights for part in parts]).T)
    often = np.diff(weights.indptr) > DENSE_FROM * weights.shape[1]
    rarely = weights.tocsr(copy=True)
    rarely.data[np.repeat(often, np.diff(weights.indptr))] = 0
    rarely.eliminate_zeros()
    tensors = {
        "idf.words": chosen.idf[:words],
        "idf.letters": chosen.idf[words:],
        "intercept": np.concatenate([part.intercept for part in parts]).astype(np.float32),
        "dense.ngrams": np.flatnonzero(often).astype(np.int32),
        "dense.weights": weights[np.flatnonzero(often)].toarray(),
        "sparse.starts": rarely.indptr.astype(np.int32),
        "sparse.labels": rarely.indices.astype(np.int32),
        "sparse.weights": rarely.data,
    }
    file.write_bytes(save(tensors))


def golden_texts(validation: Examples) -> list[str]:
    """Texts of every length and language, and next to nothing."""
    order = np.lexsort((validation.languages, [len(text) for text in validation.texts]))
    count = min(GOLDEN_TEXTS, len(order))
    chosen = order[np.linspace(0, len(order) - 1, count).round().astype(int)]
    return list(dict.fromkeys(["a", "?", *(validation.texts[i] for i in chosen)]))


def golden(
    texts: Sequence[str], answers: NDArray[np.float64], label_ids: Sequence[str]
) -> list[Golden]:
    """Golden questions of what scikit-learn answers to them (texts, labels)."""
    questions = []
    for text, values in zip(texts, answers, strict=True):
        best = np.argsort(-values, kind="stable")[:GOLDEN_LOGITS]
        logits = {label_ids[i]: float(values[i]) for i in best}
        questions.append(Golden(text, label_ids[best[0]], logits))
    return questions


def scikit_learns(texts: Sequence[str], chosen: Chosen) -> csr_array[Any]:
    """The weights of texts as scikit-learn's own vectorizers make them (texts, n-grams)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    blocks = []
    at = 0
    for analyzer, grams in (
        ("word", chosen.vocabulary.words), ("char_wb", chosen.vocabulary.letters)
    ):  # fmt: skip
        if grams is None or not grams.grams:
            continue
        vectorizer = TfidfVectorizer(
            analyzer=analyzer,
            ngram_range=(grams.shortest, grams.longest),
            vocabulary={gram: i for i, gram in enumerate(grams.grams)},
            sublinear_tf=True,
        )
        vectorizer.idf_ = chosen.idf[at : at + len(grams.grams)]
        at += len(grams.grams)
        blocks.append(vectorizer.transform(texts))
    return csr_array(hstack(blocks, format="csr"))
