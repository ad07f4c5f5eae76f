"""An encoder of one's own: it knows the offers' words before a layer is trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from classifier.encoder import mean_over_real
from classifier.offer import Offer
from classifier.tokens import Tokeniser
from tests.training.files import write
from training import encoders, pretraining
from training.cli import app
from training.fit import collate
from training.parameters import OwnEncoderParameters
from training.scratch import encode
from training.tiny import tiny_offers

pytestmark = pytest.mark.usefixtures("on_one_thread")

SMALL = OwnEncoderParameters(
    layers=3, width=16, heads=2, inner=32, pieces=800, max_tokens=24, passes=250
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("work")
    write(path / "train.jsonl", list(tiny_offers(each=10)))
    unlabelled = [(Offer(str(i), title=f"Klapprad Zanzibar {i}"), None) for i in range(40)]
    write(path / "transfer.jsonl", unlabelled)
    return path


def test_encoder_knows_words_and_is_one_that_a_teacher_can_name(work: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train, transfer = work / "train.jsonl", work / "transfer.jsonl"
    record = pretraining.make(SMALL, train, transfer, tmp_path / "one", said.append)
    assert record.summary["accuracy"] > 0.8
    assert record.summary["labels"] == 8
    made = encoders.load(tmp_path / "one" / "encoder")
    assert len(made.layers) == 3
    assert made.tokenizer.encode("zanzibar").tokens == ["[CLS]", "▁zanzibar", "[SEP]"]
    weights = made.model.state_dict()
    assert record.summary["weights"] == sum(each.numel() for each in weights.values())
    # Words of one category, in two languages, lie together: that much the table has learnt.
    rows = encode(Tokeniser(made.tokenizer, 24), ["wasserkocher", "bouilloire", "zelt", "tente"])
    ids, mask = collate(rows, made.pad_id)
    with torch.inference_mode():
        embedded = mean_over_real(made.model.get_submodule("embeddings")(ids), mask).numpy()
    likeness = np.corrcoef(embedded)
    assert min(likeness[0, 1], likeness[2, 3]) > max(likeness[0, 2:].max(), likeness[1, 2:].max())

    again = pretraining.make(SMALL, train, transfer, tmp_path / "two", said.append)
    assert again.files == record.files  # the very same bytes
    before = len(said)
    assert pretraining.make(SMALL, train, transfer, tmp_path / "one", said.append) == record
    assert len(said) == before


def test_command_makes_it_with_what_pipeline_says(work: Path, tmp_path: Path) -> None:
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(
        "encoder: {layers: 1, width: 16, heads: 2, inner: 16, pieces: 300, layer_passes: 1}\n"
    )
    command = ["encoder", "--train", work / "train.jsonl", "--out", tmp_path / "out"]
    command += ["--pipeline", pipeline, "--set", "encoder.passes=1"]
    done = CliRunner().invoke(app, [*map(str, command)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["stage"], told["pieces"]) == ("encoder", 301)  # [MASK] comes on top
    assert len(encoders.load(tmp_path / "out" / "encoder").layers) == 1


def test_width_that_heads_do_not_divide_is_refused(tmp_path: Path) -> None:
    command = ["encoder", "--train", "x", "--out", str(tmp_path), "--set", "encoder.heads=7"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "a width of 256 cannot be divided by 7 heads" in done.output
