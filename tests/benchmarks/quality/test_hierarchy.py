"""F1 over the levels of a hierarchy, against scikit-learn and by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from sklearn.metrics import f1_score

from benchmarks.quality import hierarchy
from benchmarks.quality.hierarchy import Label, Parent, mean_f1
from tests.training.answered import predictions, row
from training.stage import StageError

LABELS = {
    "tents": Label((Parent("camping"), Parent("outdoor"))),
    "stoves": Label((Parent("camping"), Parent("outdoor"))),
    "boots": Label((Parent("shoes"), Parent("outdoor"))),
    "sofas": Label((Parent("living"), Parent("home"))),
    "lamps": Label((Parent("home"),)),
    "books": Label(),
}


def test_each_level_is_scikit_learns_and_all_count_as_much() -> None:
    rng = np.random.default_rng(0)
    names = ["tents", "stoves", "boots", "sofas"]
    truths = rng.choice(names, 200).tolist()
    answers = [truth if rng.random() < 0.6 else str(rng.choice(names)) for truth in truths]
    parents = {name: [parent.label for parent in LABELS[name].parents] for name in names}
    levels = [
        (truths, answers),
        *(
            ([parents[each][up] for each in truths], [parents[each][up] for each in answers])
            for up in (0, 1)
        ),
    ]
    expected = np.mean([f1_score(*level, average="weighted") for level in levels])
    assert mean_f1(truths, answers, LABELS) == pytest.approx(expected)


def test_wrong_label_with_the_right_parent_is_right_above() -> None:
    # The labels' own level: none of two right. Above it: both.
    assert mean_f1(["tents", "stoves"], ["stoves", "tents"], LABELS) == pytest.approx(2 / 3)


def test_no_answer_is_wrong_at_every_level() -> None:
    # On each of three levels one of two is found: precision 1, recall 1/2, F1 2/3.
    assert mean_f1(["tents", "tents"], ["tents", None], LABELS) == pytest.approx(2 / 3)


def test_label_with_fewer_parents_stands_for_its_topmost_one() -> None:
    # lamps > home is right at the third level, where sofas > living > home is home, too.
    assert mean_f1(["sofas"], ["lamps"], LABELS) == pytest.approx((0 + 0 + 1) / 3)
    assert mean_f1(["lamps"], ["sofas"], LABELS) == pytest.approx(0.0)


def test_only_sources_whose_labels_have_parents_have_a_figure(tmp_path: Path) -> None:
    given = predictions(
        tmp_path,
        [
            row(1, "tents", "stoves", source="camp"),
            row(2, "boots", "boots", source="camp"),
            row(3, "books", "tents", source="press"),
        ],
    )
    found = hierarchy.by_source(given, LABELS)
    # Of two offers: one label right; both right above.
    assert found == pytest.approx({"camp": (0.5 + 1 + 1) / 3})


def test_label_that_is_not_known_is_refused(tmp_path: Path) -> None:
    given = predictions(tmp_path, [row(1, "tents", "yachts", source="camp")])
    with pytest.raises(StageError, match="1 labels have no entry, 'yachts' for one"):
        hierarchy.by_source(given, LABELS)


def test_labels_are_read_with_what_else_is_said_of_them(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    parents = [{"label": "home", "name": "Home"}]
    path.write_bytes(
        msgspec.json.encode({"lamps": {"name": "Lamps", "source": "a", "parents": parents}})
    )
    assert hierarchy.load(path) == {"lamps": LABELS["lamps"]}
    path.write_text('{"lamps": {"parents": "home"}}')
    with pytest.raises(StageError, match=r"labels.json: no labels with their parents"):
        hierarchy.load(path)
    with pytest.raises(StageError, match=r"none.json: cannot be read"):
        hierarchy.load(tmp_path / "none.json")
