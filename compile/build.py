"""The way from a checkpoint to a published artefact, the same for every target."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from classifier import artifact
from classifier.artifact import ArtifactError
from classifier.engines import Engine, EngineError, load_engine
from classifier.model import Model, ModelError, wide_part
from compile import neuron, onnx
from compile.checkpoint import FILES, Checkpoint, CheckpointError
from compile.verify import BATCH_TOKENS, Verification, VerificationError, verify

PACKAGES = (
    "torch", "transformers", "tokenizers", "onnx", "onnxruntime", "torch-neuronx", "neuronx-cc",
    "torch-neuron", "neuron-cc",
)  # fmt: skip


class CompileError(Exception):
    """No artefact was made. The message is one line."""


class Target(NamedTuple):
    """How artefacts for one target are made: their precision, and who writes the model's files."""

    precision: str
    write: Callable[[Checkpoint, Path], Mapping[str, Any]]  # into a directory; returns its report


ENCODER_FILES = ("config.json", "model.safetensors")
"""What becomes the target's own form; all else is copied as it is."""


def _copy_weights(checkpoint: Checkpoint, directory: Path) -> Mapping[str, Any]:
    """PyTorch reads the neutral form itself, and converts the weights as it loads them."""
    for name in ENCODER_FILES:
        shutil.copyfile(checkpoint.path / name, directory / name)
    return {}


def _export_onnx(checkpoint: Checkpoint, directory: Path) -> Mapping[str, Any]:
    return {"fused": onnx.export(checkpoint, directory)}


def _trace_neuron(target: str) -> Callable[[Checkpoint, Path], Mapping[str, Any]]:
    return lambda checkpoint, directory: neuron.export(checkpoint, directory, target)


TARGETS = {
    "onnx-cpu": Target("fp32", _export_onnx),
    "torch-cpu": Target("fp32", _copy_weights),
    "torch-cuda": Target("bf16", _copy_weights),
    **{name: Target("bf16", _trace_neuron(name)) for name in neuron.FAMILIES},
}


def build(checkpoint_path: Path, target: str, out: Path, threads: int = 1) -> Path:
    """Compile, verify and publish; returns the artefact's path, `out`/<id>.

    Raises CompileError; then nothing was published.
    """
    if target not in TARGETS:
        raise CompileError(f"no target {target!r}; there are {', '.join(TARGETS)}")
    out.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=out))
    try:
        return _build(Checkpoint.load(checkpoint_path), target, staging, out, threads)
    except (
        CheckpointError, ArtifactError, EngineError, ModelError, VerificationError,
        onnx.ExportError, neuron.NeuronError,
    ) as error:  # fmt: skip
        raise CompileError(str(error)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _build(checkpoint: Checkpoint, target: str, staging: Path, out: Path, threads: int) -> Path:
    model = TARGETS[target]
    known = checkpoint.description
    _check_positions(checkpoint)
    for name in set(FILES[known.kind]) - set(ENCODER_FILES):
        shutil.copyfile(checkpoint.path / name, staging / name)
    written = model.write(checkpoint, staging)
    description = artifact.Description(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        kind=known.kind,
        target=target,
        precision=model.precision,
        checkpoint=checkpoint.hash,
        data=known.data,
        taxonomy=known.taxonomy,
        text=known.text,
        max_tokens=known.max_tokens,
        pad_multiple=known.pad_multiple,
        versions=known.versions | versions(),
        temperature=known.temperature,
        threshold=known.threshold,
        thresholds=known.thresholds,
    )
    # Verified is the very directory that gets published, with the very engine that will serve it.
    report = staging / "report.json"
    report.write_bytes(b"{}")
    sealed = artifact.seal(staging, description)
    engine, wide = _engine(sealed, threads), wide_part(sealed)
    with closing(Model(sealed, engine, 0, BATCH_TOKENS, alternatives=1, wide=wide)) as served:
        verification = verify(checkpoint, sealed, engine, wide)
        served.check_golden()
    sizes = {
        file.name: file.stat().st_size
        for file in staging.iterdir()
        if file.name not in {report.name, artifact.MANIFEST}  # which are not final yet
    }
    contents = {
        "training": known.report,
        "compile": {
            "target": target,
            "verification": msgspec.to_builtins(verification),
            # Of what was verified, so that nobody takes these figures for another artefact's.
            "sha256": {n: h for n, h in sealed.manifest.files.items() if n != report.name},
            "bytes": dict(sorted(sizes.items())),
            **written,
        },
    }
    report.write_bytes(msgspec.json.format(msgspec.json.encode(contents), indent=1) + b"\n")
    staging.chmod(0o755)
    return artifact.publish(staging, description, out)


def verify_published(checkpoint_path: Path, path: Path, threads: int = 1) -> Verification:
    """Compare the artefact in `path`, or the one that `path`/current names, with the checkpoint.

    Raises CompileError when it does not answer as the checkpoint does, or cannot be asked.
    """
    try:
        checkpoint = Checkpoint.load(checkpoint_path)
        found = artifact.Artifact.load(artifact.resolve(path))
        engine, wide = _engine(found, threads), wide_part(found)
        with closing(Model(found, engine, 0, BATCH_TOKENS, alternatives=1, wide=wide)) as served:
            verification = verify(checkpoint, found, engine, wide)
            served.check_golden()
    except (CheckpointError, ArtifactError, EngineError, ModelError, VerificationError) as error:
        raise CompileError(str(error)) from error
    return verification


def _engine(sealed: artifact.Artifact, threads: int) -> Engine:
    """The engine that will serve it; without a GPU its arithmetic on the CPU stands in.

    The worker asks the golden questions on its own device before it serves in any case.
    """
    if sealed.manifest.target == "torch-cuda" and not torch.cuda.is_available():
        from classifier.engines.torch import TorchEngine

        return TorchEngine(sealed, threads, device="cpu")
    return load_engine(sealed, threads)


def _check_positions(checkpoint: Checkpoint) -> None:
    from classifier.encoder import longest_input

    longest = longest_input(checkpoint.encoder())
    if longest is not None and checkpoint.description.max_tokens > longest:
        raise CompileError(
            f"{checkpoint.path}: max_tokens is {checkpoint.description.max_tokens}, but its encoder"
            f" has positions for {longest}"
        )


def versions() -> dict[str, str]:
    """The versions of the packages that training and compiling depend on, where installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
