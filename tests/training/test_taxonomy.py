"""An edition is consistent or refused, its version is its content's, and no label loses its way."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier import sample
from training.taxonomy import (
    Category,
    Remap,
    Route,
    Row,
    Taxonomy,
    TaxonomyError,
    first,
    from_sample,
    label_ids,
    labels,
    load,
    outline,
    remap_from,
    save,
)

LANGUAGES = ("de", "en", "fr", "es", "it")


def named(category_id: str) -> dict[str, str]:
    return {language: f"{category_id} ({language})" for language in LANGUAGES}


def category(category_id: str, parent: str | None = None, **fields: Any) -> Category:
    return Category(category_id, named(category_id), parent, **fields)


def tree() -> list[Category]:
    return [category("top"), category("b", "top"), category("a", "top"), category("other")]


def saved(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file of a small taxonomy, without its version, after a change by hand."""
    save(first(tree()), path)
    raw = json.loads(path.read_bytes())
    del raw["version"]
    change(raw)
    path.write_text(json.dumps(raw))
    return path


def test_sample_taxonomy_has_the_samples_categories_and_labels() -> None:
    taxonomy = from_sample()
    assert {category.id: (category.names, category.parent) for category in taxonomy.categories} == {
        category.id: (category.names, next(iter(category.parents), None))
        for category in sample.categories().values()
    }
    assert [(label.id, label.names, label.parents) for label in labels(taxonomy)] == sorted(
        (category.id, category.names, category.parents) for category in sample.taxonomy()
    )


def test_what_is_saved_is_loaded_and_saving_again_gives_the_same_bytes(tmp_path: Path) -> None:
    taxonomy = from_sample()
    save(taxonomy, tmp_path / "one.json")
    assert load(tmp_path / "one.json") == taxonomy
    save(load(tmp_path / "one.json"), tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_only_active_categories_without_active_children_are_labels() -> None:
    taxonomy = first(
        [
            category("top"),
            category("leaf", "top"),
            category("inner", "top"),
            category("under", "inner"),
            category("gone", "under", status="retired", successor="leaf"),
        ]
    )
    assert label_ids(taxonomy) == ["leaf", "under"]
    assert [label.parents for label in labels(taxonomy)] == [("top",), ("inner", "top")]


@given(st.randoms(use_true_random=False))
def test_version_does_not_depend_on_the_order_of_rows(chance: random.Random) -> None:
    rows = tree()
    chance.shuffle(rows)
    rows = [
        Category(row.id, dict(chance.sample(list(row.names.items()), 5)), row.parent)
        for row in rows
    ]
    assert first(rows) == first(tree())
    assert first(rows).version == first(tree()).version


def test_version_changes_with_every_name_parent_and_status() -> None:
    versions = {
        first(rows).version
        for rows in (
            tree(),
            [*tree()[:3], category("another")],
            [*tree()[:3], category("other", "a")],
            [*tree()[:3], category("other", status="retired")],
            [*tree()[:3], category("other", status="retired", successor="a")],
            [*tree()[:3], Category("other", {**named("other"), "it": "altro"}, None)],
        )
    }
    assert len(versions) == 6
    assert all(version.startswith("1-") for version in versions)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a category twice": (
        lambda raw: raw["categories"].append(raw["categories"][0]),
        "category 'a' stands there twice",
    ),
    "an unknown parent": (
        lambda raw: raw["categories"][0].update(parent="nowhere"),
        "category 'a' has the parent 'nowhere', which is unknown",
    ),
    "a cycle": (
        lambda raw: raw["categories"][3].update(parent="a"),
        "the parents of category 'a' lead back to itself",
    ),
    "its own parent": (
        lambda raw: raw["categories"][0].update(parent="a"),
        "the parents of category 'a' lead back to itself",
    ),
    "no Italian": (
        lambda raw: raw["categories"][0]["names"].pop("it"),
        "category 'a' has no name in 'it'",
    ),
    "Dutch": (
        lambda raw: raw["categories"][0]["names"].update(nl="een"),
        "category 'a' has a name in 'nl'; the languages are de, en, fr, es, it",
    ),
    "an empty name": (
        lambda raw: raw["categories"][0]["names"].update(it=""),
        (
            "'' is no name in 'it' for category 'a': 1 to 200 characters on one line, without"
            " blanks around them"
        ),
    ),
    "a name on two lines": (
        lambda raw: raw["categories"][0]["names"].update(it="uno\ndue"),
        (
            "'uno\\ndue' is no name in 'it' for category 'a': 1 to 200 characters on one line,"
            " without blanks around them"
        ),
    ),
    "an id with a blank": (
        lambda raw: raw["categories"][0].update(id="a b"),
        "'a b' is no id: 1 to 200 printable characters without blanks",
    ),
    "active under retired": (
        lambda raw: raw["categories"][3].update(status="retired"),
        "category 'a' is active and its parent 'top' retired",
    ),
    "active with a successor": (
        lambda raw: raw["categories"][0].update(successor="b"),
        "category 'a' is active and has a successor",
    ),
    "an unknown successor": (
        lambda raw: raw["categories"][0].update(status="retired", successor="nowhere"),
        "category 'a' has the successor 'nowhere', which is unknown",
    ),
    "successors in a circle": (
        lambda raw: [
            raw["categories"][at].update(status="retired", successor=successor)
            for at, successor in ((0, "b"), (1, "a"))
        ],
        "the successors of category 'a' lead back to itself",
    ),
    "no category": (lambda raw: raw["categories"].clear(), "no category is active"),
    "a history and no version": (
        lambda raw: raw["history"].append({"base": "1-0", "added": ["a"], "rows": []}),
        "has a history and no version",
    ),
    "a step to nowhere": (
        lambda raw: raw["history"].append(
            {"base": "1-0", "added": [], "rows": [["old", None, "nowhere"]]}
        ),
        "the step after edition 1-0 gives 'nowhere', which is no label",
    ),
    "a step that adds what is not there": (
        lambda raw: raw["history"].append({"base": "1-0", "added": ["top"], "rows": []}),
        "the step after edition 1-0 adds 'top', which is no label",
    ),
    "a step that adds what was there": (
        lambda raw: raw["history"].append(
            {"base": "1-0", "added": ["a"], "rows": [["a", None, "b"]]}
        ),
        "the step after edition 1-0 adds 'a', which was there before",
    ),
    "a step that forgets the rest": (
        lambda raw: raw["history"].append(
            {"base": "1-0", "added": [], "rows": [["old", "kind", "b"]]}
        ),
        "label 'old' has no row for the rest of its offers",
    ),
    "a row twice": (
        lambda raw: raw["history"].append(
            {"base": "1-0", "added": [], "rows": [["old", None, "b"], ["old", None, None]]}
        ),
        "two rows for label 'old', None",
    ),
    "another version": (
        lambda raw: raw.update(version="1-12345678"),
        (
            "its version is 1-12345678, its content's "
            f"{first(tree()).version}: it was changed by hand, and labels would get lost; undo"
            " that and write a change set"
        ),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_inconsistent_file_is_refused_with_one_line(name: str, tmp_path: Path) -> None:
    change, message = BROKEN[name]
    path = saved(tmp_path / "taxonomy.json", change)
    with pytest.raises(TaxonomyError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"categories": [{"id": 1, "names": {}, "parent": null}]}',
        b'{"categories": [], "more": 1}',
        b'{"categories": [{"id": "a", "names": {}, "parent": null, "status": "asleep"}]}',
        b'{"categories": [{"id": "a", "names": {"de": "\\ud800"}, "parent": null}]}',
        b'{"categories": ' + b"[" * 100_000,
    ],
)
def test_file_that_is_no_taxonomy_is_refused_with_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "taxonomy.json"
    path.write_bytes(content)
    with pytest.raises(TaxonomyError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TaxonomyError, match=r"none\.json: cannot be read: No such file"):
        load(tmp_path / "none.json")


def test_file_without_a_version_is_a_first_edition(tmp_path: Path) -> None:
    path = saved(tmp_path / "taxonomy.json", lambda raw: raw["categories"].reverse())
    assert load(path) == first(tree())


def test_outline_shows_active_categories_as_a_tree() -> None:
    taxonomy = first([*tree(), category("gone", "top", status="retired")])
    assert list(outline(taxonomy, "fr")) == [
        f"edition {taxonomy.version}: 4 active categories, 3 of them labels, 1 retired",
        "other: other (fr)",
        "top: top (fr)",
        "  a: a (fr)",
        "  b: b (fr)",
    ]


# Remaps between editions 1 to 4 of a few labels, with a few subcategories.
SUBCATEGORIES = ("x", "y", "z")
NAMES = ("a", "b", "c", "d")
ends = st.none() | st.sampled_from(NAMES)
routes = st.builds(Route, ends, st.dictionaries(st.sampled_from(SUBCATEGORIES), ends))
whole_routes = st.fixed_dictionaries(dict.fromkeys(NAMES, routes))
offers = st.lists(
    st.tuples(
        st.none() | st.sampled_from([*NAMES, "unknown"]),
        st.none() | st.sampled_from([*SUBCATEGORIES, "never told"]),
    )
)


def joined(rows: list[Row], label: str | None, subcategory: str | None) -> str | None:
    """What a join gives: the row of the label and the subcategory, else that of the label."""
    found = {(row.label, row.subcategory): row.new_label for row in rows}
    if label is None:
        return None
    return found.get((label, subcategory), found.get((label, None)))


@given(whole_routes, whole_routes, whole_routes, offers)
def test_composed_remap_is_one_after_the_other(
    one: dict[str, Route],
    two: dict[str, Route],
    three: dict[str, Route],
    given_offers: list[tuple[str | None, str | None]],
) -> None:
    first_, second, third = Remap("1", "2", one), Remap("2", "3", two), Remap("3", "4", three)
    whole = first_.then(second).then(third)
    assert (whole.base, whole.version) == ("1", "4")
    assert whole == first_.then(second.then(third))
    for label, subcategory in given_offers:
        middle = second(first_(label, subcategory), subcategory)
        assert whole(label, subcategory) == third(middle, subcategory)


@given(whole_routes, offers)
def test_rows_say_what_the_remap_does(
    one: dict[str, Route], given_offers: list[tuple[str | None, str | None]]
) -> None:
    remap = Remap("1", "2", one)
    rows = remap.rows()
    assert rows == sorted(rows, key=lambda row: (row.label, row.subcategory or ""))
    again = Remap.from_rows("1", "2", reversed(rows))
    for label, subcategory in given_offers:
        expected = remap(label, subcategory)
        assert joined(rows, label, subcategory) == expected
        assert again(label, subcategory) == expected


@given(whole_routes, offers)
def test_remapping_loses_no_offer(
    one: dict[str, Route], given_offers: list[tuple[str | None, str | None]]
) -> None:
    remap = Remap("1", "2", one)
    before = Counter(given_offers)
    after: Counter[tuple[str | None, str | None]] = Counter()
    for (label, subcategory), count in before.items():
        after[remap(label, subcategory), subcategory] += count
    assert after.total() == before.total()
    assert {subcategory for _, subcategory in after} == {subcategory for _, subcategory in before}


def test_remaps_of_editions_that_do_not_meet_are_refused() -> None:
    with pytest.raises(TaxonomyError, match="of edition 2 cannot be remapped from 3"):
        Remap("1", "2", {}).then(Remap("3", "4", {}))


def test_edition_remaps_from_itself_by_changing_nothing() -> None:
    taxonomy = first(tree())
    remap = remap_from(taxonomy, taxonomy.version)
    assert remap.rows() == [Row(label, None, label) for label in ("a", "b", "other")]
    assert remap("top") is None


def test_edition_that_never_was_has_no_remap() -> None:
    taxonomy: Taxonomy = first(tree())
    with pytest.raises(TaxonomyError, match=r"^edition 7-0 is none of those that led to 1-"):
        remap_from(taxonomy, "7-0")


UNDER_A_SEED = """
import sys
from pathlib import Path
import msgspec
from classifier.artifact import labels_hash
from training.changes import apply_files
from training.taxonomy import Remap, labels, load, remap_from

taxonomy, changes, out = map(Path, sys.argv[1:])
applied = apply_files(taxonomy, changes, out, print)
again = load(out)
print(again.version, labels_hash(labels(again)))
print(remap_from(again, applied.report.base).rows() == applied.remap.rows())
print(applied.remap.rows())
"""


def test_nothing_depends_on_the_hash_seed_or_the_order_of_rows(tmp_path: Path) -> None:
    changes = tmp_path / "changes.json"
    changes.write_text(
        json.dumps(
            {
                "taxonomy": from_sample().version,
                "changes": [
                    {
                        "change": "new",
                        "id": "new-kettles",
                        "parent": "small-appliances",
                        "names": named("k"),
                    },
                    {"change": "merge", "id": "air-fryers", "into": "phone-cases"},
                    {
                        "change": "split",
                        "id": "phone-cases",
                        "into": {
                            "new-kettles": ["steel", "glass", "travel"],
                            "phone-cases": ["case", "sleeve"],
                            "smartphones": ["phone"],
                        },
                    },
                    {"change": "retire", "id": "smartphones"},
                ],
            }
        )
    )
    results = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        save(from_sample(), folder / "in.json")
        raw = json.loads((folder / "in.json").read_bytes())
        random.Random(seed).shuffle(raw["categories"])
        (folder / "in.json").write_text(json.dumps(raw))
        done = subprocess.run(
            [sys.executable, "-c", UNDER_A_SEED, folder / "in.json", changes, folder / "out.json"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        files = [(folder / name).read_bytes() for name in ("out.json", "out.report.json")]
        results.add((done.stdout, *files))
    assert len(results) == 1
    assert "\nTrue\n" in done.stdout
