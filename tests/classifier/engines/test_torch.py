"""The PyTorch engine answers as the checkpoint does, in either precision."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch._dynamo.testing import CompileCounter

from classifier.artifact import Artifact
from classifier.engines import EngineError, load_engine
from classifier.engines.torch import TorchEngine
from classifier.exit_codes import BAD_SETTINGS, NO_DEVICE
from classifier.model import Model
from classifier.precision import LOGIT_BOUND
from classifier.tokens import Tokeniser, pad
from compile.build import build
from compile.checkpoint import Checkpoint
from compile.verify import reference_logits

Made = Callable[[str], Artifact]


@pytest.fixture(scope="module")
def checkpoint(artifact: Path) -> Checkpoint:
    return Checkpoint.load(artifact.parent / "checkpoint")


@pytest.fixture(scope="module")
def made(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Made:
    out = tmp_path_factory.mktemp("torch")
    known: dict[str, Artifact] = {}

    def make(target: str) -> Artifact:
        if target not in known:
            known[target] = Artifact.load(build(checkpoint.path, target, out))
        return known[target]

    return make


@pytest.mark.parametrize(("target", "precision"), [("torch-cpu", "fp32"), ("torch-cuda", "bf16")])
def test_logits_are_the_checkpoints_within_the_precisions_bound(
    made: Made, checkpoint: Checkpoint, target: str, precision: str
) -> None:
    made_for = made(target)
    engine = TorchEngine(made_for, threads=1, device="cpu")
    assert engine.precision == precision
    tokeniser = Tokeniser.from_file(made_for.path / "tokenizer.json", 32)
    rows, _ = tokeniser.encode([question.text for question in made_for.golden])
    padded, lengths = pad(rows, 32, tokeniser.pad_id)
    logits = engine.logits(padded, lengths)
    engine.close()
    assert logits.dtype == np.float32
    expected = reference_logits(checkpoint.encoder(), rows)
    assert np.abs(logits - expected).max() <= LOGIT_BOUND[precision]
    if precision == "bf16":  # else it would not be bf16
        assert np.abs(logits - expected).max() > 1e-4


def test_compiled_model_answers_as_the_plain_one_whatever_the_shape(made: Made) -> None:
    """What CUDA gets, in bf16 with sizes as they come, traced here without its code generator."""
    artifact = made("torch-cuda")
    tokeniser = Tokeniser.from_file(artifact.path / "tokenizer.json", 32)
    rows, _ = tokeniser.encode([question.text for question in artifact.golden])
    torch._dynamo.reset()
    programs = CompileCounter()
    plain = TorchEngine(artifact, threads=1, device="cpu", backend="")
    compiled = TorchEngine(artifact, threads=1, device="cpu", backend=programs)
    assert compiled.precision == "bf16"
    # One for a single row and one for all that are more, made before anything is asked.
    assert programs.frame_count == 2
    for size, length in ((1, 32), (2, 32), (7, 24), (16, 8), (5, 32), (33, 16), (1, 8), (3, 32)):
        padded = pad([row[:length] for row in rows[:size]], length, tokeniser.pad_id)
        np.testing.assert_array_equal(compiled.logits(*padded), plain.logits(*padded))
    assert programs.frame_count == 2
    plain.close()
    compiled.close()


def test_model_that_cannot_be_compiled_is_one_line_before_it_serves(made: Made) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no working compiler\nwith much beside")

    torch._dynamo.reset()
    with pytest.raises(EngineError, match="no working compiler") as caught:
        TorchEngine(made("torch-cuda"), threads=1, device="cpu", backend=fails)
    assert "\n" not in str(caught.value)


def test_no_rows_give_no_logits(made: Made) -> None:
    artifact = made("torch-cpu")
    engine = TorchEngine(artifact, threads=1, device="cpu")
    empty = engine.logits(np.zeros((0, 8), np.int32), np.zeros(0, np.int32))
    assert empty.shape == (0, len(artifact.labels))


def test_serving_model_gives_the_same_categories_as_onnx(made: Made, artifact: Path) -> None:
    texts = ["Norvik Wasserkocher 1,5 l", "dog food 2 kg", "Zelt", "casque audio noir | Ombra", "?"]
    answers = []
    for path in (artifact, made("torch-cpu").path):
        model = Model.load(path, threads=1)
        answers.append(model.predict(texts))
        model.close()
    for onnx, torch_ in zip(*answers, strict=True):
        assert onnx is not None
        assert torch_ is not None
        assert torch_.category_id == onnx.category_id
        assert torch_.score == pytest.approx(onnx.score, abs=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_missing_device_is_one_line(made: Made) -> None:
    with pytest.raises(EngineError, match="finds no CUDA device") as caught:
        load_engine(made("torch-cuda"), threads=1)
    assert "\n" not in str(caught.value)
    assert caught.value.code == NO_DEVICE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_golden_questions_are_answered_on_the_device(made: Made) -> None:
    Model.load(made("torch-cuda").path, threads=1).close()


def test_missing_torch_is_one_line_that_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from classifier.engines import EngineError\n"
        "try:\n    import classifier.engines.torch\n"
        "except EngineError as error:\n    print(error.code, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        f"{BAD_SETTINGS} the PyTorch engine needs torch: pip install 'offer-classifier[torch]'"
    )
