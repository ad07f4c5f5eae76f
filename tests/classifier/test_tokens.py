"""The tokeniser: cut where the artefact says, the same in any company, safe under threads."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from classifier.tokens import Tokeniser, pad

WORDS = ("<s>", "</s>", "<pad>", "<unk>", "tea", "steel", "kettle", "usb", "cable")
START, END, PAD, UNKNOWN, TEA, STEEL, KETTLE, USB, CABLE = range(len(WORDS))


def tokenizer(words: tuple[str, ...] = WORDS) -> Tokenizer:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", START), ("</s>", END)]
    )
    return made


@pytest.fixture
def tokeniser() -> Tokeniser:
    return Tokeniser(tokenizer(), max_tokens=6)


def test_texts_become_ids_between_specials(tokeniser: Tokeniser) -> None:
    assert tokeniser.encode(["steel kettle", "", "tea nonsense"]) == (
        [[START, STEEL, KETTLE, END], [START, END], [START, TEA, UNKNOWN, END]],
        0,
    )
    assert tokeniser.encode([]) == ([], 0)


@pytest.mark.parametrize(
    ("words", "length", "cut"), [(3, 5, 0), (4, 6, 0), (5, 6, 1), (6, 6, 1), (5_000, 6, 1)]
)
def test_limit_counts_the_specials_and_cuts_are_counted(
    tokeniser: Tokeniser, words: int, length: int, cut: int
) -> None:
    (ids,), texts_cut = tokeniser.encode(["tea " * words])
    assert ids == [START, *[TEA] * (length - 2), END]
    assert texts_cut == cut


def test_cut_texts_are_counted_once_each(tokeniser: Tokeniser) -> None:
    _, cut = tokeniser.encode(["tea " * 900, "tea", "usb " * 4, "usb " * 5])
    assert cut == 2


def test_what_the_file_says_about_padding_and_length_does_not_count(tmp_path: Path) -> None:
    made = tokenizer()
    made.enable_padding(length=16, pad_id=PAD, pad_token="<pad>")
    made.enable_truncation(3)
    made.save(str(tmp_path / "tokenizer.json"))
    tokeniser = Tokeniser.from_file(tmp_path / "tokenizer.json", 5)
    assert tokeniser.encode(["tea", "tea tea tea"])[0] == [
        [START, TEA, END],
        [START, TEA, TEA, TEA, END],
    ]


@pytest.mark.parametrize("name", ["<pad>", "[PAD]"])
def test_padding_id_is_found_by_its_name(name: str) -> None:
    words = tuple(name if word == "<pad>" else word for word in WORDS)
    assert Tokeniser(tokenizer(words), 6).pad_id == PAD


def test_tokeniser_without_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="neither <pad> nor"):
        Tokeniser(tokenizer(("<s>", "</s>", "x", "<unk>")), 6)


TEXTS = st.lists(st.sampled_from((*WORDS[4:], "nonsense")), max_size=9).map(" ".join)


@given(st.lists(TEXTS, max_size=8))
def test_ids_of_a_text_are_the_same_alone_and_in_any_company(texts: list[str]) -> None:
    tokeniser = Tokeniser(tokenizer(), 6)
    together, cut = tokeniser.encode(texts)
    alone = [tokeniser.encode([text]) for text in texts]
    assert together == [ids for (ids,), _ in alone]
    assert cut == sum(count for _, count in alone)
    assert all(2 <= len(ids) <= 6 for ids in together)


def test_threads_may_share_one(tokeniser: Tokeniser) -> None:
    texts = [" ".join(WORDS[4:][: 1 + n % 5]) for n in range(50)]
    expected = tokeniser.encode(texts)
    answers: list[object] = []

    def work() -> None:
        answers.extend(tokeniser.encode(texts) == expected for _ in range(40))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 160


def test_rows_are_padded_to_the_length_with_the_padding_id() -> None:
    ids, lengths = pad([[0, 5, 1], [], [0, 1]], 4, PAD)
    assert ids.tolist() == [[0, 5, 1, PAD], [PAD] * 4, [0, 1, PAD, PAD]]
    assert lengths.tolist() == [3, 0, 2]
    assert ids.dtype == lengths.dtype == np.int32
    empty, none = pad([], 8, PAD)
    assert empty.shape == (0, 8)
    assert none.shape == (0,)
