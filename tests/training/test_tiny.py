"""The tiny model: real enough that its answers mean something, and always the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from classifier.artifact import Artifact, current
from classifier.model import Model
from compile.checkpoint import Checkpoint
from compile.verify import golden_answers
from training.scratch import PAD_MULTIPLE
from training.tiny import LABELS, tiny_artifact, tiny_checkpoint, tiny_offers

_FINGERPRINT = """
import sys, json
from pathlib import Path
from training.tiny import tiny_checkpoint
made = tiny_checkpoint(Path(sys.argv[1]))
kept = made.description
print(json.dumps([kept.files, kept.thresholds, [label.id for label in made.labels]]))
"""


def test_tells_its_categories_apart_in_every_language(artifact: Path) -> None:
    model = Model.load(artifact, threads=1)
    texts = [word for words in LABELS.values() for word in words.values()]
    truth = [label for label, words in LABELS.items() for _ in words]
    answers = model.predict(texts)
    model.close()
    right = [
        answer is not None and answer.category_id == label
        for answer, label in zip(answers, truth, strict=True)
    ]
    assert np.mean(right) > 0.9


def test_current_names_the_artefact(artifact: Path) -> None:
    assert current(artifact.parent) == artifact


def test_labels_may_be_ones_own(tmp_path: Path) -> None:
    made = tiny_artifact(tmp_path, {"b": {"en": "hammer"}, "a": {"en": "violin"}, "c": {"en": "x"}})
    loaded = Artifact.load(made)
    assert [label.id for label in loaded.labels] == ["a", "b", "c"]
    assert loaded.labels[1].names == {"en": "hammer"}


def test_seeds_make_different_models_and_equal_ones_equal(tmp_path: Path) -> None:
    first, again, other = (
        tiny_checkpoint(tmp_path / str(number), seed=seed) for number, seed in enumerate((3, 3, 4))
    )
    weights = [made.description.files["model.safetensors"] for made in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]


def test_hash_seed_changes_nothing(tmp_path: Path) -> None:
    made = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _FINGERPRINT, str(tmp_path / seed)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        made.append(json.loads(done.stdout))
    assert made[0] == made[1]
    assert made[0][2] == sorted(LABELS)


def test_golden_questions_hold_every_length_and_language(artifact: Path) -> None:
    checkpoint = Checkpoint.load(artifact.parent / "checkpoint")
    texts = [question.text for question in checkpoint.golden]
    rows, _ = checkpoint.tokeniser().encode(texts)
    buckets = {-(-len(row) // PAD_MULTIPLE) for row in rows}
    known, _ = checkpoint.tokeniser().encode(
        [checkpoint.description.text.text(offer) for offer, _ in tiny_offers()]
    )
    assert max(map(len, rows)) == max(map(len, known))
    assert len(buckets) >= 3
    assert "a" in texts  # next to nothing
    languages = {question.language for question in checkpoint.golden}
    assert languages >= {"de", "en", "es", "fr", "it"}
    assert len(set(texts)) == len(texts)


def test_golden_answers_are_the_checkpoints(artifact: Path) -> None:
    checkpoint = Checkpoint.load(artifact.parent / "checkpoint")
    asked = golden_answers(
        checkpoint.encoder(),
        checkpoint.tokeniser(),
        checkpoint.labels,
        {question.text: question.language for question in checkpoint.golden},
    )
    assert asked == checkpoint.golden
    assert all(len(question.logits) == 5 for question in asked)
