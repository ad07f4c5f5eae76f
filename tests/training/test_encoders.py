"""Encoders by path: loaded whole or refused in a line, made shallower, made from nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from classifier.encoder import OfferEncoder
from classifier.tokens import Tokeniser
from training import encoders
from training.encoders import Encoder, EncoderError
from training.scratch import Shape

SHAPE = Shape(pieces=150, hidden=16, layers=4, heads=2, inner=16, max_tokens=20)
TEXTS = [
    "Kühlschrank 300 l | Norvik", "Kettle 1,5 l steel", "Bouilloire inox 2 l", "Hervidor rojo",
    "Bollitore 1,7 l acciaio", "Wasserkocher weiß 2 l",
] * 4  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder") / "bert"
    made = encoders.make(TEXTS, SHAPE, seed=1)
    encoders.save(path, made.model, made.tokenizer)
    return path


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "copy")


def hidden(encoder: Encoder, text: str = "Kettle 1,5 l rojo") -> torch.Tensor:
    ids = torch.tensor([encoder.tokenizer.encode(text).ids])
    with torch.inference_mode():
        answer: torch.Tensor = encoder.model(input_ids=ids)[0]
    return answer


def test_saved_encoder_answers_as_before(saved: Path) -> None:
    made, loaded = encoders.make(TEXTS, SHAPE, seed=1), encoders.load(saved)
    assert torch.equal(hidden(loaded), hidden(made))
    assert not loaded.model.training
    assert len(loaded.layers) == 4


def test_equal_arguments_give_an_equal_encoder_and_leave_chance_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (encoders.make(TEXTS, SHAPE, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(hidden(one), hidden(same))
    assert not torch.equal(hidden(one), hidden(other))


def test_tokeniser_is_the_one_that_is_served_and_that_transformers_reads(saved: Path) -> None:
    text = "Kettle rojo 1,5 l"
    served, cut = Tokeniser(encoders.load(saved).tokenizer, 20).encode([text])
    assert not cut
    read = AutoTokenizer.from_pretrained(saved)
    assert read(text)["input_ids"] == served[0]
    assert read.mask_token == "[MASK]"


def test_tokeniser_of_an_older_form_is_converted(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "kettle", "steel", "##s"]
    (copy / "vocab.txt").write_text("\n".join(pieces) + "\n")
    assert encoders.load(copy).tokenizer.encode("Kettles steel").ids == [2, 5, 7, 6, 3]


def test_encoder_of_any_kind_fits_under_the_head(saved: Path) -> None:
    loaded = encoders.load(saved)
    model = OfferEncoder(loaded.model, 3).eval()
    ids = torch.tensor([loaded.tokenizer.encode("kettle").ids])
    assert model(ids, torch.ones_like(ids)).shape == (1, 3)


@pytest.mark.parametrize(
    ("layers", "keep", "which", "kept"),
    [
        (12, 6, "spread", [0, 2, 4, 7, 9, 11]),
        (12, 3, "spread", [0, 6, 11]),
        (12, 2, "spread", [0, 11]),
        (12, 1, "spread", [0]),
        (4, 4, "spread", [0, 1, 2, 3]),
        (12, 3, "first", [0, 1, 2]),
        (12, 3, "last", [9, 10, 11]),
    ],
)
def test_layers_that_stay(layers: int, keep: int, which: encoders.Which, kept: list[int]) -> None:
    assert encoders.kept_layers(layers, keep, which) == kept


def test_spread_layers_are_all_different_and_in_order() -> None:
    for layers in range(1, 40):
        for keep in range(1, layers + 1):
            kept = encoders.kept_layers(layers, keep)
            assert kept == sorted(set(kept))
            assert len(kept) == keep


@pytest.mark.parametrize("keep", [0, 5])
def test_as_many_layers_as_there_are_not_are_refused(saved: Path, keep: int) -> None:
    with pytest.raises(EncoderError, match=f"^{keep} layers cannot be kept of 4$"):
        encoders.keep_layers(encoders.load(saved), keep)


def test_shallower_encoder_is_the_layers_that_stay(saved: Path, tmp_path: Path) -> None:
    deep, shallow = encoders.load(saved), encoders.load(saved)
    assert encoders.keep_layers(shallow, 2) == [0, 3]
    encoders.save(tmp_path / "shallow", shallow.model, shallow.tokenizer)
    loaded = encoders.load(tmp_path / "shallow")
    assert loaded.model.config.num_hidden_layers == 2
    # The layers between do nothing: the deep model is then the shallow one.
    for layer in deep.layers[1:3]:
        layer.forward = lambda states, *_, **__: states
    assert torch.equal(hidden(loaded), hidden(deep))


def _config(path: Path, **changes: object) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_padding_of_another_vocabulary_is_put_right(copy: Path) -> None:
    _config(copy, pad_token_id=2)
    loaded = encoders.load(copy)
    assert loaded.pad_id == loaded.model.config.pad_token_id == 0
    table = loaded.model.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding)
    assert table.padding_idx == 0


def test_hash_is_that_of_the_content(saved: Path, copy: Path) -> None:
    before = encoders.sha256(saved)
    assert encoders.sha256(copy) == before
    weights = load_file(copy / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += 1
    save_file(weights, copy / "model.safetensors")
    assert encoders.sha256(copy) != before


def _drop_weights(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    file = path / "model.safetensors"
    save_file({n: w for n, w in weights.items() if "layer.2." not in n}, file, {"format": "pt"})


def _cut_weights(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


def _pickle(path: Path) -> None:
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def _more_pieces(path: Path) -> None:
    tokenizer = encoders.load_tokenizer(str(path))
    tokenizer.add_tokens(["another"])
    tokenizer.save(str(path / "tokenizer.json"))


def _own_code(path: Path) -> None:
    _config(path, model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})
    (path / "own.py").write_text("raise SystemExit('this code was run')\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "there is no such directory"),
        (lambda path: (path / "config.json").unlink(), "has no config.json"),
        (lambda path: (path / "config.json").write_text("{"), "no encoder that can be had"),
        (lambda path: (path / "model.safetensors").unlink(), "has no model.safetensors"),
        (_pickle, "has no model.safetensors; a pickle is not read"),
        (_cut_weights, "its weights cannot be read"),
        (_drop_weights, r"its weights lack 16, encoder\.layer\.2\."),
        (lambda path: _config(path, vocab_size=140), "its weights cannot be read"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "no tokeniser that can be read"),
        (lambda path: (path / "tokenizer.json").unlink(), "no tokeniser that can be read"),
        (_more_pieces, "the tokeniser has 120 pieces, the model only 119"),
        (lambda path: _config(path, num_hidden_layers="four"), "no encoder that can be had"),
        (lambda path: (path / "config.json").write_text('{"model_type": "t5"}'), "has a decoder"),
        (_own_code, "no encoder that can be had"),
    ],
)
def test_what_is_no_encoder_is_refused_in_one_line(
    copy: Path, damage: Callable[[Path], None], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(copy)
    with pytest.raises(EncoderError, match=message) as caught:
        encoders.load(copy)
    assert "\n" not in str(caught.value)
    assert str(copy) in str(caught.value)
    assert capfd.readouterr().err == ""


def test_hub_that_cannot_be_reached_is_one_line() -> None:
    with pytest.raises(EncoderError, match=r"^nobody/nothing: no encoder that can") as caught:
        encoders.load("nobody/nothing")
    assert "\n" not in str(caught.value)


def test_failed_save_leaves_what_was_there(saved: Path, tmp_path: Path) -> None:
    loaded = encoders.load(saved)
    encoders.save(tmp_path / "kept", loaded.model, loaded.tokenizer)
    before = encoders.sha256(tmp_path / "kept")

    class Full:
        def save(self, path: str) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        encoders.save(tmp_path / "kept", loaded.model, Full())  # type: ignore[arg-type]
    assert encoders.sha256(tmp_path / "kept") == before
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
