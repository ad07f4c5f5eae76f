"""The teacher's embeddings: computed once for a text, kept, and told apart by teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from classifier.encoder import OfferEncoder
from training import embeddings
from training.embeddings import Store, answers, embed
from training.scratch import Shape
from training.stage import StageError

TEACHER, OTHER = "a" * 64, "b" * 64


class Asked:
    """A teacher that counts its texts; an embedding is (length, vowels)."""

    def __init__(self, most: int | None = None) -> None:
        self.texts: list[str] = []
        self._most = most

    def __call__(self, texts: list[str]) -> NDArray[np.float32]:
        self.texts += texts
        if self._most is not None and len(self.texts) > self._most:
            raise KeyboardInterrupt
        return expected(texts).astype(np.float32)


def expected(texts: Sequence[str]) -> NDArray[np.float16]:
    return np.array([(len(t), sum(t.count(v) for v in "aeiou")) for t in texts], dtype=np.float16)


def test_text_is_embedded_once(tmp_path: Path) -> None:
    asked = Asked()
    texts = ["a sofa", "olive oil", "a sofa", "tent"]
    found = Store(tmp_path, TEACHER).get(texts, asked)
    assert found.tolist() == expected(texts).tolist()
    assert found.dtype == np.float16
    assert sorted(asked.texts) == ["a sofa", "olive oil", "tent"]
    again = Store(tmp_path, TEACHER).get(["tent", "kettle", "olive oil"], asked)
    assert again.tolist() == expected(["tent", "kettle", "olive oil"]).tolist()
    assert sorted(asked.texts) == ["a sofa", "kettle", "olive oil", "tent"]


def test_teachers_are_told_apart(tmp_path: Path) -> None:
    Store(tmp_path, TEACHER).get(["tent"], Asked())
    asked = Asked()
    Store(tmp_path, OTHER).get(["tent"], asked)
    assert asked.texts == ["tent"]


def test_killed_run_keeps_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "TEXTS_OF_A_FILE", 3)
    texts = [f"text {i}" for i in range(10)]
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path, TEACHER).get(texts, Asked(most=6))
    asked = Asked()
    found = Store(tmp_path, TEACHER).get(texts, asked)
    assert found.tolist() == expected(texts).tolist()
    assert len(asked.texts) == 4
    assert len(list(tmp_path.rglob("*.safetensors"))) == 4


def test_damaged_file_is_one_line(tmp_path: Path) -> None:
    store = Store(tmp_path, TEACHER)
    store.get(["tent"], Asked())
    (file,) = store.path.iterdir()
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(StageError, match=r"00000\.safetensors: holds no embeddings, delete it"):
        store.get(["tent"], Asked())


def test_embedding_that_is_not_finite_is_refused_and_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, TEACHER)
    with pytest.raises(StageError, match="not finite"):
        store.get(["tent"], lambda texts: np.full((len(texts), 2), np.nan, dtype=np.float32))
    assert not list(store.path.iterdir())


def test_embeddings_in_batches_are_those_of_each_row_alone() -> None:
    torch.manual_seed(0)
    shape = Shape(pieces=30, hidden=16, layers=1, heads=2, inner=16, max_tokens=12)
    model = OfferEncoder.new(shape.config(30, 0), 4)
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 30, int(n)) for n in rng.integers(3, 12, 150)]
    found = embed(model, rows, 0)
    assert found.shape == (150, 16)
    logits = answers(model, found)
    for i in (0, 77, 149):
        ids, mask = torch.from_numpy(rows[i])[None], torch.ones(1, len(rows[i]))
        with torch.no_grad():
            assert found[i] == pytest.approx(model.embed(ids, mask)[0].numpy(), abs=1e-5)
            assert logits[i] == pytest.approx(model(ids, mask)[0].numpy(), abs=1e-5)
