"""The ONNX engine feeds a graph what the graph itself asks for, and refuses what it cannot feed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from classifier.artifact import Artifact
from classifier.engines import EngineError, load_engine
from classifier.engines.onnx import OnnxEngine
from classifier.exit_codes import BAD_SETTINGS
from classifier.tokens import pad
from tests.classifier import toy

ROOT = Path(__file__).parents[3]
TEXTS = ["Kettle steel", "Tent", "", "Sofa blue blue blue blue"]


def engine(tmp_path: Path, model: onnx.ModelProto | None = None) -> OnnxEngine:
    return OnnxEngine(toy.publish(tmp_path, model), threads=1)


def refusal(tmp_path: Path, model: onnx.ModelProto) -> str:
    with pytest.raises(EngineError) as caught:
        engine(tmp_path, model)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
@pytest.mark.parametrize("types", [None, TensorProto.INT64, TensorProto.INT32])
def test_feeds_are_what_the_graph_asks_for(tmp_path: Path, kind: int, types: int | None) -> None:
    made = engine(tmp_path, toy.graph(kind=kind, types=types))
    rows = [toy.ids(text) for text in TEXTS]
    for length in (6, 8, 12):
        answer = made.logits(*pad([row[:length] for row in rows], length, toy.IDS["<pad>"]))
        assert answer.dtype == np.float32
        expected = [toy.TABLE[row[:length]].mean(axis=0) for row in rows]
        np.testing.assert_allclose(answer, expected, atol=1e-6)
    made.close()


def test_no_rows_are_no_call(tmp_path: Path) -> None:
    made = engine(tmp_path)
    answer = made.logits(np.empty((0, 8), np.int32), np.empty(0, np.int32))
    assert answer.shape == (0, 3)
    assert answer.dtype == np.float32


def test_single_row_is_a_batch(tmp_path: Path) -> None:
    answer = engine(tmp_path).logits(*pad([toy.ids("Tent")], 4, toy.IDS["<pad>"]))
    np.testing.assert_allclose(answer, [toy.logits("Tent")], atol=1e-6)


def test_neighbours_and_padding_do_not_move_a_row(tmp_path: Path) -> None:
    made = engine(tmp_path)
    rows = [toy.ids(text) for text in TEXTS * 8]
    together = made.logits(*pad(rows, 12, toy.IDS["<pad>"]))
    for row, values in zip(rows, together, strict=True):
        (alone,) = made.logits(*pad([row], len(row), toy.IDS["<pad>"]))
        np.testing.assert_allclose(values, alone, atol=2e-6)


def test_precision_is_the_artefacts(tmp_path: Path) -> None:
    assert engine(tmp_path).precision == "fp32"


def test_graph_of_another_width_is_refused(tmp_path: Path) -> None:
    wider = np.hstack([toy.TABLE, toy.TABLE])
    assert refusal(tmp_path, toy.graph(table=wider)) == "model.onnx gives 6 logits for 3 labels"


def test_graph_with_an_unknown_input_is_refused_by_the_inputs_name(tmp_path: Path) -> None:
    model = toy.graph(inputs=("input_ids", "attention_mask", "position_ids"))
    assert "'position_ids'" in refusal(tmp_path, model)


def test_graph_that_wants_no_integers_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, toy.graph(types=TensorProto.FLOAT))
    assert message == "model.onnx wants token_type_ids as tensor(float)"


def test_graph_with_a_second_output_is_refused(tmp_path: Path) -> None:
    assert "logits, hidden" in refusal(tmp_path, toy.graph(outputs=("logits", "hidden")))


def test_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    found = toy.publish(tmp_path)
    (found.path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineError, match="ONNX Runtime refuses") as caught:
        OnnxEngine(found, threads=1)
    assert "\n" not in str(caught.value)


def test_missing_package_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "classifier.engines.onnx")
    with pytest.raises(EngineError, match=r"pip install 'offer-classifier\[onnx\]'") as refused:
        load_engine(toy.publish(tmp_path), 1)
    assert refused.value.code == BAD_SETTINGS
    with pytest.raises(EngineError, match="onnxruntime"):
        importlib.import_module("classifier.engines.onnx")


def test_no_torch_is_needed(tmp_path: Path) -> None:
    """To import the worker, to load a model, and to answer with it."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "for name in ('torch', 'transformers', 'safetensors', 'scipy', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "import classifier.worker\n"
        "model = classifier.worker.Model.load(Path(sys.argv[1]), threads=1)\n"
        "print(model.predict(['Kettle'])[0].category_id)"
    )
    path = str(toy.publish(tmp_path).path)
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.stderr, done.stdout.strip()) == ("", toy.question("Kettle").category_id)


def test_target_chooses_the_engine(tmp_path: Path) -> None:
    made = load_engine(toy.publish(tmp_path), 1)
    assert isinstance(made, OnnxEngine)
    made.close()


def test_unknown_target_is_refused(tmp_path: Path) -> None:
    found = toy.publish(tmp_path, target="abacus")
    with pytest.raises(EngineError, match=f"'abacus' of artefact {found.manifest.id}"):
        load_engine(found, 1)


def test_artefact_made_by_the_compiler_answers_as_it_should(artifact: Path) -> None:
    found = Artifact.load(artifact)
    made = load_engine(found, 1)
    assert isinstance(made, OnnxEngine)
    width = len(found.labels)
    assert made.logits(np.empty((0, 8), np.int32), np.empty(0, np.int32)).shape == (0, width)
    made.close()
