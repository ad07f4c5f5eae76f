"""A checkpoint: a trained model in neutral form, which every target's compiler reads.

    checkpoint.json    what it is, how its texts are made, the SHA-256 of every other file
    config.json        the encoder's shape (Hugging Face's format)
    model.safetensors  its weights and the head's
    tokenizer.json     the tokeniser (Hugging Face's format)
    labels.json        the categories in logit order
    golden.jsonl       texts with the answers that training saw the model give

and of an encoder with a wide part (kind "wide-and-deep"; see classifier/wide.py)

    vocabulary.json    the wide part's n-grams
    wide.safetensors   its weights

Neither the training stack's version nor its device matter to whoever reads it, so the newest
training stack and an old compiler never have to share an environment.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from safetensors.torch import save_file
from tokenizers import Tokenizer

from classifier.artifact import (
    WIDE,
    WIDE_AND_DEEP,
    ArtifactError,
    Golden,
    Label,
    file_hash,
    flush,
    labels_hash,
    read_golden,
    read_labels,
    write_golden,
    write_labels,
)
from classifier.encoder import Attention, OfferEncoder
from classifier.ngrams import VOCABULARY
from classifier.text import TextRecipe
from classifier.tokens import Tokeniser

FORMAT: Final = 1
DESCRIPTION: Final = "checkpoint.json"
_ENCODER = ("config.json", "golden.jsonl", "labels.json", "model.safetensors", "tokenizer.json")
WIDE_FILES: Final = (VOCABULARY, WIDE)
FILES: Final = {"encoder": _ENCODER, WIDE_AND_DEEP: (*_ENCODER, *WIDE_FILES)}
"""What a checkpoint holds, by its kind."""


class CheckpointError(Exception):
    """The checkpoint cannot be used. The message is one line."""


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What training knows of its model besides the files; see classifier.artifact.Description."""

    format: int = FORMAT
    kind: str = "encoder"  # a key of FILES
    created_at: str = ""  # ISO 8601, UTC; `write` fills it in
    data: dict[str, str | int]
    taxonomy: str
    text: TextRecipe
    max_tokens: int
    pad_multiple: int = 8
    temperature: float
    threshold: float
    thresholds: dict[str, float] = {}
    versions: dict[str, str]
    report: dict[str, Any]  # what training measured; goes into the artefact's report
    labels_sha256: str = ""  # `write` fills in this and the next
    files: dict[str, str] = {}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole."""

    path: Path
    hash: str  # SHA-256 of checkpoint.json, and through it of every file
    description: Description
    labels: tuple[Label, ...]
    golden: tuple[Golden, ...]

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read and check the checkpoint in `path`. Raises CheckpointError."""
        try:
            return cls._load(path)
        except ArtifactError as error:
            raise CheckpointError(str(error)) from error
        except OSError as error:
            raise CheckpointError(f"{error.filename}: cannot be read: {error.strerror}") from error

    @classmethod
    def _load(cls, path: Path) -> Checkpoint:
        if not (path / DESCRIPTION).is_file():
            raise CheckpointError(f"{path}: has no {DESCRIPTION}, so it is no checkpoint")
        raw = (path / DESCRIPTION).read_bytes()
        try:
            description = msgspec.json.decode(raw, type=Description)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path / DESCRIPTION}: cannot be read: {error}") from error
        if description.format != FORMAT:
            raise CheckpointError(f"{path}: format {description.format}; this reads {FORMAT}")
        files = FILES.get(description.kind)
        if files is None:
            raise CheckpointError(
                f"{path}: kind {description.kind!r} is not one of {', '.join(FILES)}"
            )
        if set(description.files) != set(files):
            raise CheckpointError(f"{path}: must list {', '.join(files)} and nothing else")
        for name, digest in description.files.items():
            if file_hash(path / name) != digest:
                raise CheckpointError(f"{path}: {name} was changed, its SHA-256 is another")
        labels = read_labels(path / "labels.json")
        if labels_hash(labels) != description.labels_sha256:
            raise CheckpointError(f"{path}: labels.json is not the label map that was trained")
        golden = read_golden(path / "golden.jsonl", {label.id for label in labels})
        return cls(path, hashlib.sha256(raw).hexdigest(), description, labels, golden)

    def encoder(self, attention: Attention = "sdpa") -> OfferEncoder:
        """The model, in evaluation mode. Raises CheckpointError."""
        try:
            return OfferEncoder.load(self.path, len(self.labels), attention)
        except ValueError as error:
            raise CheckpointError(str(error)) from error

    def tokeniser(self) -> Tokeniser:
        """The tokeniser, with the checkpoint's token limit."""
        return Tokeniser.from_file(self.path / "tokenizer.json", self.description.max_tokens)


def write(
    path: Path,
    model: OfferEncoder,
    tokenizer: Tokenizer,
    labels: tuple[Label, ...],
    golden: tuple[Golden, ...],
    description: Description,
    wide: Path | None = None,
) -> Checkpoint:
    """Write a checkpoint to `path`, which it replaces; a reader never finds half of one.

    `wide` is the directory that has the files of a wide part, where the kind asks for one.
    """
    files = FILES[description.kind]
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".checkpoint-", dir=path.parent))
    try:
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(weights, staging / "model.safetensors")
        model.encoder.config.to_json_file(staging / "config.json", use_diff=False)
        tokenizer.save(str(staging / "tokenizer.json"))
        write_labels(staging / "labels.json", labels)
        write_golden(staging / "golden.jsonl", golden)
        if wide is not None:
            for name in WIDE_FILES:
                shutil.copyfile(wide / name, staging / name)
        described = msgspec.structs.replace(
            description,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            labels_sha256=labels_hash(labels),
            files={name: file_hash(staging / name) for name in files},
        )
        encoded = msgspec.json.format(msgspec.json.encode(described), indent=1)
        (staging / DESCRIPTION).write_bytes(encoded + b"\n")
        for name in (*files, DESCRIPTION):
            flush(staging / name)
        staging.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return Checkpoint.load(path)
