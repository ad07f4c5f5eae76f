"""The encoder: padding has no say, and only its own weights get in."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, XLMRobertaConfig

from classifier.encoder import OfferEncoder, longest_input, mean_over_real

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=34,
    type_vocab_size=1,
)
LABELS = 5


@pytest.fixture
def model() -> OfferEncoder:
    torch.manual_seed(1)
    return OfferEncoder.new(CONFIG, LABELS).eval()


def test_mean_is_over_real_tokens_alone() -> None:
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [99.0, -99.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert mean_over_real(hidden, mask).tolist() == [[2.0, 4.0]]


def test_mean_of_no_token_is_zero_and_no_nan() -> None:
    assert mean_over_real(torch.ones(1, 3, 2), torch.zeros(1, 3, dtype=torch.int64)).tolist() == [
        [0.0, 0.0]
    ]


@torch.inference_mode()
def test_padding_and_neighbours_change_no_logit(model: OfferEncoder) -> None:
    row = torch.tensor([[2, 7, 9, 3]])
    alone = model(row, torch.ones_like(row))
    assert alone.shape == (1, LABELS)
    assert alone.dtype == torch.float32
    for padding in (0, 11):  # whatever stands there
        ids = torch.full((3, 30), 13)
        ids[1, :4] = row
        ids[1, 4:] = padding
        mask = torch.ones_like(ids)
        mask[1, 4:] = 0
        assert torch.allclose(model(ids, mask)[1], alone[0], atol=1e-5)


@torch.inference_mode()
def test_attention_is_the_same_however_it_is_computed(model: OfferEncoder) -> None:
    eager = OfferEncoder.new(CONFIG, LABELS, attention="eager").eval()
    eager.load_state_dict(model.state_dict())
    ids = torch.randint(4, 50, (4, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[2, 5:] = 0
    assert torch.allclose(model(ids, mask), eager(ids, mask), atol=1e-5)


@torch.inference_mode()
def test_longest_input_of_a_bert_is_its_positions(model: OfferEncoder) -> None:
    assert longest_input(model) == 34
    ids = torch.full((1, 34), 5)
    assert model(ids, torch.ones_like(ids)).isfinite().all()


@torch.inference_mode()
def test_longest_input_of_a_roberta_is_two_less_than_it_says() -> None:
    config = XLMRobertaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=34,
        type_vocab_size=1,
        pad_token_id=1,
    )
    model = OfferEncoder.new(config, LABELS).eval()
    longest = longest_input(model)
    assert longest == 32
    ids = torch.full((1, longest), 5)
    assert model(ids, torch.ones_like(ids)).isfinite().all()
    too_long = torch.full((1, longest + 1), 5)
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        model(too_long, torch.ones_like(too_long))


@torch.inference_mode()
def test_loaded_model_answers_as_the_saved_one(model: OfferEncoder, tmp_path: Path) -> None:
    model.encoder.config.to_json_file(tmp_path / "config.json", use_diff=False)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = OfferEncoder.load(tmp_path, LABELS)
    assert not loaded.training
    ids = torch.tensor([[2, 8, 3]])
    assert torch.equal(loaded(ids, torch.ones_like(ids)), model(ids, torch.ones_like(ids)))


def test_weights_of_another_shape_are_refused_in_one_line(
    model: OfferEncoder, tmp_path: Path
) -> None:
    model.encoder.config.to_json_file(tmp_path / "config.json", use_diff=False)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="not the weights of this model") as caught:
        OfferEncoder.load(tmp_path, LABELS + 1)
    assert "\n" not in str(caught.value)
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(ValueError, match="not the weights of this model"):
        OfferEncoder.load(tmp_path, LABELS)


def test_pretrained_encoder_gets_a_new_head_and_loses_its_pooler(
    model: OfferEncoder, tmp_path: Path
) -> None:
    model.encoder.save_pretrained(tmp_path)
    again = OfferEncoder.pretrained(tmp_path, labels=3)
    assert again.head.out_features == 3
    assert not [name for name in again.state_dict() if "pooler" in name]
    ids = torch.tensor([[2, 8, 3]])
    with torch.inference_mode():
        mine, theirs = (m.eval().embed(ids, torch.ones_like(ids)) for m in (again, model))
    assert torch.allclose(mine, theirs, atol=1e-6)


def test_new_head_starts_unbiased(model: OfferEncoder) -> None:
    assert model.head.bias.tolist() == [0.0] * LABELS
    assert math.isclose(float(model.head.weight.detach().std()), 0.02, rel_tol=0.3)
