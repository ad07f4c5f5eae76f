"""The tokeniser of a model from scratch."""

from __future__ import annotations

from training.vocabulary import SPECIAL, train_tokeniser

TEXTS = [
    "Kühlschrank 300 l | Norvik", "KÜHLSCHRANK weiß", "kuhlschrank mini", "Kettle 1,5 l steel",
    "Kettle steel 2 l", "steel kettle", "Bouilloire 1,5 l", "bouilloire inox",
] * 3  # fmt: skip


def test_specials_come_first_and_frame_the_text() -> None:
    tokenizer = train_tokeniser(TEXTS, 200)
    assert [tokenizer.token_to_id(name) for name in SPECIAL] == [0, 1, 2, 3]
    encoded = tokenizer.encode("kettle")
    assert encoded.tokens == ["[CLS]", "▁kettle", "[SEP]"]


def test_case_and_accents_are_one() -> None:
    tokenizer = train_tokeniser(TEXTS, 200)
    expected = tokenizer.encode("kuhlschrank").ids
    assert tokenizer.encode("KÜHLSCHRANK").ids == expected
    assert tokenizer.encode("Kühlschrank").ids == expected


def test_size_is_kept() -> None:
    assert train_tokeniser(TEXTS, 60).get_vocab_size() == 60


def test_character_never_seen_is_unknown() -> None:
    assert "[UNK]" in train_tokeniser(TEXTS, 100).encode("鍋").tokens


def test_equal_texts_give_equal_tokenisers() -> None:
    # Many characters of one frequency: where a hash map's order would show.
    texts = ["".join(chr(0x4E00 + 7 * i + j) for j in range(20)) for i in range(40)] * 3
    assert train_tokeniser(texts, 300).to_str() == train_tokeniser(texts, 300).to_str()
