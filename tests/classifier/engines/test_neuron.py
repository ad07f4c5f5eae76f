"""The Neuron engine on a stand-in for the device: routing, padding, cores and refusals."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from classifier import artifact
from classifier.artifact import Artifact, ArtifactError, Description
from classifier.engines import EngineError, load_engine
from classifier.engines.neuron import check_versions, pin_core, runtime_version
from classifier.exit_codes import BAD_MODEL, BAD_SETTINGS, DEVICE_TAKEN, NO_DEVICE, WRONG_RUNTIME
from classifier.model import Model
from classifier.tokens import pad
from tests.classifier import toy
from tests.neuron import machine

SHAPES = ((4, 4), (2, 8), (1, 12))
WORDS = ("Kettle", "Sofa", "Tent", "steel", "blue", "unknown")
TEXTS = ["Kettle steel", "Tent", "", "Sofa blue blue blue blue", "blue " * 30, *WORDS]


class Toy(torch.nn.Module):
    """The toy's own arithmetic, in which nothing is rounded: its inputs in the order given."""

    def __init__(self, inputs: Sequence[str], labels: int) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.from_numpy(toy.TABLE[:, :labels].copy()))
        self.swapped = inputs[0] != "input_ids"

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        ids, mask = (second, first) if self.swapped else (first, second)
        weights = mask.unsqueeze(-1).to(torch.float32)
        return (self.table[ids.long()] * weights).sum(1) / weights.sum(1)


@pytest.fixture(autouse=True)
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A machine of this test's own: its cores are free."""
    with machine(tmp_path_factory.mktemp("drivers")):
        yield


def publish(
    parent: Path,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    integers: str = "int64",
    inputs: tuple[str, str] = ("input_ids", "attention_mask"),
    labels: int = 3,
    **changes: Any,
) -> Artifact:
    """The toy for Neuron, a graph for each of `shapes`."""
    import torch_neuronx  # type: ignore[import-not-found]

    known = toy.publish(parent / "toy")
    staging = parent / "staging"
    known.path.rename(staging)
    for name in (artifact.MANIFEST, "model.onnx"):
        (staging / name).unlink()
    buckets = []
    for batch, length in shapes:
        example = torch.ones((batch, length), dtype=getattr(torch, integers))
        name = f"model.{batch}x{length}.pt"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = torch_neuronx.trace(
                Toy(inputs, labels),
                (example, example),
                compiler_args=["--target", "inf2"],
                cpu_backend=True,
            )
            torch.jit.save(graph, staging / name)
        buckets.append({"batch": batch, "length": length, "file": name})
    described = {
        "inputs": inputs,
        "integers": integers,
        "pad_id": toy.IDS["<pad>"],
        "buckets": buckets,
    }
    (staging / "buckets.json").write_bytes(msgspec.json.encode(described))
    fields = {name: getattr(known.manifest, name) for name in Description.__struct_fields__}
    fields |= {"target": "neuron-inf2", "versions": {"neuronx-cc": "2.26.6360.0"}} | changes
    return Artifact.load(artifact.publish(staging, Description(**fields), parent))


def expected(rows: list[list[int]]) -> NDArray[np.float32]:
    return np.array([toy.TABLE[row].mean(axis=0) for row in rows], dtype=np.float32)


def refusal(made: Artifact) -> EngineError:
    with pytest.raises(EngineError) as caught:
        load_engine(made, 1)
    assert "\n" not in str(caught.value)
    return caught.value


# Answers


@pytest.mark.parametrize(
    ("integers", "inputs"),
    [
        ("int64", ("input_ids", "attention_mask")),
        ("int32", ("attention_mask", "input_ids")),
    ],
)
def test_any_call_is_answered_by_graphs_that_take_one_shape(
    tmp_path: Path, integers: str, inputs: tuple[str, str]
) -> None:
    engine = load_engine(publish(tmp_path, integers=integers, inputs=inputs), 1)
    rng = np.random.default_rng(0)
    for count in (1, 2, 5, 23):
        lengths = rng.integers(1, toy.MAX_TOKENS + 1, count).tolist()
        rows = [rng.integers(0, len(toy.WORDS), length).tolist() for length in lengths]
        answer = engine.logits(*pad(rows, max(lengths), toy.IDS["<pad>"]))
        assert answer.dtype == np.float32
        np.testing.assert_allclose(answer, expected(rows), atol=1e-5)
    engine.close()


def test_what_stands_behind_a_row_is_never_read(tmp_path: Path) -> None:
    engine = load_engine(publish(tmp_path), 1)
    rows = [[4, 5, 6], [7]]
    ids, lengths = pad(rows, 12, toy.IDS["Crash"])
    np.testing.assert_allclose(engine.logits(ids, lengths), expected(rows), atol=1e-6)


def test_no_rows_are_no_call(tmp_path: Path) -> None:
    answer = load_engine(publish(tmp_path), 1).logits(
        np.empty((0, 8), np.int32), np.empty(0, np.int32)
    )
    assert answer.shape == (0, 3)
    assert answer.dtype == np.float32


def test_the_model_answers_as_it_does_elsewhere(tmp_path: Path) -> None:
    made = publish(tmp_path)
    here = Model.load(made.path, threads=1)
    elsewhere = Model.load(toy.publish(tmp_path / "onnx").path, threads=1)
    for own, other in zip(here.predict(TEXTS), elsewhere.predict(TEXTS), strict=True):
        assert own is not None
        assert other is not None
        assert own.category_id == other.category_id
        assert own.score == pytest.approx(other.score, abs=1e-5)
    alone = [here.predict([text])[0] for text in TEXTS]
    assert alone == here.predict(TEXTS)


# Refusals


def test_a_missing_device_has_a_message_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = publish(tmp_path)
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "0")
    refused = refusal(made)
    assert refused.code == NO_DEVICE
    assert str(refused) == (
        f"artefact {made.manifest.id} is for neuron-inf2, and there is no Neuron device here:"
        " no /dev/neuron*"
    )


def test_a_taken_core_has_a_message_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = publish(tmp_path)
    monkeypatch.setenv("CLASSIFIER_SLOT", "1")
    with (Path(os.environ["NEURON_DOUBLE_LOCKS"]) / "core1").open("w") as another:
        fcntl.flock(another, fcntl.LOCK_EX)  # as another process has it
        refused = refusal(made)
    assert refused.code == DEVICE_TAKEN
    assert "NeuronCore 1 cannot be had: another process has it" in str(refused)


def test_a_core_that_is_not_there_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLASSIFIER_SLOT", "7")
    refused = refusal(publish(tmp_path))
    assert refused.code == DEVICE_TAKEN
    assert "NeuronCore 7 cannot be had" in str(refused)


def test_another_compilers_graph_is_refused_by_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = publish(tmp_path)
    monkeypatch.setenv("NEURON_DOUBLE_RUNTIME", "3.1.0")
    refused = refusal(made)
    assert refused.code == WRONG_RUNTIME
    assert "NEFF version mismatch supported: 3.1.0 received: 2.26.6360.0" in str(refused)
    assert "compile it again with the SDK that serves it" in str(refused)


def test_another_compilers_artefact_is_refused_by_its_manifest(tmp_path: Path) -> None:
    made = publish(tmp_path)
    check_versions(made, "2.34.10.0")
    check_versions(made, None)
    with pytest.raises(EngineError) as caught:
        check_versions(made, "3.0.0.0")
    assert caught.value.code == WRONG_RUNTIME
    assert "neuronx-cc 2.26.6360.0, and the runtime here is 3.0.0.0" in str(caught.value)
    (tmp_path / "unknown").mkdir()
    with pytest.raises(EngineError, match="does not say which neuronx-cc compiled it"):
        check_versions(publish(tmp_path / "unknown", versions={}), "2.34.10.0")


def test_the_runtime_judges_by_itself_what_the_compiler_of_inf1_made(tmp_path: Path) -> None:
    made = publish(tmp_path, target="neuron-inf1", versions={"neuron-cc": "1.24.0.0"})
    check_versions(made, "2.33.10.0")
    (tmp_path / "unknown").mkdir()
    with pytest.raises(EngineError, match="does not say which neuron-cc compiled it"):
        check_versions(publish(tmp_path / "unknown", target="neuron-inf1"), "2.33.10.0")


def test_the_runtime_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        @staticmethod
        def nrt_get_version(version: Any, size: Any) -> int:
            assert size.value == 4 * 8 + 128 + 64  # nrt_version_t as documented
            numbers = ctypes.cast(version, ctypes.POINTER(ctypes.c_uint64))
            numbers[0], numbers[1], numbers[2], numbers[3] = 2, 33, 10, 0
            return 0

    assert runtime_version("libnrt-is-not-here.so.1") is None
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library)
    assert runtime_version() == "2.33.10.0"


def test_without_its_package_one_line_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = publish(tmp_path)
    monkeypatch.setitem(sys.modules, "torch_neuronx", None)
    refused = refusal(made)
    assert refused.code == BAD_SETTINGS
    assert "the Neuron engine needs torch_neuronx" in str(refused)


def test_a_graph_with_other_labels_is_refused_before_it_serves(tmp_path: Path) -> None:
    refused = refusal(publish(tmp_path, labels=2))
    assert refused.code == BAD_MODEL
    assert "model.4x4.pt gives [4, 2] for 4 texts and 3 labels" in str(refused)


def test_a_graph_of_another_shape_than_listed_is_refused_before_it_serves(tmp_path: Path) -> None:
    made = publish(tmp_path)
    staging = tmp_path / "staging"
    made.path.rename(staging)
    described = json.loads((staging / "buckets.json").read_text())
    described["buckets"][1]["batch"] = 3
    (staging / "buckets.json").write_text(json.dumps(described))
    (staging / artifact.MANIFEST).unlink()
    known = {name: getattr(made.manifest, name) for name in Description.__struct_fields__}
    wrong = Artifact.load(artifact.publish(staging, Description(**known), tmp_path))
    assert "Incorrect input tensor at position 0" in str(refusal(wrong))


class Payload:
    """What a pickle can do that is read by torch.load or pickle.load."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_pickle_in_a_graphs_place_is_never_run(tmp_path: Path, writer: str) -> None:
    made = publish(tmp_path)
    mark = tmp_path / "it ran"
    with (made.path / "model.4x4.pt").open("wb") as file:
        if writer == "torch":
            torch.save(Payload(mark), file)
        else:
            pickle.dump(Payload(mark), file)
    assert "Neuron cannot load artefact" in str(refusal(made))
    assert not mark.exists()


def test_graphs_belong_in_an_artefact_for_neuron_alone(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"lists 'model.1x12.pt'; only .json, .jsonl, .onnx"):
        publish(tmp_path, shapes=[(1, 12)], target="onnx-cpu")


# Cores


@pytest.mark.parametrize(
    ("visible", "slot", "core"),
    [
        (None, 0, 0),
        (None, 3, 3),
        ("4", 0, 4),
        ("4-7", 2, 6),
        ("0,2,9", 2, 9),
        ("0-1, 6-7", 3, 7),
    ],
)
def test_each_worker_has_one_core(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, slot: int, core: int
) -> None:
    if visible is not None:
        monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", visible)
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "8")
    assert pin_core(slot) == core
    assert os.environ["NEURON_RT_VISIBLE_CORES"] == str(core)
    assert "NEURON_RT_NUM_CORES" not in os.environ


@pytest.mark.parametrize(
    ("visible", "message", "code"),
    [
        ("2-3", "NEURON_RT_VISIBLE_CORES is 2-3, 2 in all, and this is worker 3", NO_DEVICE),
        ("two", "NEURON_RT_VISIBLE_CORES is 'two'; it must be like 0, 0-3 or 0,2", BAD_SETTINGS),
    ],
)
def test_a_worker_without_a_core_is_refused(
    monkeypatch: pytest.MonkeyPatch, visible: str, message: str, code: int
) -> None:
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", visible)
    with pytest.raises(EngineError) as caught:
        pin_core(2)
    assert message in str(caught.value)
    assert caught.value.code == code


def test_only_the_workers_own_core_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLASSIFIER_SLOT", "1")
    load_engine(publish(tmp_path), 1)
    assert [file.name for file in Path(os.environ["NEURON_DOUBLE_LOCKS"]).iterdir()] == ["core1"]
