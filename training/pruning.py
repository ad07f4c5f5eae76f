"""The vocabulary without the pieces that no offer uses.

A multilingual encoder knows a hundred languages, and most of its weights are rows of pieces that
five of them never use. Those rows go. A text whose pieces all stay is cut as before, so nothing
that is predicted for it changes; another is cut into smaller pieces, since every single character
and byte stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn

from training.encoders import Encoder, counts_from_padding, piece_id

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_TEXTS_AT_ONCE = 10_000


class PruningError(Exception):
    """The vocabulary of this tokeniser cannot be pruned. The message is one line."""


@dataclass(frozen=True)
class Pruned:
    """An encoder with fewer pieces, and which they are."""

    encoder: Encoder
    kept: NDArray[np.int64]  # the former id of each piece, by its new id
    rows_before: int  # of the embedding table
    parameters_before: int
    parameters: int
    texts: int  # that were looked at
    # Of these, how many are cut otherwise now. None are, but for words that a WordPiece tokeniser
    # does not know: it gives a word up at the first dead end, and fewer pieces lead elsewhere.
    changed: int

    def report(self) -> dict[str, int]:
        """The figures, for a stage's record."""
        return {
            "rows_before": self.rows_before,
            "rows": len(self.kept),
            "parameters_before": self.parameters_before,
            "parameters": self.parameters,
            "texts": self.texts,
            "texts_changed": self.changed,
        }


def prune(encoder: Encoder, texts: Sequence[str]) -> Pruned:
    """Leaves the encoder with the pieces that the texts use, the specials and single characters.

    The texts are those that the model will read, prefix included. The model is changed in place.
    Raises PruningError for a tokeniser that is none of Unigram, BPE and WordPiece, or one with
    settings that are not known to be safe.
    """
    before = encoder.tokenizer
    used = np.zeros(max(before.get_vocab(with_added_tokens=True).values()) + 1, dtype=bool)
    for ids in _encoded(before, texts):
        used[ids] = True
    after, kept = prune_tokenizer(before, np.flatnonzero(used).tolist())
    new_id = np.full(len(used), -1, dtype=np.int64)
    new_id[kept] = np.arange(len(kept))
    changed = sum(
        not np.array_equal(new_id[old], new)
        for old, new in zip(_encoded(before, texts), _encoded(after, texts), strict=True)
    )
    model = encoder.model
    table = model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    rows, parameters = table.num_embeddings, model.num_parameters()
    pad_id = piece_id(after, "pad_token")
    if counts_from_padding(model) and pad_id != model.config.pad_token_id:
        raise PruningError(
            f"padding would move from {model.config.pad_token_id} to {pad_id},"
            " and this encoder counts positions from it on"
        )
    fewer = nn.Embedding(len(kept), table.embedding_dim, padding_idx=pad_id)
    fewer.weight.data = table.weight.data[kept].clone()
    fewer.weight.requires_grad_(table.weight.requires_grad)
    model.set_input_embeddings(fewer)
    for name in ("bos", "eos", "sep", "cls", "mask"):
        old = getattr(model.config, f"{name}_token_id", None)
        if isinstance(old, int):
            known = old < len(new_id) and new_id[old] >= 0
            setattr(model.config, f"{name}_token_id", int(new_id[old]) if known else None)
    model.config.pad_token_id = pad_id
    model.config.vocab_size = len(kept)
    return Pruned(
        encoder=Encoder(model, after),
        kept=kept,
        rows_before=rows,
        parameters_before=parameters,
        parameters=model.num_parameters(),
        texts=len(texts),
        changed=changed,
    )


def prune_tokenizer(
    tokenizer: Tokenizer, used: Iterable[int]
) -> tuple[Tokenizer, NDArray[np.int64]]:
    """The tokeniser with the pieces in use and those that always stay; and all their former ids.

    Pieces keep their order. Raises PruningError.
    """
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    model = content["model"]
    kind = model.get("type")
    if kind not in _PRUNERS:
        raise PruningError(f"a tokeniser of the kind {kind} cannot be pruned")
    stay = {piece for i in used if (piece := tokenizer.id_to_token(i)) is not None}
    stay |= {added["content"] for added in content["added_tokens"]}
    stay |= _named(content["post_processor"])
    if isinstance(model.get("unk_token"), str):
        stay.add(model["unk_token"])
    pieces = _PRUNERS[kind](model, stay)
    # Pieces that were added to the model stand behind its own, or among them.
    outside = [a for a in content["added_tokens"] if a["content"] not in pieces]
    ids = pieces | {
        added["content"]: len(pieces) + i
        for i, added in enumerate(sorted(outside, key=lambda added: added["id"]))
    }
    for added in content["added_tokens"]:
        added["id"] = ids[added["content"]]
    content["added_tokens"].sort(key=lambda added: added["id"])
    _renumber(content["post_processor"], ids)
    content["padding"] = content["truncation"] = None  # set where it is served
    pruned = Tokenizer.from_str(json.dumps(content))
    former = [tokenizer.token_to_id(piece) for piece in sorted(ids, key=ids.__getitem__)]
    return pruned, np.array(former, dtype=np.int64)


def _single(piece: str) -> bool:
    """Whether a piece is one character or byte: what every text can be cut into."""
    return len(piece) == 1 or _BYTE.fullmatch(piece) is not None


def _unigram(model: dict[str, Any], stay: set[str]) -> dict[str, int]:
    """Viterbi's best path stays the best when pieces beside it go.

    But for characters without a piece: their score is the lowest of the vocabulary less a constant,
    so the piece with that score stays too.
    """
    vocabulary: list[tuple[str, float]] = model["vocab"]
    lowest = min(range(len(vocabulary)), key=lambda i: vocabulary[i][1])
    kept = [
        i
        for i, (piece, _) in enumerate(vocabulary)
        if piece in stay or _single(piece) or i in (lowest, model["unk_id"])
    ]
    if model["unk_id"] is not None:
        model["unk_id"] = kept.index(model["unk_id"])
    model["vocab"] = [vocabulary[i] for i in kept]
    return {vocabulary[i][0]: new for new, i in enumerate(kept)}


def _wordpiece(model: dict[str, Any], stay: set[str]) -> dict[str, int]:
    """The longest piece that fits stays the longest when others go."""
    prefix = model["continuing_subword_prefix"]
    kept = [
        piece
        for piece in sorted(model["vocab"], key=model["vocab"].__getitem__)
        if piece in stay or _single(piece) or _single(piece.removeprefix(prefix))
    ]
    model["vocab"] = {piece: i for i, piece in enumerate(kept)}
    return dict(model["vocab"])


def _bpe(model: dict[str, Any], stay: set[str]) -> dict[str, int]:
    """Merges are done in the order of their ranks, so all on the way to a piece stay with it."""
    for setting in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(setting):
            raise PruningError(f"a BPE tokeniser with {setting} cannot be pruned")
    # Older files have the two sides in one string.
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}
    wanted = {p for p in model["vocab"] if p in stay or _single(p)}
    for piece in sorted(wanted):
        wanted.update(_on_the_way(piece, ranks))
    kept = sorted(wanted, key=model["vocab"].__getitem__)
    model["vocab"] = {piece: i for i, piece in enumerate(kept)}
    model["merges"] = [
        [left, right]
        for left, right in merges
        if left in wanted and right in wanted and left + right in wanted
    ]
    return dict(model["vocab"])


def _on_the_way(piece: str, ranks: dict[tuple[str, ...], int]) -> Iterator[str]:
    """All that a piece's characters are merged into until they are the piece."""
    parts = list(piece)
    while len(parts) > 1:
        rank, at = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairwise(parts)))
        if rank == len(ranks):
            return  # it is not made by merges: an added piece
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        yield parts[at]


_PRUNERS = {"Unigram": _unigram, "WordPiece": _wordpiece, "BPE": _bpe}


def _named(processor: dict[str, Any] | None) -> set[str]:
    """The pieces that a post-processor puts around a text. Raises PruningError."""
    if processor is None:
        return set()
    kind = processor["type"]
    if kind == "Sequence":
        return set().union(*map(_named, processor["processors"]))
    if kind == "TemplateProcessing":
        return {token for t in processor["special_tokens"].values() for token in t["tokens"]}
    if kind in ("BertProcessing", "RobertaProcessing"):
        return {processor["sep"][0], processor["cls"][0]}
    if kind == "ByteLevel":
        return set()
    raise PruningError(f"a tokeniser with the post-processor {kind} cannot be pruned")


def _renumber(processor: dict[str, Any] | None, ids: dict[str, int]) -> None:
    if processor is None:
        return
    for inner in processor.get("processors", ()):
        _renumber(inner, ids)
    if processor["type"] == "TemplateProcessing":
        for special in processor["special_tokens"].values():
            special["ids"] = [ids[token] for token in special["tokens"]]
    for side in ("sep", "cls"):
        if side in processor:
            processor[side][1] = ids[processor[side][0]]


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[NDArray[np.int64]]:
    """The ids of each text, uncut, whatever the tokeniser was last told about cutting."""
    whole = Tokenizer.from_str(tokenizer.to_str())
    whole.no_truncation()
    whole.no_padding()
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        for encoding in whole.encode_batch_fast(list(texts[start : start + _TEXTS_AT_ONCE])):
            yield np.array(encoding.ids, dtype=np.int64)
