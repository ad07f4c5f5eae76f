"""int8: static, calibrated, by column, chosen by what was measured, and dynamic never."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic

from classifier import cpu
from classifier.artifact import Artifact
from classifier.batching import plan
from classifier.engines import EngineError, load_engine
from classifier.exit_codes import NO_DEVICE
from classifier.precision import NEIGHBOUR_BOUND
from classifier.tokens import Tokeniser
from compile import choice, quantise
from compile.build import CompileError, Wanted, build
from compile.checkpoint import Checkpoint
from compile.offers import draw
from compile.onnx import ExportError, check_served
from compile.verify import engine_logits
from tests.compile.conftest import write_offers
from training.tiny import tiny_offers


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "ROUND_SECONDS", 0.02)


@pytest.fixture(scope="module")
def checkpoint(artifact: Path) -> Checkpoint:
    return Checkpoint.load(artifact.parent / "checkpoint")


def operators(file: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(str(file)).graph.node)


def weights(file: Path) -> list[NDArray[np.int8]]:
    graph = onnx.load(str(file)).graph
    return [
        numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 2
    ]


def exported(checkpoint: Checkpoint, texts: Sequence[str], directory: Path, bits: int) -> Path:
    directory.mkdir()
    quantise.export(checkpoint, texts, directory, bits)
    return directory / "model.onnx"


def test_products_of_the_layers_are_in_int8_by_column_and_attention_stays_fused(int8: Path) -> None:
    found = operators(int8 / "model.onnx")
    assert found["MultiHeadAttention"] == 2
    assert found["Gemm"] == 1  # the head, in float32
    quantised = weights(int8 / "model.onnx")
    assert len(quantised) == 2 * 6
    # A weight's scales are as many as its columns, an activation's is one.
    scales = [
        list(tensor.dims)
        for tensor in onnx.load(str(int8 / "model.onnx")).graph.initializer
        if tensor.name.endswith("_scale") and list(tensor.dims) not in ([], [1])
    ]
    assert sorted(scales) == sorted([each.shape[1]] for each in quantised)


def test_engine_says_int8_and_its_report_what_was_measured(int8: Path) -> None:
    made = Artifact.load(int8)
    assert made.manifest.precision == "int8"
    engine = load_engine(made, 1)
    assert engine.precision == "int8"
    engine.close()
    said = json.loads((int8 / "report.json").read_text())["compile"]
    assert said["verification"]["precision"] == "int8"
    assert said["verification"]["same_winner"] > 0.9
    assert said["quantised"]["products"] == 12
    assert said["quantised"]["calibration_texts"] > 100
    assert said["precision"]["chosen"] == said["precision"]["asked"] == "int8"
    weighed = said["precision"]["weighed"]
    assert set(weighed["offers_per_second"]) == set(weighed["accuracy"]) == {"fp32", "int8"}
    assert weighed["agreement"] >= 0.99
    assert 0.001 < said["verification"]["largest_difference"] < 0.5  # else it would not be int8


def test_order_of_the_offers_has_no_part_in_the_graph(
    checkpoint: Checkpoint, tmp_path: Path, offers: Path
) -> None:
    recipe = checkpoint.description.text
    backwards = list(tiny_offers(seed=1))[::-1]
    other = draw(write_offers(tmp_path / "backwards.jsonl", backwards), recipe).calibration
    texts = draw(offers, recipe).calibration
    first = exported(checkpoint, texts, tmp_path / "first", 8)
    again = exported(checkpoint, other, tmp_path / "again", 8)
    assert first.read_bytes() == again.read_bytes()
    assert [file.name for file in (tmp_path / "first").iterdir()] == ["model.onnx"]


def test_neighbours_do_not_move_an_answer(int8: Path) -> None:
    made = Artifact.load(int8)
    engine = load_engine(made, 1)
    tokeniser = Tokeniser.from_file(int8 / "tokenizer.json", made.manifest.max_tokens)
    recipe = made.manifest.text
    rows, _ = tokeniser.encode([recipe.text(offer) for offer, _ in tiny_offers(seed=2, each=4)])
    alone = engine_logits(engine, rows, [[i] for i in range(len(rows))], tokeniser.pad_id)
    rng = np.random.default_rng(0)
    differences = []
    for size in (2, 7, 32, len(rows)):
        order = rng.permutation(len(rows)).tolist()
        calls = [order[i : i + size] for i in range(0, len(order), size)]
        together = engine_logits(engine, rows, calls, tokeniser.pad_id)
        differences.append(np.abs(together - alone).max(axis=1))
    served = [call.rows for call in plan([len(row) for row in rows], 512, 8, 32)]
    together = engine_logits(engine, rows, served, tokeniser.pad_id)
    differences.append(np.abs(together - alone).max(axis=1))
    engine.close()
    found = np.concatenate(differences)
    assert found.max() <= NEIGHBOUR_BOUND["int8"]
    assert np.mean(found < 1e-5) > 0.95  # what is more is one rounding that fell the other way


def test_dynamic_quantisation_is_refused_by_name(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for name in ("dynamic", "int8-dynamic"):
        with pytest.raises(CompileError, match="neighbours move each other's answers") as caught:
            build(checkpoint.path, "onnx-cpu", tmp_path, wanted=Wanted(precision=name))
        assert "int8 is static" in str(caught.value)


def test_graph_that_was_quantised_dynamically_is_refused(artifact: Path, tmp_path: Path) -> None:
    file = tmp_path / "dynamic.onnx"
    quantize_dynamic(
        artifact / "model.onnx", file, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT}
    )
    with pytest.raises(ExportError, match="quantised dynamically, by DynamicQuantizeLinear"):
        check_served(file, 2, "int8")


def test_weights_have_7_bits_where_sums_of_8_saturate(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [question.text for question in checkpoint.golden]
    reduced = exported(checkpoint, texts, tmp_path / "7", 7)
    assert max(np.abs(each.astype(int)).max() for each in weights(reduced)) == 64
    full = exported(checkpoint, texts, tmp_path / "8", 8)
    assert max(np.abs(each.astype(int)).max() for each in weights(full)) == 127
    for there, bits in ((True, 8), (False, 7)):
        monkeypatch.setattr(quantise, "has_vnni", lambda there=there: there)
        assert quantise.weight_bits() == bits


def test_weights_of_8_bits_are_refused_where_their_sums_saturate(
    checkpoint: Checkpoint, tmp_path: Path, offers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "LEAST_SPEEDUP", 0)
    monkeypatch.setattr(cpu, "has_vnni", lambda: True)
    wanted = Wanted("auto", offers, weight_bits=8)
    made = Artifact.load(build(checkpoint.path, "onnx-cpu", tmp_path, wanted=wanted))
    said = json.loads((made.path / "report.json").read_text())["compile"]["precision"]
    assert said["chosen"] == made.manifest.precision == "int8"
    assert "times as fast as fp32 on this CPU" in said["why"]
    monkeypatch.setattr(cpu, "has_vnni", lambda: False)
    with pytest.raises(EngineError, match="compile it with --weight-bits 7") as refused:
        load_engine(made, 1)
    assert refused.value.code == NO_DEVICE  # of the machine, not of the model
    # Nor is it made here: not under its name, and auto takes what can be served.
    with pytest.raises(CompileError, match="compile it with --weight-bits 7"):
        build(checkpoint.path, "onnx-cpu", tmp_path, wanted=wanted._replace(precision="int8"))
    other = Artifact.load(build(checkpoint.path, "onnx-cpu", tmp_path, wanted=wanted))
    said = json.loads((other.path / "report.json").read_text())["compile"]["precision"]
    assert said["chosen"] == other.manifest.precision == "fp32"
    assert "sums saturate" in said["why"]


def test_auto_serves_what_was_measured_to_be_better(
    checkpoint: Checkpoint, tmp_path: Path, offers: Path
) -> None:
    wanted = Wanted(precision="auto", calibration=offers)
    made = build(checkpoint.path, "onnx-cpu", tmp_path, wanted=wanted)
    said = json.loads((made / "report.json").read_text())["compile"]["precision"]
    weighed = said["weighed"]
    pays = weighed["speedup"] >= 1.1 and weighed["agreement"] >= 0.99
    assert said["chosen"] == ("int8" if pays else "fp32")
    assert Artifact.load(made).manifest.precision == said["chosen"]
    assert weighed["accuracy"] == {}
    speed = weighed["offers_per_second"][said["chosen"]]
    assert said["why"].startswith("int8 is") if pays else f"{speed:,.0f}" in said["why"]


def broken(write: Any) -> Any:
    """A quantiser whose ranges are a twentieth of what they should be, so that most saturates."""

    def export(checkpoint: Checkpoint, texts: list[str], directory: Path, bits: int) -> Any:
        said = write(checkpoint, texts, directory, bits)
        model = onnx.load(str(directory / "model.onnx"))
        for tensor in model.graph.initializer:
            if tensor.name.endswith("_scale") and list(tensor.dims) == []:
                tensor.CopyFrom(
                    numpy_helper.from_array(numpy_helper.to_array(tensor) / 20, tensor.name)
                )
        onnx.save(model, str(directory / "model.onnx"))
        return said

    return export


def test_int8_that_saturates_is_never_chosen(
    checkpoint: Checkpoint, tmp_path: Path, offers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantise, "export", broken(quantise.export))
    with pytest.raises(CompileError, match="differs by"):
        build(checkpoint.path, "onnx-cpu", tmp_path, wanted=Wanted("int8", offers))
    assert list(tmp_path.iterdir()) == []
    made = build(checkpoint.path, "onnx-cpu", tmp_path, wanted=Wanted("auto", offers))
    assert Artifact.load(made).manifest.precision == "fp32"
    said = json.loads((made / "report.json").read_text())["compile"]["precision"]
    assert said["chosen"] == "fp32"
    assert "differs by" in said["why"]


@pytest.mark.parametrize(
    ("target", "wanted", "message"),
    [
        ("onnx-cpu", Wanted("int8"), "name a file of them, --calibration FILE"),
        ("onnx-cpu", Wanted("auto"), "name a file of them, --calibration FILE"),
        ("onnx-cpu", Wanted("int4"), "no precision 'int4'; there is fp32, int8, auto"),
        ("torch-cpu", Wanted("int8"), "no precision 'int8'; there is fp32"),
        ("onnx-cpu", Wanted("int8", Path("nothing.jsonl")), "nothing.jsonl"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(
    checkpoint: Checkpoint, tmp_path: Path, target: str, wanted: Wanted, message: str
) -> None:
    with pytest.raises(CompileError) as caught:
        build(checkpoint.path, target, tmp_path, wanted=wanted)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
