"""Faults planted in an artefact that was really compiled, sealed again as if it were whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic
from tokenizers import Tokenizer, normalizers, processors

from classifier.artifact import Artifact, Description, Manifest, seal, write_golden, write_labels
from classifier.text import TextRecipe
from compile.build import CompileError, verify_published
from compile.checkpoint import Checkpoint
from compile.onnx import optimise, trace

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def checkpoint(artifact: Path) -> Checkpoint:
    return Checkpoint.load(artifact.parent / "checkpoint")


def planted(artifact: Path, to: Path, change: Change | None = None, **settings: Any) -> Path:
    """A copy of the artefact with files changed, and a manifest with other `settings`."""
    copy = Path(shutil.copytree(artifact, to / "planted"))
    if change is not None:
        change(copy)
    manifest = msgspec.json.decode((copy / "manifest.json").read_bytes(), type=Manifest)
    known = {name: getattr(manifest, name) for name in Description.__struct_fields__}
    seal(copy, Description(**(known | settings)))
    assert Artifact.load(copy).manifest.id != manifest.id
    return copy


def refusal(checkpoint: Checkpoint, artifact: Path) -> str:
    with pytest.raises(CompileError) as caught:
        verify_published(checkpoint.path, artifact)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def graph(edit: Callable[[onnx.GraphProto], object]) -> Change:
    def change(copy: Path) -> None:
        model = onnx.load(str(copy / "model.onnx"))
        edit(model.graph)
        onnx.save(model, str(copy / "model.onnx"))

    return change


def tensors(
    chosen: Callable[[onnx.TensorProto], bool],
    bend: Callable[[NDArray[Any]], NDArray[Any]],
) -> Change:
    """Changes every tensor that is chosen; there must be one."""

    def edit(found: onnx.GraphProto) -> None:
        hit = [tensor for tensor in found.initializer if chosen(tensor)]
        assert hit
        for tensor in hit:
            values = bend(numpy_helper.to_array(tensor).copy())
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    return graph(edit)


def head(tensor: onnx.TensorProto) -> bool:
    return tensor.name in ("head.weight", "head.bias")


def swapped(values: NDArray[Any]) -> NDArray[Any]:
    """The first two labels in each other's place."""
    values[[0, 1]] = values[[1, 0]]
    return values


def test_what_was_compiled_passes_and_says_how_close_it_came(
    checkpoint: Checkpoint, artifact: Path, int8: Path
) -> None:
    for path, bound in ((artifact, 2e-4), (int8, 0.5)):
        found = verify_published(checkpoint.path, path)
        assert found.bound == bound
        assert found.largest_difference <= bound
        assert found.largest_neighbour_difference <= found.neighbour_bound
        assert set(found.by_length) == {"8", "16", "24", "32"}
        assert set(found.by_language) == {"de", "en", "es", "fr", "it"}
        assert sum(each.texts for each in found.by_length.values()) == found.texts
        reached = max(each.largest_difference for each in found.by_length.values())
        assert reached == found.largest_difference


def test_export_in_training_mode_is_caught(
    checkpoint: Checkpoint, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = torch.onnx.export

    def export_training(model: torch.nn.Module, *given: Any, **options: Any) -> None:
        training = torch.onnx.TrainingMode.TRAINING
        export(model.train(), *given, training=training, do_constant_folding=False, **options)

    def change(copy: Path) -> None:
        monkeypatch.setattr(torch.onnx, "export", export_training)
        trace(checkpoint.encoder(attention="eager"), copy / "model.onnx")

    said = refusal(checkpoint, planted(artifact, tmp_path, change))
    assert "exported in training mode: the graph holds Dropout" in said


@pytest.mark.parametrize(
    ("chosen", "bend"),
    [
        # Ranges that are too narrow: most activations saturate.
        (lambda t: t.name.endswith("_scale") and not t.dims, lambda values: values / 20),
        # Weights beyond 8 bits, that come round to the other end.
        (lambda t: t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2, lambda v: v * 2),
        # One column's scale alone.
        (
            lambda t: t.name.endswith("_scale") and t.dims,
            lambda values: values * np.r_[40, np.ones(len(values) - 1)].astype(np.float32),
        ),
    ],
    ids=["saturating activations", "overflowing weights", "one broken scale"],
)
def test_int8_overflow_is_caught(
    checkpoint: Checkpoint,
    int8: Path,
    tmp_path: Path,
    chosen: Callable[[onnx.TensorProto], bool],
    bend: Callable[[NDArray[Any]], NDArray[Any]],
) -> None:
    said = refusal(checkpoint, planted(int8, tmp_path, tensors(chosen, bend)))
    assert "differs by" in said
    assert "at most 0.5" in said


def test_swapped_labels_are_caught_in_the_map_and_in_the_weights(
    checkpoint: Checkpoint, artifact: Path, int8: Path, tmp_path: Path
) -> None:
    labels = list(checkpoint.labels)
    labels[0], labels[1] = labels[1], labels[0]
    copy = planted(
        artifact, tmp_path / "map", lambda copy: write_labels(copy / "labels.json", labels)
    )
    assert "its labels are not the checkpoint's" in refusal(checkpoint, copy)
    for path in (artifact, int8):
        copy = planted(path, tmp_path / path.name, tensors(head, swapped))
        assert "differs by" in refusal(checkpoint, copy)


def test_answer_that_is_not_a_number_is_caught(
    checkpoint: Checkpoint, artifact: Path, tmp_path: Path
) -> None:
    change = tensors(lambda t: t.name == "head.bias", lambda values: values * np.float32("nan"))
    assert "a logit is not finite" in refusal(checkpoint, planted(artifact, tmp_path, change))


def tokenizer(edit: Callable[[Tokenizer], object]) -> Change:
    def change(copy: Path) -> None:
        found = Tokenizer.from_file(str(copy / "tokenizer.json"))
        edit(found)
        found.save(str(copy / "tokenizer.json"))

    return change


def case_kept(found: Tokenizer) -> None:
    found.normalizer = normalizers.NFKC()


def no_special_tokens(found: Tokenizer) -> None:
    pieces = {name: found.token_to_id(name) for name in ("[CLS]", "[SEP]", "<s>", "</s>")}
    ((first, number), *_) = [(name, at) for name, at in pieces.items() if at is not None]
    found.post_processor = processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, number)]
    )


@pytest.mark.parametrize("edit", [case_kept, no_special_tokens])
def test_other_tokeniser_is_caught(
    checkpoint: Checkpoint, artifact: Path, tmp_path: Path, edit: Callable[[Tokenizer], object]
) -> None:
    said = refusal(checkpoint, planted(artifact, tmp_path, tokenizer(edit)))
    assert "it cuts texts into other tokens than the checkpoint" in said


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_tokens", 16),
        ("text", TextRecipe(prefix="query: ")),
        ("pad_multiple", 4),
        ("temperature", 9.0),
    ],
    ids=["truncation", "prefix", "padding", "temperature"],
)
def test_other_setting_is_caught(
    checkpoint: Checkpoint, artifact: Path, tmp_path: Path, setting: str, value: object
) -> None:
    said = refusal(checkpoint, planted(artifact, tmp_path, None, **{setting: value}))
    assert f"its {setting} is " in said


def test_graph_without_fused_attention_is_caught(
    checkpoint: Checkpoint, artifact: Path, tmp_path: Path
) -> None:
    def change(copy: Path) -> None:
        model = checkpoint.encoder(attention="sdpa")
        trace(model, tmp_path / "raw.onnx")
        optimise(model, tmp_path / "raw.onnx", copy / "model.onnx")

    said = refusal(checkpoint, planted(artifact, tmp_path, change))
    assert "0 attention blocks fused for 2 layers" in said


def test_graph_that_was_quantised_dynamically_is_caught(
    checkpoint: Checkpoint, artifact: Path, tmp_path: Path
) -> None:
    def change(copy: Path) -> None:
        quantize_dynamic(
            copy / "model.onnx",
            copy / "model.onnx",
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )

    said = refusal(checkpoint, planted(artifact, tmp_path, change, precision="int8"))
    assert "quantised dynamically, by DynamicQuantizeLinear" in said
    assert "neighbours move each other's answers" in said


def test_graph_of_another_precision_than_the_manifest_says_is_caught(
    checkpoint: Checkpoint, artifact: Path, int8: Path, tmp_path: Path
) -> None:
    looser = planted(artifact, tmp_path / "looser", precision="int8")
    assert "model.onnx is in fp32, and said to be in int8" in refusal(checkpoint, looser)
    finer = planted(int8, tmp_path / "finer", precision="fp32")
    assert "model.onnx is in int8, and said to be in fp32" in refusal(checkpoint, finer)


def test_artefact_of_another_checkpoint_is_refused(
    checkpoint: Checkpoint, artifact: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(checkpoint.path, tmp_path / "other"))
    description = json.loads((other / "checkpoint.json").read_text())
    (other / "checkpoint.json").write_text(json.dumps(description | {"threshold": 0.25}))
    said = refusal(Checkpoint.load(other), artifact)
    assert f"was made of checkpoint {checkpoint.hash[:16]}" in said


def test_golden_questions_must_be_the_checkpoints(
    checkpoint: Checkpoint, artifact: Path, tmp_path: Path
) -> None:
    def change(copy: Path) -> None:
        write_golden(copy / "golden.jsonl", checkpoint.golden[:1])

    said = refusal(checkpoint, planted(artifact, tmp_path, change))
    assert "its golden questions are not the checkpoint's" in said


def test_golden_questions_must_have_every_language(checkpoint: Checkpoint, artifact: Path) -> None:
    from compile.verify import VerificationError, _check_languages

    german = tuple(each for each in checkpoint.golden if each.language != "fr")
    less = Checkpoint(
        checkpoint.path, checkpoint.hash, checkpoint.description, checkpoint.labels, german
    )
    with pytest.raises(VerificationError, match="no golden text of the checkpoint is in fr"):
        _check_languages("artefact", less)
    _check_languages("artefact", checkpoint)
    # Checkpoints of before the golden texts said theirs.
    silent = tuple(msgspec.structs.replace(each, language="") for each in checkpoint.golden)
    old = Checkpoint(
        checkpoint.path, checkpoint.hash, checkpoint.description, checkpoint.labels, silent
    )
    with pytest.raises(VerificationError, match="none says its language, so train it anew"):
        _check_languages("artefact", old)
