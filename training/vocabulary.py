"""The tokeniser of a model that is trained from scratch: byte-pair pieces of the shops' words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

PAD, UNKNOWN, START, END = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

_LEAST_PIECE = 2
"""A piece that one text alone has teaches nothing about the next."""
_LEAST_CHARACTER = 3


def train_tokeniser(texts: Sequence[str], size: int) -> Tokenizer:
    """A byte-pair tokeniser of at most `size` pieces for the texts.

    Case and accents go: a small model has too few examples to learn that "KÜHLSCHRANK",
    "Kühlschrank" and "kuhlschrank" are one word. The rest of the cleaning is the recipe's. The
    larger the vocabulary, the more brands and product words are one piece, and the fewer pieces a
    text has.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.NFD(), normalizers.StripAccents()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    # The alphabet is given, sorted: the trainer would break ties between rare characters by the
    # order of a hash map, and equal data would give unequal models.
    counts = Counter("".join(map(tokenizer.normalizer.normalize_str, texts)))
    alphabet = sorted(c for c, n in counts.items() if n >= _LEAST_CHARACTER and not c.isspace())
    alphabet.append("▁")
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=_LEAST_PIECE,
            special_tokens=list(SPECIAL),
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (START, END)],
    )
    return tokenizer
