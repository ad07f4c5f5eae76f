"""A checkpoint as Neuron's graphs, on a stand-in for the vendor's compiler and device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from classifier.artifact import Artifact
from classifier.encoder import Attention, OfferEncoder
from classifier.engines import load_engine
from classifier.engines.buckets import read_buckets
from classifier.precision import LOGIT_BOUND
from compile import neuron
from compile.buckets import Shape
from compile.build import CompileError, Wanted, build
from compile.checkpoint import Checkpoint
from compile.verify import VerificationError, verify
from tests.neuron import environment, machine
from training.tiny import tiny_offers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkpoint(artifact: Path) -> Checkpoint:
    return Checkpoint.load(artifact.parent / "checkpoint")


@pytest.fixture(scope="module", autouse=True)
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with machine(tmp_path_factory.mktemp("drivers")):
        yield


@pytest.fixture(scope="module")
def built(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.load(build(checkpoint.path, "neuron-inf2", tmp_path_factory.mktemp("inf2")))


def report(artifact: Artifact) -> Any:
    return json.loads((artifact.path / "report.json").read_text())["compile"]


def record(file: Path) -> Any:
    """What the stand-in's compiler was told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = torch.jit.load(file)  # type: ignore[no-untyped-call]
    return json.loads(loaded.neff.record) | {"asynchronous": loaded.neff.asynchronous}


def test_artefact_holds_a_graph_for_each_bucket_and_says_what_made_it(
    built: Artifact, checkpoint: Checkpoint
) -> None:
    manifest = built.manifest
    assert (manifest.target, manifest.precision) == ("neuron-inf2", "bf16")
    assert manifest.checkpoint == checkpoint.hash
    assert manifest.versions["torch-neuronx"] == "2.9.0.2.15.32035"
    assert manifest.versions["neuronx-cc"] == "2.26.6360.0"
    assert manifest.versions["torch"] == torch.__version__
    listed = read_buckets(built)
    assert listed.pad_id == checkpoint.tokeniser().pad_id
    assert [bucket.file for bucket in listed.buckets] == [
        f"model.{bucket.batch}x{bucket.length}.pt" for bucket in listed.buckets
    ]
    assert listed.buckets[-1].length == manifest.max_tokens
    assert report(built)["buckets"] == [f"{b.batch}x{b.length}" for b in listed.buckets]
    assert report(built)["padding"] < report(built)["padding_with_one_length"] / 2


def test_verification_asks_every_bucket_at_every_length(built: Artifact) -> None:
    said = report(built)["verification"]
    assert said["verified_on"] == "neuron-inf2"
    assert said["lengths"] == built.manifest.max_tokens
    assert said["top1_agreement"] == 1
    # Products of rounded operands: off by more than sums in another order, by less than the bound.
    assert 1e-3 < said["largest_difference"] < LOGIT_BOUND["bf16"] / 2
    assert said["bound"] == LOGIT_BOUND["bf16"]


def test_the_compiler_is_told_what_the_documents_say(
    checkpoint: Checkpoint, built: Artifact, tmp_path: Path, one_bucket: None
) -> None:
    bucket = read_buckets(built).buckets[0]
    made = record(built.path / bucket.file)
    assert made["options"] == {
        "--target": "inf2",
        "--model-type": "transformer",
        "--auto-cast": "matmult",
        "--auto-cast-type": "bf16",
        "--optlevel": "2",
    }
    assert made["inputs"] == [[[bucket.batch, bucket.length], "torch.int64"]] * 2
    assert made["asynchronous"]
    neuron.export(checkpoint, tmp_path, "neuron-trn1")
    (graph, *_) = tmp_path.glob("model.*.pt")
    assert record(graph)["options"]["--target"] == "trn1"


def test_one_wrong_bucket_is_found(built: Artifact, checkpoint: Checkpoint) -> None:
    engine: Any = load_engine(built, 1)
    for bucket, graph in list(engine._graphs.items()):
        engine._graphs[bucket] = lambda *given, graph=graph: graph(*given) + 0.3
        with pytest.raises(VerificationError, match=r"differs by 0\.3"):
            verify(checkpoint, built, engine)
        engine._graphs[bucket] = graph
    assert verify(checkpoint, built, engine).top1_agreement == 1


@pytest.fixture
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what holds however many there are: compiling one is quicker."""
    monkeypatch.setattr(neuron, "shapes", lambda *_, **__: [Shape(8, 32)])


def test_dropout_at_work_is_found(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_bucket: None
) -> None:
    load = OfferEncoder.load

    def load_training(directory: Path, labels: int, attention: Attention = "sdpa") -> OfferEncoder:
        return load(directory, labels, attention).train()

    monkeypatch.setattr(OfferEncoder, "load", load_training)
    with pytest.raises(CompileError, match="differs by"):
        build(checkpoint.path, "neuron-inf2", tmp_path)


def test_lengths_come_from_the_traffic_that_is_given(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = tmp_path / "offers.jsonl"
    offers = [{"offer_id": str(n), "title": "tent"} for n in range(20)]
    file.write_bytes(b"\n".join(map(msgspec.json.encode, offers)))
    made = build(checkpoint.path, "neuron-inf2", tmp_path, wanted=Wanted(traffic=file))
    buckets = read_buckets(Artifact.load(made)).buckets
    assert [(bucket.batch, bucket.length) for bucket in buckets] == [(32, 8), (8, 32)]
    with pytest.raises(CompileError, match="--traffic is for Neuron's alone"):
        build(checkpoint.path, "onnx-cpu", tmp_path, wanted=Wanted(traffic=file))


def test_traffic_is_a_file_of_offers(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "offers.jsonl"
    made = [offer for offer, _ in tiny_offers(each=2)]
    file.write_bytes(
        b"\n".join(msgspec.json.encode(offer) for offer in made) + b'\n{"offer_id": "1"}\n'
    )
    texts = [checkpoint.description.text.text(offer) for offer in made]
    tokens = [len(row) for row in checkpoint.tokeniser().encode(texts)[0]]
    histogram = neuron.traffic(checkpoint, file)
    assert sum(histogram.values()) == len(made)  # an offer without a text is none
    assert histogram == {length: tokens.count(length) for length in set(tokens)}
    (tmp_path / "none.jsonl").write_bytes(b'{"offer_id": "1"}\n')
    with pytest.raises(neuron.NeuronError, match="none of its offers has a text"):
        neuron.traffic(checkpoint, tmp_path / "none.jsonl")


def test_without_a_device_it_is_compiled_and_said_to_be_unverified(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_bucket: None
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "0")
    made = Artifact.load(build(checkpoint.path, "neuron-inf2", tmp_path))
    assert report(made)["verification"] is None
    assert "there is no Neuron device here" in report(made)["unverified"]
    # On a machine that has one, the very same files are verified.
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    assert verify(checkpoint, made, load_engine(made, 1)).top1_agreement == 1


@pytest.mark.parametrize(
    ("target", "package"), [("neuron-inf2", "torch_neuronx"), ("neuron-inf1", "torch_neuron")]
)
def test_without_its_package_one_line_says_what_is_missing(
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        CompileError, match=f"compiling for {target} needs {package}: see"
    ) as caught:
        build(checkpoint.path, target, tmp_path)
    assert "\n" not in str(caught.value)


def test_no_onnx_is_needed(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The vendor's compiler has an environment of its own; what others need, one line names."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "sys.modules.update(onnx=None, onnxruntime=None)\n"
        "from compile.build import CompileError, build\n"
        "original, out = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "print((build(original, 'neuron-inf2', out) / 'buckets.json').exists())\n"
        "try:\n    build(original, 'onnx-cpu', out)\n"
        "except CompileError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(checkpoint.path), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment(tmp_path),
        check=True,
    )
    assert done.stdout.splitlines() == [
        "True", "compiling needs onnx: pip install 'offer-classifier[compile]'",
    ]  # fmt: skip


def test_inf1_is_asked_by_its_own_documents(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that it works: it has never run. That the documented call is made, a text a run."""
    asked: list[tuple[torch.Size, dict[str, Any]]] = []

    def trace(model: torch.nn.Module, example_inputs: Any, **options: Any) -> Any:
        asked.append((example_inputs[0].shape, options))
        return torch.jit.trace(model, example_inputs, check_trace=False)  # type: ignore[no-untyped-call]

    package: Any = types.ModuleType("torch_neuron")
    package.trace = trace
    monkeypatch.setitem(sys.modules, "torch_neuron", package)
    neuron.export(checkpoint, tmp_path, "neuron-inf1")
    assert {shape[0] for shape, _ in asked} == {1}
    assert asked[0][1] == {"compiler_args": ["--fast-math", "none"], "fallback": False}
    assert len(list(tmp_path.glob("model.1x*.pt"))) == len(asked)
