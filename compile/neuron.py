"""A checkpoint as graphs for Inferentia or Trainium, one a bucket of (batch, length).

By torch_neuronx.trace (SDK 2.31) for Inf2 and Trn1, by its forerunner torch_neuron.trace for Inf1.
Neither has run on a device yet: what is called here is what the vendor documents, and the tests run
it against a stand-in that enforces the documents. For Inf1 there is not even that.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import torch

from classifier.encoder import OfferEncoder
from classifier.engines.buckets import FILE, Bucket, Buckets
from compile.buckets import CALL_TOKENS, Shape, edges, lengths, padded_tokens, shapes
from compile.checkpoint import Checkpoint
from compile.labelled import DataError, read_offers

CHUNK = 4_096
"""Offers in memory at once."""

INTEGERS: Final = "int64"
"""What tokenisers give and the vendor's examples trace with."""


class NeuronError(Exception):
    """The checkpoint cannot be compiled for Neuron. The message is one line."""


def traffic(checkpoint: Checkpoint, file: Path) -> Counter[int]:
    """How many offers of `file` have each number of tokens: Parquet, or JSONL, plain or gzipped.

    By the checkpoint's recipe and tokeniser; offers without a text are left out, as the service
    leaves them out. Raises NeuronError.
    """
    recipe, tokeniser = checkpoint.description.text, checkpoint.tokeniser()
    found: Counter[int] = Counter()
    try:
        offers = read_offers(file)
        while chunk := list(islice(offers, CHUNK)):
            rows, _ = tokeniser.encode([text for text in map(recipe.text, chunk) if text])
            found += lengths(rows)
    except DataError as error:
        raise NeuronError(str(error)) from error
    if not found:
        raise NeuronError(f"{file}: none of its offers has a text, so there are no lengths")
    return found


class Family(NamedTuple):
    """How graphs for one family of devices are made."""

    package: str
    trace: Callable[[Any, OfferEncoder, tuple[torch.Tensor, ...]], Any]
    call_tokens: int


def export(
    checkpoint: Checkpoint, directory: Path, target: str, traffic: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """Write model.<batch>x<length>.pt for every bucket, and buckets.json; returns what was chosen.

    `traffic` says how many texts have each number of tokens; without it the golden texts stand in
    for real ones. Raises NeuronError.
    """
    family = FAMILIES[target]
    try:
        package = importlib.import_module(family.package)
    except ImportError as error:
        raise NeuronError(
            f"compiling for {target} needs {error.name}: see the constraint file in constraints/"
        ) from error
    longest = checkpoint.description.max_tokens
    tokeniser = checkpoint.tokeniser()
    if not traffic:
        rows, _ = tokeniser.encode([question.text for question in checkpoint.golden])
        traffic = lengths(rows)
    chosen = shapes(traffic, longest, tokens=family.call_tokens)
    # Plain attention: matrix products and a softmax, which every release of the compiler knows.
    model = checkpoint.encoder(attention="eager")
    buckets = []
    for shape in chosen:
        name = f"model.{shape.batch}x{shape.length}.pt"
        _compile(package, family, model, shape, directory / name)
        buckets.append(Bucket(shape.batch, shape.length, name))
    described = Buckets(
        inputs=("input_ids", "attention_mask"),
        integers=INTEGERS,
        pad_id=tokeniser.pad_id,
        buckets=tuple(buckets),
    )
    encoded = msgspec.json.format(msgspec.json.encode(described), indent=1)
    (directory / FILE).write_bytes(encoded + b"\n")
    real = sum(n * length for length, n in traffic.items())
    one = edges(traffic, longest, 1, 1)
    return {
        "buckets": [f"{shape.batch}x{shape.length}" for shape in chosen],
        "texts": sum(traffic.values()),
        "tokens_per_text": round(real / sum(traffic.values()), 2),
        "padding": round(padded_tokens(traffic, [s.length for s in chosen]) / real - 1, 4),
        "padding_with_one_length": round(padded_tokens(traffic, one) / real - 1, 4),
    }


def _compile(package: Any, family: Family, model: OfferEncoder, shape: Shape, file: Path) -> None:
    example = torch.ones((shape.batch, shape.length), dtype=getattr(torch, INTEGERS))
    try:
        with warnings.catch_warnings():
            # Newer releases of PyTorch than Neuron's own would rather that nobody used TorchScript,
            # and tracing warns of every size that it takes for a constant: here they all are.
            warnings.simplefilter("ignore")
            traced = family.trace(package, model, (example, example.clone()))
            torch.jit.save(traced, file)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        first = str(error).partition("\n")[0]
        raise NeuronError(f"compiling {shape.batch}x{shape.length} failed: {first}") from error


def _neuronx(target: str) -> Callable[[Any, OfferEncoder, tuple[torch.Tensor, ...]], Any]:
    """torch_neuronx.trace, for one instance family of the compiler's --target."""

    def trace(package: Any, model: OfferEncoder, example: tuple[torch.Tensor, ...]) -> Any:
        traced = package.trace(
            model,
            example,
            compiler_args=[
                *("--target", target),
                *("--model-type", "transformer"),
                *("--auto-cast", "matmult"),
                *("--auto-cast-type", "bf16"),
                *("--optlevel", "2"),
            ],
            # On every machine, with a device or without: what is made does not depend on it, and
            # no core is taken for it.
            cpu_backend=True,
        )
        # A worker loads all its buckets; in the background, one is read while another is put on
        # the core. It can be said only now: once a graph is saved, its flags are what they are.
        package.async_load(traced)
        return traced

    return trace


def _neuron(package: Any, model: OfferEncoder, example: tuple[torch.Tensor, ...]) -> Any:
    """torch_neuron.trace, as documented for Inf1. Never run: see docs/compile.md."""
    # none: products of bf16 operands, summed in fp32, and nothing else rounded. fallback=False: a
    # part that the compiler does not know would be computed on the CPU, unsaid.
    return package.trace(model, example, compiler_args=["--fast-math", "none"], fallback=False)


FAMILIES: Mapping[str, Family] = {
    "neuron-inf2": Family("torch_neuronx", _neuronx("inf2"), CALL_TOKENS),
    "neuron-trn1": Family("torch_neuronx", _neuronx("trn1"), CALL_TOKENS),
    # One text a run: what was best for a small encoder on Inf1.
    "neuron-inf1": Family("torch_neuron", _neuron, 1),
}
