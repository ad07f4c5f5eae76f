"""A toy model whose logits can be worked out by hand: the mean of a row of numbers for each token.

Its artefact is a real one, with a graph that ONNX Runtime computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from classifier import artifact
from classifier.artifact import Artifact, Description, Golden, Label
from classifier.text import TextRecipe

WORDS = (
    "<s>", "</s>", "<pad>", "<unk>", "Kettle", "Sofa", "Tent", "steel", "blue", "Crash", "Spoilt",
)  # fmt: skip
IDS = {word: number for number, word in enumerate(WORDS)}
LABELS = ("kettles", "sofas", "tents")
TABLE = np.array(
    [
        [0, 0, 0], [0, 0, 0], [90, -90, 90], [0, 0, 0],
        [9, 0, 1], [0, 9, 0], [0, 1, 9], [3, 0, 0], [0, 0.5, 1], [1, 1, 2], [2, 1, 1],
    ],
    dtype=np.float32,
)  # fmt: skip
"""A row of logits for each word; those of the padding would show at once."""

MAX_TOKENS = 12
GOLDEN = ("Kettle", "Sofa blue", "Tent")


def ids(text: str) -> list[int]:
    """What the toy's tokeniser makes of a text."""
    words = [IDS.get(word, IDS["<unk>"]) for word in text.split()]
    return [IDS["<s>"], *words[: MAX_TOKENS - 2], IDS["</s>"]]


def logits(text: str) -> NDArray[np.float32]:
    """The logits of a text, (labels,)."""
    return np.asarray(TABLE[ids(text)].mean(axis=0), dtype=np.float32)


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel(dict(IDS), "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", IDS["<s>"]), ("</s>", IDS["</s>"])]
    )
    return made


def graph(
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
    kind: int = TensorProto.INT64,
    table: NDArray[np.float32] = TABLE,
    outputs: Sequence[str] = ("logits",),
    types: int | None = None,
) -> onnx.ModelProto:
    """The mean over real tokens of their rows in `table`; token types, if asked for, must be 0."""
    kinds = dict.fromkeys(inputs, kind)
    if types is not None:
        kinds["token_type_ids"] = types
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["weights"]),
        helper.make_node("Mul", ["rows", "weights"], ["real"]),
        helper.make_node("ReduceSum", ["real", "tokens"], ["sums"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "tokens"], ["counts"], keepdims=1),
        helper.make_node("Div", ["sums", "counts"], ["mean"]),
    ]
    if "token_type_ids" in kinds:
        nodes += [
            helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["types", "tokens"], ["penalty"], keepdims=1),
            helper.make_node("Add", ["mean", "penalty"], [outputs[0]]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["mean"], [outputs[0]]))
    nodes += [helper.make_node("Identity", ["mean"], [name]) for name in outputs[1:]]
    made = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info(name, of, ["b", "t"]) for name, of in kinds.items()],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", table.shape[1]])
            for name in outputs
        ],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([1], np.int64), "tokens"),
            numpy_helper.from_array(np.array([-1], np.int64), "last"),
        ],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def publish(
    parent: Path,
    model: onnx.ModelProto | None = None,
    golden: Sequence[Golden] | None = None,
    labels: Sequence[str] = LABELS,
    **changes: Any,
) -> Artifact:
    """The toy's artefact in `parent`; `changes` are fields of its description."""
    staging = parent / "staging"
    staging.mkdir(parents=True)
    onnx.save(graph() if model is None else model, str(staging / "model.onnx"))
    tokenizer().save(str(staging / "tokenizer.json"))
    artifact.write_labels(staging / "labels.json", map(Label, labels))
    if golden is None:
        golden = [question(text) for text in GOLDEN]
    artifact.write_golden(staging / "golden.jsonl", golden)
    (staging / "report.json").write_bytes(msgspec.json.encode({}))
    fields: dict[str, Any] = {
        "created_at": "2026-03-01T10:00:00+00:00",
        "kind": "encoder",
        "target": "onnx-cpu",
        "precision": "fp32",
        "checkpoint": "0123456789abcdef",
        "data": {"name": "toy"},
        "taxonomy": "toy-1",
        "text": TextRecipe(),
        "max_tokens": MAX_TOKENS,
        "pad_multiple": 4,
        "versions": {},
        "temperature": 1.0,
        "threshold": 0.5,
    }
    return Artifact.load(artifact.publish(staging, Description(**(fields | changes)), parent))


def question(text: str, off: float = 0.0) -> Golden:
    """A golden question with the right answer, or one whose logits are all `off` by so much."""
    values = {label: float(value) + off for label, value in zip(LABELS, logits(text), strict=True)}
    return Golden(text, max(values, key=values.__getitem__), values)


class Engine:
    """The toy's engine in numpy, with faults.

    It raises on "Crash" and gives NaN for "Spoilt" anywhere in the batch, and raises for everything
    in its next `failures` calls.
    """

    precision = "fp32"

    def __init__(self) -> None:
        self.failures = 0
        self.asked: list[tuple[int, int]] = []  # the shape of each call
        self.closed = False

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        self.asked.append((ids.shape[0], ids.shape[1]))
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the device is away\nwith a long story")
        if (ids == IDS["Crash"]).any():
            raise ValueError("cannot compute this")
        rows = [TABLE[row[:length]].mean(axis=0) for row, length in zip(ids, lengths, strict=True)]
        computed = np.array(rows, dtype=np.float32).reshape(len(ids), TABLE.shape[1])
        computed[(ids == IDS["Spoilt"]).any(axis=1)] = np.nan
        return computed

    def close(self) -> None:
        self.closed = True
