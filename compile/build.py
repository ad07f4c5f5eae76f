"""The way from a checkpoint to a published artefact, the same for every target."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from classifier import artifact
from classifier.artifact import ArtifactError
from classifier.encoder import OfferEncoder
from classifier.engines import Engine, EngineError, load_engine
from classifier.exit_codes import NO_DEVICE
from classifier.model import Model, ModelError, wide_part
from compile import neuron, offers
from compile.checkpoint import FILES, Checkpoint, CheckpointError
from compile.choice import Asked, Weighed, median, offers_per_second, weigh
from compile.offers import Labelled, OffersError
from compile.verify import BATCH_TOKENS, Verification, VerificationError, verify

PACKAGES = (
    "torch", "transformers", "tokenizers", "onnx", "onnxruntime", "torch-neuronx", "neuronx-cc",
    "torch-neuron", "neuron-cc",
)  # fmt: skip


class CompileError(Exception):
    """No artefact was made. The message is one line."""


class Wanted(NamedTuple):
    """What a person asks for beyond the target's own way."""

    precision: str | None = None  # "fp32", "int8" or "auto", and else the target's own
    calibration: Path | None = None  # offers of the training set, for int8
    validation: Path | None = None  # offers with labels, by which int8's accuracy is compared
    weight_bits: int | None = None  # 7 or 8; None takes what this CPU needs
    compare_exporters: bool = False
    traffic: Path | None = None  # offers whose lengths Neuron's buckets are chosen by


class Target(NamedTuple):
    """How artefacts for one target are made: their precision, and who writes the model's files."""

    precision: str
    write: Callable[[Checkpoint, Path], Mapping[str, Any]]  # into a directory; returns its report


REPORT = "report.json"

_COMPUTES = {
    "onnx-cpu": "onnxruntime on cpu",
    "torch-cpu": "torch on cpu",
    "torch-cuda": "torch on cuda",
}
"""What a report calls the engine of a target; a Neuron device by the target's own name."""

ENCODER_FILES = ("config.json", "model.safetensors")
"""What becomes the target's own form; all else is copied as it is."""


def _copy_weights(checkpoint: Checkpoint, directory: Path) -> Mapping[str, Any]:
    """PyTorch reads the neutral form itself, and converts the weights as it loads them."""
    for name in ENCODER_FILES:
        shutil.copyfile(checkpoint.path / name, directory / name)
    return {}


def _export_onnx(checkpoint: Checkpoint, directory: Path) -> Mapping[str, Any]:
    from compile import onnx

    return {"fused": onnx.export(checkpoint, directory)}


def _trace_neuron(
    target: str, traffic: Path | None = None
) -> Callable[[Checkpoint, Path], Mapping[str, Any]]:
    def trace(checkpoint: Checkpoint, directory: Path) -> Mapping[str, Any]:
        lengths = None if traffic is None else neuron.traffic(checkpoint, traffic)
        return neuron.export(checkpoint, directory, target, lengths)

    return trace


TARGETS = {
    "onnx-cpu": Target("fp32", _export_onnx),
    "torch-cpu": Target("fp32", _copy_weights),
    "torch-cuda": Target("bf16", _copy_weights),
    **{name: Target("bf16", _trace_neuron(name)) for name in neuron.FAMILIES},
}


def build(
    checkpoint_path: Path, target: str, out: Path, threads: int = 1, wanted: Wanted | None = None
) -> Path:
    """Compile, verify and publish; returns the artefact's path, `out`/<id>.

    Raises CompileError; then nothing was published.
    """
    if target not in TARGETS:
        raise CompileError(f"no target {target!r}; there are {', '.join(TARGETS)}")
    wanted = wanted or Wanted()
    _check_wanted(target, wanted)
    out.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=out))
    try:
        return _build(Checkpoint.load(checkpoint_path), target, staging, out, threads, wanted)
    except (
        CheckpointError, ArtifactError, EngineError, ModelError, VerificationError, OffersError,
        neuron.NeuronError,
    ) as error:  # fmt: skip
        raise CompileError(str(error)) from error
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _missing(error: ModuleNotFoundError) -> CompileError:
    return CompileError(f"compiling needs {error.name}: pip install 'offer-classifier[compile]'")


def _check_wanted(target: str, wanted: Wanted) -> None:
    own = TARGETS[target].precision
    choices = (own, "int8", "auto") if target == "onnx-cpu" else (own,)
    if wanted.traffic is not None and target not in neuron.FAMILIES:
        raise CompileError(f"target {target} takes every length: --traffic is for Neuron's alone")
    if wanted.precision is None:
        return
    if "dynamic" in wanted.precision and target == "onnx-cpu":
        from compile import quantise

        raise CompileError(f"{wanted.precision}: {quantise.DYNAMIC}")
    if wanted.precision not in choices:
        raise CompileError(
            f"target {target} has no precision {wanted.precision!r}; there is {', '.join(choices)}"
        )
    if wanted.precision != own and wanted.calibration is None:
        raise CompileError(
            f"precision {wanted.precision} is calibrated on offers of the training set: name a file"
            " of them, --calibration FILE"
        )


def _build(
    checkpoint: Checkpoint, target: str, staging: Path, out: Path, threads: int, wanted: Wanted
) -> Path:
    _check_positions(checkpoint)
    own = TARGETS[target]
    write = own.write if wanted.traffic is None else _trace_neuron(target, wanted.traffic)
    made = _make(checkpoint, target, own.precision, write, staging, threads)
    said: dict[str, Any] = {}
    if wanted.precision in ("int8", "auto"):
        made, said["precision"] = _choose(checkpoint, made, staging, threads, wanted)
    if wanted.compare_exporters:
        said["exporters"] = _compare_exporters(checkpoint, staging, threads)
    _write_report(checkpoint, made, said)
    made.directory.chmod(0o755)
    return artifact.publish(made.directory, made.description, out)


class _Made(NamedTuple):
    """An artefact that was verified, and lacks its report."""

    directory: Path
    description: artifact.Description
    sealed: artifact.Artifact
    verification: Verification | None
    written: Mapping[str, Any]


def _make(
    checkpoint: Checkpoint,
    target: str,
    precision: str,
    write: Callable[[Checkpoint, Path], Mapping[str, Any]],
    staging: Path,
    threads: int,
) -> _Made:
    directory = staging / precision
    description, sealed, written = _seal(checkpoint, target, precision, write, directory)
    # Verified is the very directory that gets published, by the engine that will serve it; for
    # CUDA on a machine without, by that engine on the CPU, which the report says.
    verification: Verification | None = None
    try:
        verification = _compare(checkpoint, sealed, threads)
    except EngineError as error:
        if error.code != NO_DEVICE or target not in neuron.FAMILIES:
            raise
        # Neuron's graphs are compiled on any machine and run on their device alone. What nobody
        # verified no gate lets pass.
        written = {"unverified": str(error), **written}
    return _Made(directory, description, sealed, verification, written)


def _seal(
    checkpoint: Checkpoint,
    target: str,
    precision: str,
    write: Callable[[Checkpoint, Path], Mapping[str, Any]],
    directory: Path,
) -> tuple[artifact.Description, artifact.Artifact, Mapping[str, Any]]:
    known = checkpoint.description
    directory.mkdir()
    for name in set(FILES[known.kind]) - set(ENCODER_FILES):
        shutil.copyfile(checkpoint.path / name, directory / name)
    written = write(checkpoint, directory)
    description = artifact.Description(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        kind=known.kind,
        target=target,
        precision=precision,
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
    (directory / REPORT).write_bytes(b"{}")
    return description, artifact.seal(directory, description), written


def _write_report(checkpoint: Checkpoint, made: _Made, said: Mapping[str, Any]) -> None:
    sizes = {
        file.name: file.stat().st_size
        for file in made.directory.iterdir()
        if file.name not in {REPORT, artifact.MANIFEST}  # which are not final yet
    }
    contents = {
        "training": checkpoint.description.report,
        "compile": {
            "target": made.description.target,
            "verification": msgspec.to_builtins(made.verification),
            # Of what was verified, so that nobody takes these figures for another artefact's.
            "sha256": {n: h for n, h in made.sealed.manifest.files.items() if n != REPORT},
            "bytes": dict(sorted(sizes.items())),
            **made.written,
            **said,
        },
    }
    encoded = msgspec.json.format(msgspec.json.encode(contents), indent=1)
    (made.directory / REPORT).write_bytes(encoded + b"\n")


def _choose(
    checkpoint: Checkpoint, made: _Made, staging: Path, threads: int, wanted: Wanted
) -> tuple[_Made, dict[str, Any]]:
    """The artefact to publish, in fp32 as it was made or in int8, and why, for the report.

    Asked for by name, int8 must be as good as its bounds say, but may be slow: it may be meant for
    another CPU than this one. Raises CompileError and what `_make` raises where it is not.
    """
    from compile import quantise

    assert wanted.calibration is not None
    known = checkpoint.description
    texts = offers.draw(wanted.calibration, known.text)
    labelled = None
    if wanted.validation is not None:
        label_ids = [label.id for label in checkpoint.labels]
        labelled = offers.draw_labelled(wanted.validation, known.text, label_ids)
    bits = wanted.weight_bits or quantise.weight_bits()

    def write(checkpoint: Checkpoint, directory: Path) -> Mapping[str, Any]:
        return quantise.export(checkpoint, texts.calibration, directory, bits)

    said: dict[str, Any] = {"asked": wanted.precision, "weight_bits": bits}
    weighed: Weighed | None = None
    try:
        int8 = _make(checkpoint, made.description.target, "int8", write, staging, threads)
    except (VerificationError, ModelError, EngineError) as error:
        if wanted.precision == "int8":
            raise
        against = [str(error)]
    else:
        weighed = _weigh(checkpoint, made, int8, texts.apart, labelled, threads)
        if wanted.precision == "int8" and (worse := weighed.worse()):
            raise CompileError("; ".join(worse))
        against = weighed.against() if wanted.precision == "auto" else []
        said["weighed"] = msgspec.to_builtins(weighed)
        said["slower"] = weighed.slower()
    said["chosen"] = "fp32" if against else "int8"
    said["why"] = "; ".join(against) or (
        f"int8 is {weighed.speedup:.2f} times as fast as fp32 on this CPU, and within its bounds"
        if weighed is not None and not weighed.slower()
        else "int8 was asked for by name, and is within its bounds"
    )
    return (made if against else int8), said


def _weigh(
    checkpoint: Checkpoint,
    fp32: _Made,
    int8: _Made,
    apart: list[str],
    labelled: Labelled | None,
    threads: int,
) -> Weighed:
    with ExitStack() as stack:
        engines = {
            made.description.precision: stack.enter_context(
                closing(load_engine(made.sealed, threads))
            )
            for made in (fp32, int8)
        }
        wide = wide_part(fp32.sealed)
        beside = None if wide is None else stack.enter_context(closing(wide)).answers
        multiple = checkpoint.description.pad_multiple
        return weigh(engines, checkpoint.tokeniser(), multiple, apart, labelled, beside)


def _compare_exporters(
    checkpoint: Checkpoint, staging: Path, threads: int
) -> dict[str, dict[str, Any]]:
    """Seconds, fused attention and offers/s of both exporters' graphs, on the golden texts."""
    from compile import onnx

    exporters = {"tracing": onnx.trace, "dynamo": onnx.dynamo}
    made: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for name, exporter in exporters.items():

            def write(
                checkpoint: Checkpoint,
                directory: Path,
                exporter: Callable[[OfferEncoder, Path], None] = exporter,
            ) -> Mapping[str, Any]:
                return onnx.export_by(exporter, checkpoint, directory)._asdict()

            _, sealed, written = _seal(checkpoint, "onnx-cpu", "fp32", write, staging / name)
            made[name] = dict(written)
            engines[name] = stack.enter_context(closing(load_engine(sealed, threads)))
        texts = [question.text for question in checkpoint.golden]
        asked = Asked(checkpoint.tokeniser(), checkpoint.description.pad_multiple, texts)
        speeds = offers_per_second(engines, asked)
    for name, rounds in speeds.items():
        made[name]["offers_per_second"] = median(rounds)
    return made


def verify_published(checkpoint_path: Path, path: Path, threads: int = 1) -> Verification:
    """Compare the artefact in `path`, or the one that `path`/current names, with the checkpoint.

    Raises CompileError when it does not answer as the checkpoint does, or cannot be asked.
    """
    try:
        checkpoint = Checkpoint.load(checkpoint_path)
        found = artifact.Artifact.load(artifact.resolve(path))
        return _compare(checkpoint, found, threads)
    except (CheckpointError, ArtifactError, EngineError, ModelError, VerificationError) as error:
        raise CompileError(str(error)) from error
    except ModuleNotFoundError as error:
        raise _missing(error) from error


def _compare(checkpoint: Checkpoint, sealed: artifact.Artifact, threads: int) -> Verification:
    """The artefact's answers against the checkpoint's, by the engine that `_engine` gives."""
    (engine, verified_on), wide = _engine(sealed, threads), wide_part(sealed)
    with closing(Model(sealed, engine, 0, BATCH_TOKENS, alternatives=1, wide=wide)) as served:
        verification = verify(checkpoint, sealed, engine, wide, verified_on)
        served.check_golden()
    return verification


def _engine(sealed: artifact.Artifact, threads: int) -> tuple[Engine, str]:
    """The engine that will serve it, and what computes; without a GPU, PyTorch on the CPU and
    uncompiled stands in for CUDA.

    The worker asks the golden questions on its own device before it serves in any case.
    """
    target = sealed.manifest.target
    if target == "torch-cuda" and not torch.cuda.is_available():
        from classifier.engines.torch import TorchEngine

        return TorchEngine(sealed, threads, device="cpu"), "torch on cpu, not compiled"
    return load_engine(sealed, threads), _COMPUTES.get(target, target)


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
