"""An artefact: everything one target needs to serve one model, in one directory, never changed.

    manifest.json    what it is, where it comes from, and the SHA-256 of every other file
    labels.json      the categories, in the order of the model's logits
    tokenizer.json   an encoder's tokeniser (Hugging Face's format)
    vocabulary.json  a linear model's n-grams
    wide.safetensors the weights of the linear model beside an encoder; see classifier/wide.py
    golden.jsonl     texts with the checkpoint's own answers, asked before the model serves
    report.json      what was measured when it was made; for people, never read by the service
    buckets.json     the shapes that a model for Neuron was compiled for
    model.*          the model itself, for this target

It is all or nothing. `publish` gives the directory its name, the artefact's id, by one atomic
rename after every byte is on disk; `Artifact.load` believes nothing that the manifest's hashes do
not vouch for. The id is a hash over the whole manifest, so it names the exact bytes, and a
classification that carries it can be traced to them.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from classifier.precision import LOGIT_BOUND
from classifier.text import VERSION as RECIPE_VERSION
from classifier.text import TextRecipe

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
CURRENT: Final = "current"
WIDE: Final = "wide.safetensors"
WIDE_AND_DEEP: Final = "wide-and-deep"
"""The kind of an encoder with a wide part."""

# What an artefact must hold, whatever its target; the model's own files are its engine's business.
FILES: Final[dict[str, frozenset[str]]] = {
    "encoder": frozenset({"labels.json", "tokenizer.json", "golden.jsonl", "report.json"}),
    "linear": frozenset({"labels.json", "vocabulary.json", "golden.jsonl", "report.json"}),
    WIDE_AND_DEEP: frozenset(
        {"labels.json", "tokenizer.json", "vocabulary.json", WIDE, "golden.jsonl", "report.json"}
    ),
}

# An allow list: no format that can run code when it is read (pickles: .pt, .pkl, .bin, .joblib)
# gets in under any name, because each of these is read by a parser that knows only data.
SUFFIXES: Final = frozenset({".json", ".jsonl", ".safetensors", ".onnx"})

# What Neuron's compiler makes is TorchScript, which only torch.jit.load reads, and nothing else.
NEURON_SUFFIXES: Final = SUFFIXES | {".pt"}

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ID = re.compile(r"[0-9a-f]{16}")
_HEX = re.compile(r"[0-9a-f]{16,64}")
_HASH = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


class ArtifactError(Exception):
    """The artefact cannot be used. The message is one line: what is wrong, with what."""


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One category that the model can answer."""

    id: str
    names: dict[str, str] = {}  # language -> name; may be empty
    parents: tuple[str, ...] = ()  # category ids, the nearest parent first


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One golden question: a text as the recipe leaves it, and the checkpoint's answer to it."""

    text: str
    category_id: str
    logits: dict[str, float]  # the highest few uncalibrated logits, by category id
    language: str = ""  # of the offer that the text was made of; "" where it is not known


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the maker of an artefact knows before its files are hashed."""

    format: int = FORMAT
    created_at: str  # ISO 8601, UTC
    kind: str  # a key of FILES
    target: str  # the engine it is for: "onnx-cpu", "torch-cpu", "neuron-inf2", ...
    precision: str  # a key of LOGIT_BOUND
    checkpoint: str  # hash of the checkpoint that it was compiled from
    data: dict[str, str | int]  # what that was trained on: name, rows, content hash
    taxonomy: str  # version of the taxonomy that the labels belong to
    text: TextRecipe
    max_tokens: int  # longest input, special tokens included
    pad_multiple: int = 8  # padded lengths are multiples of it, at most max_tokens
    versions: dict[str, str]  # of the packages that made it
    temperature: float  # logits / temperature is what the softmax takes
    threshold: float  # a top score below it is "uncertain"
    thresholds: dict[str, float] = {}  # by category id, where it differs


class Manifest(Description, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """manifest.json."""

    id: str
    labels_sha256: str  # see labels_hash
    files: dict[str, str]  # name -> SHA-256, for every file but this one


@dataclass(frozen=True)
class Artifact:
    """An artefact that was found whole and consistent."""

    path: Path
    manifest: Manifest
    labels: tuple[Label, ...]  # labels[i] is what logit i stands for
    golden: tuple[Golden, ...]

    @classmethod
    def load(cls, path: Path | str) -> Artifact:
        """Read and check the artefact in `path`.

        Raises ArtifactError when anything is missing, changed, superfluous, of another format or
        at odds with the rest. Every file is hashed, so this takes about a second a gigabyte.
        """
        path = Path(path)
        try:
            return cls._load(path)
        except OSError as error:
            raise ArtifactError(f"{error.filename}: cannot be read: {error.strerror}") from error

    @classmethod
    def _load(cls, path: Path) -> Artifact:
        manifest = _manifest(path)
        _check_files(path, manifest)
        labels = read_labels(path / "labels.json")
        if labels_hash(labels) != manifest.labels_sha256:
            raise ArtifactError(f"{path}: labels.json is not the label map that the model has")
        known = {label.id for label in labels}
        for category_id in manifest.thresholds:
            if category_id not in known:
                raise ArtifactError(f"{path}: a threshold for {category_id!r}, which is no label")
        return cls(path, manifest, labels, read_golden(path / "golden.jsonl", known))


def labels_hash(labels: tuple[Label, ...]) -> str:
    """SHA-256 over the label ids in their order: what a logit's index means, and nothing else."""
    return hashlib.sha256(msgspec.json.encode([label.id for label in labels])).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def publish(staging: Path, description: Description, parent: Path) -> Path:
    """Turn the files in `staging` into an artefact `parent`/<id>, and return that path.

    `staging` must be on the file system of `parent`, and is gone afterwards. A reader sees the
    whole artefact or none: the manifest is written last, everything is checked as `load` would and
    flushed to disk, then the directory is renamed. An artefact that is already there is left alone.
    Raises ArtifactError when the files do not make an artefact.
    """
    artifact = seal(staging, description)
    for name in (*artifact.manifest.files, MANIFEST):
        flush(staging / name)
    flush(staging)
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / artifact.manifest.id
    if not target.exists():
        try:
            staging.rename(target)
        except OSError as error:
            if not target.exists():  # else another publisher of the same artefact was faster
                raise ArtifactError(f"{target}: cannot publish there: {error.strerror}") from error
        else:
            flush(parent)
            return target
    Artifact.load(target)
    shutil.rmtree(staging)
    return target


def seal(staging: Path, description: Description) -> Artifact:
    """Write the manifest of the files in `staging`, and load the result.

    For what is done with an artefact before it is published, such as verifying it. Raises
    ArtifactError when the files do not make an artefact.
    """
    names = {entry.name for entry in os.scandir(staging)} - {MANIFEST}
    files = {name: file_hash(_regular_file(staging, name)) for name in sorted(names)}
    if "labels.json" not in files:
        raise ArtifactError(f"{staging}: labels.json is missing")
    raw = msgspec.to_builtins(description)
    raw["files"] = files
    raw["labels_sha256"] = labels_hash(read_labels(staging / "labels.json"))
    raw["id"] = _identity(raw)
    encoded = msgspec.json.format(msgspec.json.encode(raw, order="deterministic"), indent=1)
    (staging / MANIFEST).write_bytes(encoded + b"\n")
    return Artifact.load(staging)


def set_current(parent: Path, artifact: Path) -> None:
    """Let `parent`/current name `artifact`, a directory in `parent`; atomic."""
    if artifact.resolve().parent != parent.resolve():
        raise ArtifactError(f"{artifact}: only an artefact in {parent} can be its current one")
    descriptor, temporary = tempfile.mkstemp(prefix=".current-", dir=parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(artifact.name + "\n")
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).chmod(0o644)
    Path(temporary).replace(parent / CURRENT)
    flush(parent)


def current(parent: Path) -> Path:
    """The artefact that `parent`/current names. Raises ArtifactError when there is none."""
    try:
        name = (parent / CURRENT).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{parent / CURRENT}: cannot be read") from error
    if not _ID.fullmatch(name):
        raise ArtifactError(f"{parent / CURRENT}: {name[:40]!r} is no artefact's id")
    if not (parent / name).is_dir():
        raise ArtifactError(f"{parent / CURRENT}: names {name}, which is not there")
    return parent / name


def resolve(path: Path) -> Path:
    """The artefact to serve: the one that `path`/current names, else `path` itself.

    Raises ArtifactError where `current` is there and of no use.
    """
    try:
        names_one = (path / CURRENT).exists()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    return current(path) if names_one else path


def _identity(raw: dict[str, Any]) -> str:
    """The id: a hash over the manifest as it was written, whatever fields this version knows."""
    rest = {key: value for key, value in raw.items() if key != "id"}
    return hashlib.sha256(msgspec.json.encode(rest, order="sorted")).hexdigest()[:16]


def _manifest(path: Path) -> Manifest:
    if not path.is_dir():
        raise ArtifactError(f"{path}: no such directory")
    if not (path / MANIFEST).exists():
        raise ArtifactError(f"{path}: has no {MANIFEST}, so it is no (finished) artefact")
    file = _regular_file(path, MANIFEST)
    raw = _decode(file, file.read_bytes(), dict[str, Any])
    if raw.get("format") != FORMAT:
        raise ArtifactError(
            f"{file}: format {raw.get('format')!r}, but this version reads format {FORMAT}"
        )
    text = raw.get("text")
    if isinstance(text, dict) and text.get("version") != RECIPE_VERSION:
        raise ArtifactError(
            f"{file}: text recipe version {text.get('version')!r}, but this version of the code"
            f" makes texts by version {RECIPE_VERSION}"
        )
    manifest = _convert(file, raw)
    if manifest.id != _identity(raw):
        raise ArtifactError(f"{file}: was changed, its id is not its content's")
    if problem := _problem(manifest):
        raise ArtifactError(f"{file}: {problem}")
    return manifest


def _problem(manifest: Manifest) -> str | None:
    """What is wrong with the manifest's values, if anything."""
    if manifest.kind not in FILES:
        return f"kind {manifest.kind!r} is not one of {', '.join(sorted(FILES))}"
    if not manifest.target:
        return "names no target"
    if manifest.precision not in LOGIT_BOUND:
        return f"precision {manifest.precision!r} is not one of {', '.join(sorted(LOGIT_BOUND))}"
    if not _HEX.fullmatch(manifest.checkpoint):
        return "checkpoint is no hash"
    if manifest.max_tokens < 3:  # two special tokens and one of the text
        return f"max_tokens is {manifest.max_tokens}, too few for any text"
    if manifest.pad_multiple < 1:
        return f"pad_multiple is {manifest.pad_multiple}, must be at least 1"
    if not (math.isfinite(manifest.temperature) and manifest.temperature > 0):
        return f"temperature is {manifest.temperature}, must be positive"
    for threshold in (manifest.threshold, *manifest.thresholds.values()):
        if not 0 <= threshold <= 1:
            return f"threshold {threshold} is no probability"
    try:
        if datetime.fromisoformat(manifest.created_at).utcoffset() != timedelta(0):
            return f"created_at {manifest.created_at!r} is not in UTC"
    except ValueError:
        return f"created_at {manifest.created_at!r} is no ISO 8601 time"
    if missing := FILES[manifest.kind] - manifest.files.keys():
        return f"lists no {min(missing)}"
    for name, digest in manifest.files.items():
        if name == MANIFEST or not _FILE_NAME.fullmatch(name):
            return f"lists {name!r}, which is no plain file name"
        suffixes = NEURON_SUFFIXES if manifest.target.startswith("neuron-") else SUFFIXES
        if Path(name).suffix not in suffixes:
            return f"lists {name!r}; only {', '.join(sorted(suffixes))} belong in an artefact"
        if not _HASH.fullmatch(digest):
            return f"the hash of {name} is no SHA-256"
    return None


def _check_files(path: Path, manifest: Manifest) -> None:
    present = {entry.name for entry in os.scandir(path)} - {MANIFEST}
    if missing := manifest.files.keys() - present:
        raise ArtifactError(f"{path}: {min(missing)} is missing")
    if extra := present - manifest.files.keys():
        raise ArtifactError(f"{path}: {min(extra)} does not belong to the artefact")
    for name, digest in manifest.files.items():
        if file_hash(_regular_file(path, name)) != digest:
            raise ArtifactError(f"{path}: {name} was changed, its SHA-256 is not the manifest's")


def _regular_file(directory: Path, name: str) -> Path:
    """`directory`/`name`, which must be a file itself: a link may point anywhere, any time."""
    file = directory / name
    if file.is_symlink() or not file.is_file():
        raise ArtifactError(f"{directory}: {name} is not a regular file")
    return file


def read_labels(file: Path) -> tuple[Label, ...]:
    """The labels of a labels.json; raises ArtifactError when it is not one."""
    labels = _decode(file, file.read_bytes(), tuple[Label, ...])
    if not labels:
        raise ArtifactError(f"{file}: holds no labels")
    seen: set[str] = set()
    for label in labels:
        if not label.id.strip():
            raise ArtifactError(f"{file}: a label has no id")
        if label.id in seen:
            raise ArtifactError(f"{file}: label {label.id!r} stands there twice")
        seen.add(label.id)
    return labels


def read_golden(file: Path, known: set[str]) -> tuple[Golden, ...]:
    """The questions of a golden.jsonl, whose answers are among the `known` category ids.

    Raises ArtifactError when it is not one.
    """
    questions = tuple(
        _decode(file, line, Golden) for line in file.read_bytes().splitlines() if line.strip()
    )
    if not questions:
        raise ArtifactError(f"{file}: holds no golden question")
    for question in questions:
        if unknown := question.logits.keys() - known:
            raise ArtifactError(f"{file}: a logit for {min(unknown)!r}, which is no label")
        best = max(question.logits, key=question.logits.__getitem__, default=None)
        if best is None or question.logits.get(question.category_id) != question.logits[best]:
            raise ArtifactError(
                f"{file}: {question.category_id!r} is not the answer that its logits give"
            )
    return questions


def write_labels(file: Path, labels: Iterable[Label]) -> None:
    """Write a labels.json: one label a line, in logit order."""
    rows = b",\n".join(msgspec.json.encode(label) for label in labels)
    file.write_bytes(b"[\n" + rows + b"\n]\n")


def write_golden(file: Path, questions: Iterable[Golden]) -> None:
    """Write a golden.jsonl."""
    file.write_bytes(b"".join(msgspec.json.encode(question) + b"\n" for question in questions))


def _decode(file: Path, content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(f"{file}: cannot be read: {error}") from error


def _convert(file: Path, raw: dict[str, Any]) -> Manifest:
    try:
        return msgspec.convert(raw, Manifest)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{file}: cannot be read: {error}") from error


def flush(path: Path) -> None:
    """Have the disk hold the file or directory, so that a power cut cannot halve it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
