"""The tokeniser: texts in, token ids out. Its truncation is set once, when it is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Ids = NDArray[np.int32]


class Tokeniser:
    """A `tokenizer.json` with the artefact's token limit.

    Encoding changes no state of it, so threads may share one.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_tokens)
        self._tokenizer = tokenizer
        self.max_tokens = max_tokens
        known = [tokenizer.token_to_id(name) for name in ("<pad>", "[PAD]")]
        padding = [pad_id for pad_id in known if pad_id is not None]
        if not padding:
            raise ValueError("the tokeniser has neither <pad> nor [PAD]")
        self.pad_id: int = padding[0]

    @classmethod
    def from_file(cls, path: Path, max_tokens: int) -> Tokeniser:
        """Reads a `tokenizer.json`; a text longer than `max_tokens` (specials included) is cut."""
        return cls(Tokenizer.from_file(str(path)), max_tokens)

    def encode(self, texts: list[str]) -> tuple[list[list[int]], int]:
        """Token ids of each text, specials included and unpadded, and how many texts were cut."""
        encodings = self._tokenizer.encode_batch_fast(texts)
        # Reading `overflowing` copies every piece that was cut off; a full row is the cheap hint.
        ids = [encoding.ids for encoding in encodings]
        cut = sum(
            1
            for row, encoding in zip(ids, encodings, strict=True)
            if len(row) == self.max_tokens and encoding.overflowing
        )
        return ids, cut


def bound_pool(threads: int) -> None:
    """Sizes the pool of all tokenisers of this process, unless `RAYON_NUM_THREADS` already does.

    By default it takes the whole host. To be called before the first text is encoded.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))


def pad(rows: list[list[int]], length: int, pad_id: int) -> tuple[Ids, Ids]:
    """Rows of ids as one array (rows, length), filled with `pad_id`, and their lengths (rows,)."""
    padded = np.full((len(rows), length), pad_id, dtype=np.int32)
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int32, count=len(rows))
    for row, ids in enumerate(rows):
        padded[row, : len(ids)] = ids
    return padded, lengths
