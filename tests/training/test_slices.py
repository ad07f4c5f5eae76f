"""Every offer is in one slice of each kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.training.answered import predictions, row
from training import slices
from training.slices import UNKNOWN, Slice


def shown(found: list[Slice]) -> dict[str, list[int]]:
    return {each.name: each.offers.tolist() for each in found}


def test_by_what_the_offer_says(tmp_path: Path) -> None:
    languages = ["fr", "de", None, "fr"]
    given = predictions(
        tmp_path,
        [row(i, "a", "a", language=each, source=each) for i, each in enumerate(languages)],
    )
    assert shown(slices.languages(given)) == {UNKNOWN: [2], "de": [1], "fr": [0, 3]}
    assert slices.sources(given)[0].name == UNKNOWN


def test_borders_begin_a_slice(tmp_path: Path) -> None:
    titles = ["x" * 19, "x" * 20, "x" * 39, "x" * 40, ""]
    given = predictions(tmp_path, [row(i, "a", "a", title=t) for i, t in enumerate(titles)])
    assert shown(slices.lengths(given, (40, 20))) == {
        "under 20": [0, 4],
        "20 to 39": [1, 2],
        "40 and more": [3],
    }
    assert shown(slices.lengths(given, (1_000,))) == {"under 1,000": [0, 1, 2, 3, 4]}
    assert shown(slices.lengths(given, ())) == {"all": [0, 1, 2, 3, 4]}


def test_frequency_is_that_of_the_label_in_training(tmp_path: Path) -> None:
    given = predictions(tmp_path, [row(0, "often", "new"), row(1, "new", "often"), row(2, "few")])
    found = slices.frequencies(given, {"often": 100, "few": 9}, (10, 100))
    assert shown(found) == {"under 10": [1, 2], "100 and more": [0]}


def test_groups_are_the_labels(tmp_path: Path) -> None:
    given = predictions(tmp_path, [row(0, "a", "b"), row(1, "b", "a"), row(2, "c", "a")])
    assert shown(slices.by_truth(given, {"a": "x", "b": "y"})) == {UNKNOWN: [2], "x": [0], "y": [1]}


def test_shops_with_few_offers_share_a_slice(tmp_path: Path) -> None:
    shops = ["b", "b", "a", "a", "c", "d", "c", "c"]
    given = predictions(tmp_path, [row(i, "a", "a", shop_id=s) for i, s in enumerate(shops)])
    assert shown(slices.shops(given, 3)) == {"c": [4, 6, 7], "3 other shops": [0, 1, 2, 3, 5]}
    # One alone keeps its name.
    assert shown(slices.shops(given, 2)) == {"c": [4, 6, 7], "a": [2, 3], "b": [0, 1], "d": [5]}


def test_only_so_many_shops_have_their_own(tmp_path: Path) -> None:
    given = predictions(tmp_path, [row(i, "a", "a", shop_id=f"s{i // 2:03}") for i in range(200)])
    found = slices.shops(given, 1)
    assert len(found) == slices.MOST_SHOPS + 1
    assert found[-1].name == "50 other shops"
    together = np.concatenate([each.offers for each in found])
    assert sorted(together.tolist()) == list(range(200))
