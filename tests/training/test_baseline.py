"""The baseline is scikit-learn's SVM, the same however it came about, served as it was fitted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.svm import LinearSVC

from classifier.artifact import Artifact, current
from classifier.model import Model
from classifier.offer import Offer
from compile.labelled import DataError
from tests.training.files import say
from training import svm
from training.baseline import make
from training.parameters import BaselineParameters
from training.stage import Record, StageError
from training.taxonomy import Category, first, save
from training.tiny import LABELS, tiny_offers

Rows = list[tuple[Offer, str]]

QUICK = BaselineParameters(costs=(1.0,), tuning_offers=60)


def write(path: Path, rows: Rows) -> Path:
    lines = [
        msgspec.json.encode(msgspec.to_builtins(offer) | {"label": label}) for offer, label in rows
    ]
    path.write_bytes(b"\n".join(lines))
    return path


def split(each: int = 3) -> tuple[Rows, Rows]:
    rows = list(tiny_offers(each=each))
    return [row for i, row in enumerate(rows) if i % 3], rows[::3]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("sets")
    training, validation = split()
    return write(path / "train.jsonl", training), write(path / "validation.jsonl", validation)


@pytest.fixture(scope="module")
def taxonomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("taxonomy") / "taxonomy.json"
    top = dict.fromkeys(("de", "en", "es", "fr", "it"), "all")
    leaves = [Category(label, dict(names), "top") for label, names in LABELS.items()]
    save(first([Category("top", top, None), *leaves]), path)
    return path


@pytest.fixture(scope="module")
def made(
    sets: tuple[Path, Path], taxonomy: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Record]:
    out = tmp_path_factory.mktemp("baseline")
    tuned = BaselineParameters(costs=(0.01, 1.0), tuning_offers=60)
    return out, make(tuned, *sets, taxonomy, out, say)


def test_model_is_scikit_learns_own(made: tuple[Path, Record]) -> None:
    out, _ = made
    model = Model.load(current(out), threads=1, alternatives=7)
    training, validation = split()
    texts = [model.recipe.text(offer) for offer, _ in training + validation]
    labels = [label for _, label in training + validation]
    theirs = make_pipeline(
        FeatureUnion(
            [
                (
                    analyzer,
                    TfidfVectorizer(
                        analyzer=analyzer, ngram_range=span, min_df=2, sublinear_tf=True
                    ),
                )
                for analyzer, span in (("word", (1, 2)), ("char_wb", (3, 5)))
            ]
        ),
        LinearSVC(C=1.0, dual=True, random_state=0, tol=1e-6, max_iter=10_000),
    )
    theirs.fit(texts, labels)
    asked = ["Olivenöl 500 ml", "canapé gris XL", "nothing of it", *texts[:40]]
    expected = theirs.decision_function(asked)
    temperature = model.artifact.manifest.temperature
    shares = np.exp(expected / temperature)
    shares /= shares.sum(axis=1, keepdims=True)
    order = theirs.classes_.tolist()
    for answer, share in zip(model.predict(asked), shares, strict=True):
        assert answer is not None
        found = {answer.category_id: answer.score, **dict(answer.alternatives)}
        assert [found[label] for label in order] == pytest.approx(share, abs=5e-3)
    model.close()


def test_cost_that_does_better_in_validation_is_taken(made: tuple[Path, Record]) -> None:
    tuning = made[1].summary["tuning"]
    assert list(tuning) == ["0.01", "1"]
    best = max(tuning.values())
    assert tuning[f"{made[1].summary['cost']:g}"] == best


def test_labels_are_the_taxonomys(made: tuple[Path, Record], taxonomy: Path) -> None:
    found = Artifact.load(current(made[0]))
    assert [label.id for label in found.labels] == sorted(LABELS)
    assert found.labels[0].names == dict(LABELS[min(LABELS)])
    assert found.labels[0].parents == ("top",)
    assert found.manifest.taxonomy == json.loads(taxonomy.read_text())["version"]
    assert found.manifest.kind == "linear"


def test_done_once_for_the_same_inputs(
    made: tuple[Path, Record], sets: tuple[Path, Path], taxonomy: Path
) -> None:
    out, record = made
    before = sorted(out.rglob("*"))
    tuned = BaselineParameters(costs=(0.01, 1.0), tuning_offers=60)
    assert make(tuned, *sets, taxonomy, out, say) == record
    assert sorted(out.rglob("*")) == before


def test_order_and_format_of_rows_change_nothing(
    made: tuple[Path, Record], taxonomy: Path, tmp_path: Path
) -> None:
    files = []
    for name, rows in zip(("train", "validation"), split(), strict=True):
        columns = [msgspec.to_builtins(offer) | {"label": label} for offer, label in reversed(rows)]
        pq.write_table(pa.Table.from_pylist(columns), tmp_path / f"{name}.parquet")
        files.append(tmp_path / f"{name}.parquet")
    tuned = BaselineParameters(costs=(0.01, 1.0), tuning_offers=60)
    record = make(tuned, files[0], files[1], taxonomy, tmp_path / "out", say)
    first_one, second = (Artifact.load(current(out)) for out in (made[0], tmp_path / "out"))
    assert second.manifest.files == first_one.manifest.files | {
        "report.json": second.manifest.files["report.json"]
    }
    assert record.summary["validation"] == made[1].summary["validation"]


def test_killed_run_is_resumed_and_ends_the_same(
    sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from training import baseline; from training.parameters import BaselineParameters\n"
        "if __name__ == '__main__':\n"
        "    train, validation, out = map(Path, sys.argv[1:])\n"
        "    baseline.make(BaselineParameters(costs=(1.0,), tuning_offers=60), train, validation,"
        " None, out, print)\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    out = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [sys.executable, *map(str, (script, *sets, out))]
    with subprocess.Popen(arguments, env=environment, start_new_session=True) as run:
        while not (parts := list(out.glob("parts/*/training-1/*.safetensors"))):
            assert run.poll() is None
            time.sleep(0.01)
        os.kill(run.pid, signal.SIGKILL)
    (kept,) = parts
    before = kept.stat().st_mtime_ns, kept.read_bytes()
    seen = []
    fit = svm.fit

    def watched(*arguments: Any, **options: Any) -> svm.Svm:
        seen.append((kept.stat().st_mtime_ns, kept.read_bytes()))
        return fit(*arguments, **options)

    monkeypatch.setattr(svm, "fit", watched)
    resumed = make(QUICK, *sets, None, out, say)
    monkeypatch.undo()
    assert seen[0] == before
    assert seen[1][0] == before[0]  # it was not made again
    fresh = make(QUICK, *sets, None, tmp_path / "fresh", say)
    assert resumed.summary["validation"] == fresh.summary["validation"]
    models = [Artifact.load(current(path)).manifest for path in (out, tmp_path / "fresh")]
    assert models[0].checkpoint == models[1].checkpoint
    assert not (out / "parts").exists()


def test_without_refit_validation_is_only_asked(sets: tuple[Path, Path], tmp_path: Path) -> None:
    alone = QUICK.model_copy(update={"refit": False})
    record = make(alone, *sets, None, tmp_path, say)
    found = Artifact.load(current(tmp_path))
    assert found.manifest.data["rows"] == len(split()[0])
    model = Model.load(found.path, threads=1)
    rows = split()[1]
    answers = model.predict([model.recipe.text(offer) for offer, _ in rows])
    right = [
        a is not None and a.category_id == label
        for a, (_, label) in zip(answers, rows, strict=True)
    ]
    assert np.mean(right) == pytest.approx(record.summary["validation"]["accuracy"], abs=1e-4)
    model.close()


def test_svm_that_has_not_converged_is_said(
    sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    make(QUICK, *sets, None, tmp_path / "converged", said.append)
    assert not any("converged" in line for line in said)
    monkeypatch.setattr(svm, "MOST_PASSES", 1)
    make(QUICK, *sets, None, tmp_path / "out", said.append)
    assert "8 of 8 labels have not converged in 1 passes with C = 1: lower costs would" in said
    report = json.loads((current(tmp_path / "out") / "report.json").read_bytes())
    assert (report["unfinished"], report["most_passes"]) == (8, 1)


def test_label_that_only_validation_has_is_learnt_by_the_refit(tmp_path: Path) -> None:
    training, validation = split()
    rare = [(offer, label) for offer, label in training if label == "tents"]
    training = [row for row in training if row[1] != "tents"]
    train = write(tmp_path / "train.jsonl", training)
    held = write(tmp_path / "validation.jsonl", validation + rare)
    make(QUICK, train, held, None, tmp_path / "out", say)
    model = Model.load(current(tmp_path / "out"), threads=1)
    (answer,) = model.predict([model.recipe.text(rare[0][0])])
    assert answer is not None
    assert answer.category_id == "tents"
    model.close()
    said: list[str] = []
    alone = QUICK.model_copy(update={"refit": False})
    make(alone, train, held, None, tmp_path / "alone", said.append)
    assert any("1 categories that training lacks" in line for line in said)
    known = {label.id for label in Artifact.load(current(tmp_path / "alone")).labels}
    assert known == set(LABELS) - {"tents"}


def test_label_that_the_taxonomy_lacks_is_refused(
    sets: tuple[Path, Path], taxonomy: Path, tmp_path: Path
) -> None:
    train = write(tmp_path / "train.jsonl", [*split()[0], (Offer("1", title="x y z"), "boats")])
    with pytest.raises(StageError, match=r"1 labels .* are no labels of .*'boats'"):
        make(QUICK, train, sets[1], taxonomy, tmp_path / "out", say)


def test_texts_that_share_nothing_are_refused(tmp_path: Path) -> None:
    rows = [(Offer("1", title="abc"), "a"), (Offer("2", title="xyz"), "b")]
    file = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError, match="no n-gram stands in 2 of 2 texts"):
        make(QUICK, file, file, None, tmp_path / "out", say)


def test_missing_file_is_one_line(sets: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"none.jsonl: cannot be read: No such file"):
        make(QUICK, tmp_path / "none.jsonl", sets[1], None, tmp_path / "out", say)
