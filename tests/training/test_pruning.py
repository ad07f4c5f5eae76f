"""A pruned vocabulary: no prediction changes where pieces stay, and nothing gets unknown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoModel, BertConfig, XLMRobertaConfig

from classifier.encoder import OfferEncoder
from classifier.sample.stream import offers
from classifier.text import DEFAULT_RECIPE
from classifier.tokens import Tokeniser
from compile.verify import one_thread
from training import encoders, pruning
from training.encoders import Encoder
from training.fit import collate
from training.pruning import PruningError
from training.scratch import Shape

SENTENCEPIECE = ["<s>", "<pad>", "</s>", "<unk>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts of the sample catalogue, as the service makes them."""
    return [text for offer, _ in offers(3, 400) if (text := DEFAULT_RECIPE.text(offer))]


def _special(tokenizer: Tokenizer, name: str) -> tuple[str, int]:
    found = tokenizer.token_to_id(name)
    assert found is not None
    return name, found


def _unigram(texts: Sequence[str]) -> Tokenizer:
    """As XLM-R's: scored pieces, specials first, the mask behind, a template around."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=900, special_tokens=SENTENCEPIECE, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[_special(tokenizer, name) for name in ("<s>", "</s>")],
    )
    return tokenizer


def _wordpiece(texts: Sequence[str]) -> Tokenizer:
    """As BERT's, with pieces between the specials that nothing uses, so that ids move."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = [BERT[0], *(f"[unused{i}]" for i in range(20)), *BERT[1:]]
    trainer = trainers.WordPieceTrainer(
        vocab_size=900, special_tokens=specials, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [a for a in content["added_tokens"] if a["content"] in BERT]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.BertProcessing(
        *(_special(tokenizer, name) for name in ("[SEP]", "[CLS]"))
    )
    return tokenizer


def _byte_bpe(texts: Sequence[str]) -> Tokenizer:
    """As RoBERTa's: merged bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[*SENTENCEPIECE, "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    sep, cls = (_special(tokenizer, name) for name in ("</s>", "<s>"))
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.RobertaProcessing(sep, cls)]
    )
    return tokenizer


def _scratch(texts: Sequence[str]) -> Tokenizer:
    """The one that a model from scratch has: merged characters."""
    return encoders.make(texts, Shape(pieces=900, hidden=4, heads=1, inner=4)).tokenizer


KINDS: dict[str, Callable[[Sequence[str]], Tokenizer]] = {
    "unigram": _unigram,
    "wordpiece": _wordpiece,
    "byte-bpe": _byte_bpe,
    "bpe": _scratch,
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def tokenizer(request: pytest.FixtureRequest, texts: list[str]) -> Tokenizer:
    return KINDS[request.param](texts)


def _encoder(tokenizer: Tokenizer) -> Encoder:
    """A random encoder of the family with such a tokeniser, its table larger than it must be."""
    pad_id = encoders.piece_id(tokenizer, "pad_token")
    size = tokenizer.get_vocab_size() + 7
    shape: dict[str, Any] = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": 80,
    }  # fmt: skip
    kind = XLMRobertaConfig if tokenizer.token_to_id("<pad>") is not None else BertConfig
    torch.manual_seed(0)
    config = kind(vocab_size=size, pad_token_id=pad_id, type_vocab_size=1, **shape)
    model = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    model.register_module("pooler", None)
    model.train(False)
    return Encoder(model, tokenizer)


def _logits(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    torch.manual_seed(1)
    model = OfferEncoder(encoder.model, 5).eval()
    tokeniser = Tokeniser(Tokenizer.from_str(encoder.tokenizer.to_str()), 64)
    rows, _ = tokeniser.encode(list(texts))
    ids, mask = collate([np.array(row) for row in rows], tokeniser.pad_id)
    with torch.inference_mode():
        logits: NDArray[np.float32] = model(ids, mask).numpy()
    return logits


def test_no_prediction_changes_on_texts_whose_pieces_stay(
    tokenizer: Tokenizer, texts: list[str]
) -> None:
    encoder = _encoder(tokenizer)
    some = texts[:60]
    before = _logits(encoder, some)
    pruned = pruning.prune(encoder, some)
    assert pruned.changed == 0
    assert np.array_equal(_logits(pruned.encoder, some), before)
    # And it did something.
    table = pruned.encoder.model.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding)
    assert table.num_embeddings == len(pruned.kept) == pruned.encoder.tokenizer.get_vocab_size()
    assert len(pruned.kept) < tokenizer.get_vocab_size() < pruned.rows_before
    removed = pruned.rows_before - len(pruned.kept)
    assert pruned.parameters_before - pruned.parameters == removed * 16


def _letters(piece: str) -> str:
    return piece.removeprefix("##")


def test_new_texts_of_kept_pieces_are_cut_as_before(tokenizer: Tokenizer, texts: list[str]) -> None:
    used = {i for text in texts[:100] for i in tokenizer.encode(text).ids}
    after, kept = pruning.prune_tokenizer(tokenizer, used)
    stayed = set(kept.tolist())
    same = other = 0
    for text in texts[100:]:
        old, new = tokenizer.encode(text), after.encode(text)
        if stayed.issuperset(old.ids):
            same += 1
            assert kept[new.ids].tolist() == old.ids
        else:
            other += 1
            # Other pieces of the same text, and nothing that was known is unknown now.
            assert "".join(map(_letters, new.tokens)) == "".join(map(_letters, old.tokens))
    assert same > 20
    assert other > 20


def test_every_character_and_special_stays(tokenizer: Tokenizer, texts: list[str]) -> None:
    after, _ = pruning.prune_tokenizer(tokenizer, [])
    vocabulary = after.get_vocab(with_added_tokens=True)
    pieces = tokenizer.get_vocab(with_added_tokens=True)
    assert {p for p in pieces if len(p.removeprefix("##")) == 1} <= vocabulary.keys()
    names = SENTENCEPIECE if "<s>" in pieces else BERT
    assert {*names, names[0].replace("<s>", "<mask>")} <= vocabulary.keys()
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    # Nothing but them, and all texts are still read: no piece is unknown that was not before.
    for text in texts[:50]:
        was, now = (t.encode(text).tokens for t in (tokenizer, after))
        assert now.count("<unk>") + now.count("[UNK]") <= was.count("<unk>") + was.count("[UNK]")
        assert now[0] == was[0]
        assert now[-1] == was[-1]


@pytest.fixture(scope="module")
def half_pruned(
    tokenizer: Tokenizer, texts: list[str]
) -> tuple[Tokenizer, Tokenizer, NDArray[np.int64]]:
    used = {i for text in texts[:60] for i in tokenizer.encode(text).ids}
    return tokenizer, *pruning.prune_tokenizer(tokenizer, used)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=12), st.booleans())
def test_any_text_made_of_kept_pieces_is_cut_as_before(
    half_pruned: tuple[Tokenizer, Tokenizer, NDArray[np.int64]], chosen: list[int], spaced: bool
) -> None:
    """Pieces of the vocabulary strung together, which are seldom words."""
    before, after, kept = half_pruned
    pieces = [before.id_to_token(int(kept[i % len(kept)])) for i in chosen]
    if before.decoder is not None:
        text = before.decode([int(kept[i % len(kept)]) for i in chosen])
    else:
        text = (" " if spaced else "").join(
            p.replace("▁", " ").removeprefix("##") for p in pieces if p
        )
    old = before.encode(text).ids
    unknown_word = before.token_to_id("[UNK]")
    if set(kept.tolist()).issuperset(old) and unknown_word not in old:
        assert kept[after.encode(text).ids].tolist() == old


def test_score_of_the_unknown_stays() -> None:
    """The lowest score of a Unigram vocabulary decides what a character without a piece costs."""
    vocabulary = [("<unk>", 0.0), ("<pad>", 0.0), ("a", -1.0), ("b", -9.0), ("xb", -9.5)]
    vocabulary += [("ax", -9.5), ("rare", -40.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=False))
    tokenizer.add_special_tokens(["<pad>"])
    after, kept = pruning.prune_tokenizer(tokenizer, [])
    assert "rare" in after.get_vocab()
    assert "ax" not in after.get_vocab()
    assert kept.tolist() == [0, 1, 2, 3, 6]


def test_way_to_a_piece_stays_with_it() -> None:
    merges = [("a", "b"), ("c", "d"), ("ab", "cd"), ("b", "c"), ("d", "a")]
    names = ["[PAD]", "[UNK]", "a", "b", "c", "d", "ab", "cd", "abcd", "bc", "da"]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]"])
    after, kept = pruning.prune_tokenizer(tokenizer, [vocabulary["abcd"]])
    assert [names[i] for i in kept] == ["[PAD]", "[UNK]", "a", "b", "c", "d", "ab", "cd", "abcd"]
    assert after.encode("abcd").tokens == ["abcd"]
    assert after.encode("da").tokens == ["d", "a"]


def test_pruned_encoder_is_saved_and_read_as_any(texts: list[str], tmp_path: Path) -> None:
    pruned = pruning.prune(_encoder(_wordpiece(texts)), texts[:50])
    expected = _logits(pruned.encoder, texts[:10])
    encoders.save(tmp_path / "pruned", pruned.encoder.model, pruned.encoder.tokenizer)
    loaded = encoders.load(tmp_path / "pruned")
    assert np.array_equal(_logits(loaded, texts[:10]), expected)
    assert pruned.report()["rows"] == loaded.model.config.vocab_size


def test_truncation_does_not_hide_pieces(texts: list[str]) -> None:
    tokenizer = _wordpiece(texts)
    used = {i for text in texts[:50] for i in tokenizer.encode(text).ids}
    tokenizer.enable_truncation(8)
    pruned = pruning.prune(_encoder(tokenizer), texts[:50])
    assert used <= set(pruned.kept.tolist())


def _moved_padding(texts: Sequence[str]) -> Tokenizer:
    tokenizer = _unigram(texts)
    content = json.loads(tokenizer.to_str())
    pieces = content["model"]["vocab"]
    content["added_tokens"] = [a for a in content["added_tokens"] if a["content"] != "<pad>"]
    pieces[1], pieces[60] = pieces[60], pieces[1]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(["<pad>"])
    return tokenizer


def test_padding_that_positions_hang_on_may_not_move(texts: list[str]) -> None:
    with pytest.raises(PruningError, match="padding would move from 60 to"):
        pruning.prune(_encoder(_moved_padding(texts)), texts[:1])


def _word_level() -> Tokenizer:
    return Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "kettle": 2}, unk_token="[UNK]"))


def _with_suffix() -> Tokenizer:
    pieces = {"[PAD]": 0, "a</w>": 1}
    return Tokenizer(models.BPE(pieces, [], end_of_word_suffix="</w>"))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (_word_level, "a tokeniser of the kind WordLevel cannot be pruned"),
        (_with_suffix, "a BPE tokeniser with end_of_word_suffix cannot be pruned"),
    ],
)
def test_tokeniser_that_is_not_known_is_refused(
    made: Callable[[], Tokenizer], message: str
) -> None:
    with pytest.raises(PruningError, match=f"^{message}$"):
        pruning.prune_tokenizer(made(), [])
