"""Every change of the taxonomy, what becomes of the labels, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.artifact import labels_hash
from tests.training import lakes
from training.changes import (
    Applied,
    Change,
    ChangeSet,
    Merge,
    Move,
    New,
    Rename,
    Retire,
    Split,
    apply,
    apply_files,
    load_changes,
)
from training.consequences import Fresh, Lost, Offers, Production, Report, Stale, Unseen, lines
from training.stage import StageError
from training.taxonomy import (
    Category,
    Row,
    Taxonomy,
    TaxonomyError,
    first,
    label_ids,
    labels,
    load,
    remap_from,
    save,
)

LANGUAGES = ("de", "en", "fr", "es", "it")


def named(category_id: str) -> dict[str, str]:
    return {language: f"{category_id} ({language})" for language in LANGUAGES}


def shop() -> Taxonomy:
    """Two departments: audio with headphones, speakers and radios, and office with faxes."""
    parents = {
        "audio": None,
        "office": None,
        "headphones": "audio",
        "speakers": "audio",
        "radios": "audio",
        "faxes": "office",
        "printers": "office",
    }
    return first(Category(id_, named(id_), parent) for id_, parent in parents.items())


def applied(
    *changes: Change,
    base: Taxonomy | None = None,
    offers: Offers | None = None,
    production: Production | None = None,
) -> Applied:
    base = base or shop()
    return apply(base, ChangeSet(base.version, changes), offers, production)


def moved(result: Applied) -> list[tuple[str, str | None, str | None]]:
    """The rows of the remap that change something."""
    return [
        (row.label, row.subcategory, row.new_label)
        for row in result.remap.rows()
        if row.new_label != row.label
    ]


def test_new_category_is_a_label_without_an_example() -> None:
    result = applied(New("earbuds", named("earbuds"), "audio"), production={"radios": 7})
    assert label_ids(result.taxonomy) == sorted([*label_ids(shop()), "earbuds"])
    assert moved(result) == []
    assert result.report.added == (Fresh("earbuds", (), None),)
    assert result.report.label_lost == ()
    # What is beside it may belong to it.
    assert result.report.reclassify == (
        Stale("headphones", "check", "earbuds", 0),
        Stale("radios", "check", "earbuds", 7),
        Stale("speakers", "check", "earbuds", 0),
    )


def test_new_group_of_new_categories_can_come_in_one_set() -> None:
    result = applied(New("garden", named("garden"), None), New("hoses", named("hoses"), "garden"))
    assert "hoses" in label_ids(result.taxonomy)
    assert "garden" not in label_ids(result.taxonomy)
    # Nothing is beside it, so any label may have its offers.
    assert [stale.category for stale in result.report.reclassify] == label_ids(shop())


def test_renamed_category_keeps_its_offers_and_its_other_names() -> None:
    result = applied(Rename("radios", {"en": "Radio sets"}))
    assert result.taxonomy.by_id()["radios"].names == {**named("radios"), "en": "Radio sets"}
    assert moved(result) == []
    assert result.report.retrain.needs == "none"
    assert result.report.reclassify == ()
    assert labels_hash(labels(result.taxonomy)) == labels_hash(labels(shop()))
    assert result.taxonomy.version != shop().version


def test_moved_category_keeps_its_offers_and_has_other_parents() -> None:
    result = applied(Move("radios", "office"))
    assert {label.id: label.parents for label in labels(result.taxonomy)}["radios"] == ("office",)
    assert moved(result) == []
    assert result.report.retrain.needs == "none"


def test_retired_category_is_kept_and_its_offers_need_labels() -> None:
    offers = {("faxes", None): 3, ("faxes", "thermal"): 4, ("printers", None): 5}
    result = applied(Retire("faxes"), offers=offers, production={"faxes": 100})
    assert result.taxonomy.by_id()["faxes"].status == "retired"
    assert moved(result) == [("faxes", None, None)]
    assert result.report.label_lost == (Lost("faxes", {}, 7),)
    assert result.report.retrain.needs == "outputs"
    assert result.report.retrain.gone == ("faxes",)
    assert result.report.reclassify == (Stale("faxes", "classify", None, 100),)


def test_merged_categorys_offers_follow() -> None:
    result = applied(Merge("faxes", "printers"), production={"faxes": 100, "printers": 9})
    assert result.taxonomy.by_id()["faxes"] == Category(
        "faxes", named("faxes"), "office", "retired", "printers"
    )
    assert moved(result) == [("faxes", None, "printers")]
    assert result.report.label_lost == ()
    assert result.report.retrain.needs == "outputs"
    assert result.report.retrain.changed == ("printers",)
    assert result.report.reclassify == (Stale("faxes", "rename", "printers", 100),)


SPLIT = (
    New("earbuds", named("earbuds"), "audio"),
    New("headsets", named("headsets"), "audio"),
    Split("headphones", {"earbuds": ("in-ear", "sport"), "headsets": ("gaming",)}),
)


def test_split_goes_by_subcategory_and_the_rest_needs_labels() -> None:
    offers = {
        ("headphones", "in-ear"): 10,
        ("headphones", "gaming"): 20,
        ("headphones", "studio"): 40,
        ("headphones", None): 80,
        ("radios", "in-ear"): 160,
    }
    result = applied(*SPLIT, offers=offers, production={"headphones": 1_000})
    assert result.taxonomy.by_id()["headphones"].status == "retired"
    assert moved(result) == [
        ("headphones", None, None),
        ("headphones", "gaming", "headsets"),
        ("headphones", "in-ear", "earbuds"),
        ("headphones", "sport", "earbuds"),
    ]
    assert result.remap("radios", "in-ear") == "radios"
    assert result.report.label_lost == (
        Lost("headphones", {"gaming": "headsets", "in-ear": "earbuds", "sport": "earbuds"}, 120),
    )
    assert result.report.added == (
        Fresh("earbuds", ("headphones",), 10),
        Fresh("headsets", ("headphones",), 20),
    )
    assert result.report.unseen == (Unseen("headphones", "sport"),)
    assert result.report.reclassify == (Stale("headphones", "classify", None, 1_000),)
    assert result.report.retrain.needs == "all"  # two of six labels


def test_split_into_its_own_children_leaves_a_parent() -> None:
    result = applied(
        New("earbuds", named("earbuds"), "headphones"),
        Split("headphones", {"earbuds": ("in-ear",)}),
    )
    assert result.taxonomy.by_id()["headphones"].active
    assert "headphones" not in label_ids(result.taxonomy)
    assert moved(result) == [("headphones", None, None), ("headphones", "in-ear", "earbuds")]


def test_category_can_be_divided_and_go_on() -> None:
    result = applied(
        New("earbuds", named("earbuds"), "audio"),
        Split("headphones", {"earbuds": ("in-ear",), "headphones": ("studio", "gaming")}),
    )
    assert "headphones" in label_ids(result.taxonomy)
    assert result.remap("headphones", "studio") == "headphones"
    assert result.remap("headphones", "in-ear") == "earbuds"
    assert result.remap("headphones", None) is None
    assert result.report.retrain.changed == ("headphones",)
    assert result.report.reclassify == (Stale("headphones", "classify", None, None),)


def test_merge_of_a_merge_leads_to_the_last() -> None:
    result = applied(Merge("faxes", "printers"), Merge("printers", "radios"), Retire("office"))
    assert moved(result) == [("faxes", None, "radios"), ("printers", None, "radios")]
    assert result.taxonomy.by_id()["faxes"].successor == "printers"


def test_target_of_a_split_that_is_merged_later_takes_the_subcategory_along() -> None:
    result = applied(*SPLIT, Merge("earbuds", "speakers"), Retire("headsets"))
    assert moved(result) == [
        ("headphones", None, None),
        ("headphones", "in-ear", "speakers"),
        ("headphones", "sport", "speakers"),
    ]
    assert result.report.label_lost[0].kept == {"in-ear": "speakers", "sport": "speakers"}


def test_subcategory_is_split_on_by_a_later_split() -> None:
    result = applied(
        *SPLIT,
        Split("earbuds", {"speakers": ("sport",), "radios": ("studio",)}),
    )
    # "studio" never came into earbuds, and "in-ear" is in no map of the second split.
    assert moved(result) == [
        ("headphones", None, None),
        ("headphones", "gaming", "headsets"),
        ("headphones", "sport", "speakers"),
    ]


def test_merged_offers_are_split_by_their_own_subcategories() -> None:
    offers: Offers = {("radios", "in-ear"): 1, ("headphones", "gaming"): 1}
    result = applied(Merge("radios", "headphones"), *SPLIT, offers=offers)
    assert result.remap("radios", "in-ear") == "earbuds"
    assert result.remap("radios") is None
    assert result.report.unseen == (Unseen("headphones", "sport"),)


def test_children_can_be_merged_up_into_their_parent() -> None:
    result = applied(Merge("faxes", "office"), Merge("printers", "office"))
    assert "office" in label_ids(result.taxonomy)
    assert moved(result) == [("faxes", None, "office"), ("printers", None, "office")]
    assert result.report.retrain.needs == "outputs"


def test_merging_a_child_up_is_asking_for_a_label_even_if_the_child_is_as_new() -> None:
    result = applied(
        New("scanners", named("scanners"), "office"),
        Retire("faxes"),
        Retire("printers"),
        Merge("scanners", "office"),
    )
    assert "office" in label_ids(result.taxonomy)
    assert result.report.added == (Fresh("office", (), None),)


def test_few_new_labels_may_need_only_a_new_head() -> None:
    many = first([Category(f"c{n:02}", named(f"c{n:02}"), None) for n in range(30)])
    assert applied(New("d", named("d"), None), base=many).report.retrain.needs == "head"


def test_editions_later_old_labels_still_find_their_way() -> None:
    one = shop()
    two = applied(*SPLIT, base=one).taxonomy
    three = applied(Merge("earbuds", "speakers"), Rename("radios", {"en": "R"}), base=two).taxonomy
    four = applied(Split("speakers", {"radios": ("sport",), "speakers": ("in-ear",)}), base=three)
    taxonomy = four.taxonomy
    assert taxonomy.version.startswith("4-")
    assert taxonomy.versions() == [one.version, two.version, three.version, taxonomy.version]
    old = remap_from(taxonomy, one.version)
    assert old("headphones", "sport") == "radios"
    assert old("headphones", "in-ear") == "speakers"
    assert old("headphones", "gaming") == "headsets"
    assert old("speakers") is None
    assert old("faxes", "thermal") == "faxes"
    assert old("earbuds", "sport") is None  # no label of the first edition
    assert remap_from(taxonomy, two.version)("earbuds", "sport") == "radios"
    assert remap_from(taxonomy, three.version) == four.remap
    assert set(old.routes) == set(label_ids(one))


REFUSED: list[tuple[list[Change], str]] = [
    (
        [Rename("nowhere", {"en": "N"})],
        "change 1 (rename 'nowhere'): category 'nowhere' is unknown",
    ),
    ([Rename("radios", {})], "change 1 (rename 'radios'): gives no name"),
    (
        [Rename("radios", {"nl": "N"})],
        (
            "change 1 (rename 'radios'): category 'radios' has a name in 'nl'; the languages are"
            " de, en, fr, es, it"
        ),
    ),
    (
        [New("radios", named("r"), "audio")],
        "change 1 (new 'radios'): the id is taken, and an id never gets another meaning",
    ),
    (
        [Retire("radios"), New("radios", named("r"), "audio")],
        "change 2 (new 'radios'): the id is taken, and an id never gets another meaning",
    ),
    (
        [New("tvs", {"de": "Fernseher"}, "audio")],
        "change 1 (new 'tvs'): category 'tvs' has no name in 'en'",
    ),
    (
        [New("t v", named("t"), "audio")],
        "change 1 (new 't v'): 't v' is no id: 1 to 200 printable characters without blanks",
    ),
    (
        [New("tvs", named("tvs"), "video"), New("video", named("video"), None)],
        "change 1 (new 'tvs'): category 'video' is unknown",
    ),
    (
        [New("tube-radios", named("t"), "radios")],
        (
            "offers of 'radios' would be in 'radios', which has children, such as 'tube-radios',"
            " and only a category without any holds offers: split 'radios', or give its children"
            " another parent"
        ),
    ),
    (
        [Move("radios", "speakers")],
        (
            "offers of 'speakers' would be in 'speakers', which has children, such as 'radios', and"
            " only a category without any holds offers: split 'speakers', or give its children"
            " another parent"
        ),
    ),
    (
        [Move("audio", "radios")],
        "change 1 (move 'audio'): 'radios' is the category itself or under it",
    ),
    (
        [Move("audio", "audio")],
        "change 1 (move 'audio'): 'audio' is the category itself or under it",
    ),
    (
        [Move("faxes", None), Move("printers", "audio")],
        (
            "'office' would be left without children, and offers be put into it: retire it, or"
            " merge one of its children into it"
        ),
    ),
    (
        [Retire("audio")],
        (
            "change 1 (retire 'audio'): it has active children, such as 'headphones': move,"
            " merge or retire them before"
        ),
    ),
    ([Retire("faxes"), Retire("faxes")], "change 2 (retire 'faxes'): category 'faxes' is retired"),
    (
        [Merge("faxes", "audio")],
        (
            "offers of 'faxes' would be in 'audio', which has children, such as 'speakers', and"
            " only a category without any holds offers: split 'audio', or give its children"
            " another parent"
        ),
    ),
    (
        [Merge("faxes", "faxes")],
        "change 1 (merge 'faxes'): merges the category into itself",
    ),
    (
        [Merge("faxes", "printers"), Merge("printers", "faxes")],
        "change 2 (merge 'printers'): category 'faxes' is retired",
    ),
    (
        [Split("headphones", {"earbuds": ("in-ear",)})],
        "change 1 (split 'headphones'): category 'earbuds' is unknown",
    ),
    (
        [Split("headphones", {"radios": ("in-ear",), "speakers": ("in-ear",)})],
        "change 1 (split 'headphones'): subcategory 'in-ear' goes two ways",
    ),
    (
        [Split("headphones", {"radios": ()})],
        "change 1 (split 'headphones'): no subcategory goes into 'radios'",
    ),
    ([Split("headphones", {})], "change 1 (split 'headphones'): goes into nothing: retire it"),
    (
        [Split("headphones", {"radios": ("in-ear ",)})],
        (
            "change 1 (split 'headphones'): 'in-ear ' is no subcategory: 1 to 200 characters on one"
            " line, without blanks around them"
        ),
    ),
    (
        [Split("audio", {"radios": ("in-ear",)})],
        "change 1 (split 'audio'): it had children, so no offers are in it",
    ),
    ([], "holds no changes"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_contradiction_is_refused_with_one_line(changes: list[Change], message: str) -> None:
    with pytest.raises(TaxonomyError) as caught:
        applied(*changes)
    assert str(caught.value) == message


def test_set_made_for_another_edition_is_refused() -> None:
    with pytest.raises(TaxonomyError, match=r"^made for edition 1-0, but the taxonomy is at 1-"):
        apply(shop(), ChangeSet("1-0", (Retire("faxes"),)))


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_change_set_is_read_from_yaml_and_from_json(tmp_path: Path) -> None:
    from_yaml = load_changes(
        written(
            tmp_path / "changes.yaml",
            """
            taxonomy: 7-3fa9c1d2
            changes:
              - {change: new, id: earbuds, parent: null, names: {de: Ö}}
              - {change: rename, id: radios, names: {en: Radios 📻}}
              - {change: move, id: radios, parent: audio}
              - {change: retire, id: faxes}
              - {change: merge, id: a, into: b}
              - change: split
                id: headphones
                into:
                  earbuds: [in-ear, true wireless]
            """,
        )
    )
    assert from_yaml == ChangeSet(
        "7-3fa9c1d2",
        (
            New("earbuds", {"de": "Ö"}, None),
            Rename("radios", {"en": "Radios 📻"}),
            Move("radios", "audio"),
            Retire("faxes"),
            Merge("a", "b"),
            Split("headphones", {"earbuds": ("in-ear", "true wireless")}),
        ),
    )
    raw = json.dumps(msgspec.to_builtins(from_yaml))
    assert load_changes(written(tmp_path / "changes.json", raw)) == from_yaml


def test_example_of_the_page_for_the_content_team_applies(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "taxonomy.md").read_text(encoding="utf-8")
    example = page.partition("## A change set\n\n")[2].partition("\n\nAn id made of")[0]
    groups = dict.fromkeys(("audio", "office", "old"))
    leaves = {
        "radios": "audio",
        "headphones": "audio",
        "portable-audio": "audio",
        "mp3-players": "audio",
        "printers": "office",
        "fax-machines": "old",
        "typewriters": "old",
    }
    parents: dict[str, str | None] = {**groups, **leaves}
    base = first(Category(id_, named(id_), parent) for id_, parent in parents.items())
    text = dedent(example).replace("7-3fa9c1d2", base.version)
    result = apply(base, load_changes(written(tmp_path / "changes.yaml", text)))
    assert moved(result) == [
        ("fax-machines", None, None),
        ("headphones", None, None),
        ("headphones", "in-ear", "earbuds"),
        ("headphones", "true wireless", "earbuds"),
        ("mp3-players", None, "portable-audio"),
    ]


UNREADABLE = {
    "taxonomy: 1-0\nchanges: [{change: retire, id: 12}]": (
        "Expected `str`, got `int` - at `change 1.id`: put it in quotes"
    ),
    "taxonomy: 1-0\nchanges: [{change: retire, id: a}, {change: drop, id: a}]": (
        "Invalid value 'drop' - at `change 2.change`"
    ),
    "taxonomy: 1-0\nchanges: [{change: retire, id: a, into: b}]": (
        "Object contains unknown field `into` - at `change 1`"
    ),
    "taxonomy: 1-0\nchanges: [{change: move, id: a}]": (
        "Object missing required field `parent` - at `change 1`"
    ),
    "changes: []": "Object missing required field `taxonomy`",
    "taxonomy: 1-0\nchanges: [{change: split, id: a, into: {b: [x], b: [y]}}]": "twice",
    "": "Expected `object`, got `null`",
    "a: [": "is no change set: ",
    "\t": "is no change set: ",
    "[" * 2_000: "is no change set: ",
}


@pytest.mark.parametrize("text", UNREADABLE, ids=[text[-40:] for text in UNREADABLE])
def test_file_that_is_no_change_set_is_refused_with_one_line(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "changes.yaml", text)
    with pytest.raises(TaxonomyError) as caught:
        load_changes(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert UNREADABLE[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_key_that_stands_twice_in_json_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "c.json", '{"taxonomy": "1-0", "taxonomy": "1-1", "changes": []}')
    with pytest.raises(TaxonomyError, match="'taxonomy' stands there twice"):
        load_changes(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "changes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaxonomyError, match="is no change set"):
        load_changes(tmp_path / "changes.yaml")


def test_files_are_written_whole_and_what_is_said_is_the_report(tmp_path: Path) -> None:
    save(shop(), tmp_path / "taxonomy.json")
    changes = written(
        tmp_path / "changes.yaml",
        f"""
        taxonomy: {shop().version}
        changes:
          - change: new
            id: earbuds
            parent: audio
            names: {json.dumps(named("earbuds"))}
          - {{change: split, id: headphones, into: {{earbuds: [in-ear], speakers: [sport]}}}}
          - {{change: merge, id: faxes, into: printers}}
          - {{change: new, id: tvs, parent: audio, names: {json.dumps(named("tvs"))}}}
        """,
    )
    rows = [
        {"offer_id": "1", "label": "headphones", "subcategory": "studio"},
        {"offer_id": "2", "label": "headphones", "subcategory": "sport"},
        {"offer_id": "3", "label": "headphones"},
        {"offer_id": "4", "label": "phones"},
        {"offer_id": "5"},
    ]
    counts = {"headphones": 5_000, "faxes": 3, "radios": 1, "speakers": 1}
    said: list[str] = []
    result = apply_files(
        tmp_path / "taxonomy.json",
        changes,
        tmp_path / "next.json",
        said.append,
        str(written(tmp_path / "lake.jsonl", "".join(json.dumps(row) + "\n" for row in rows))),
        written(tmp_path / "production.json", json.dumps({"counts": counts})),
    )
    assert load(tmp_path / "next.json") == result.taxonomy
    report = (tmp_path / "next.report.json").read_bytes()
    assert msgspec.json.decode(report, type=Report) == result.report
    assert said == [
        f"{tmp_path}/lake.jsonl: offers with labels that edition {shop().version} has not: 1",
        (
            f"edition {shop().version} -> {result.taxonomy.version}: 5 labels, 2 new, 2 gone,"
            " 2 changed"
        ),
        "to label:",
        ("  headphones: offers without a label (2), but 'in-ear' to earbuds, 'sport' to speakers"),
        "  headphones: no offer has the subcategory 'in-ear': misspelt?",
        "  earbuds: new, and no labelled offer came from headphones",
        "  tvs: new, without an example",
        "to retrain: all of it: more than 10% of the labels are new or divided",
        "to reclassify:",
        "  faxes (3 stored): all become printers, without a model",
        "  headphones (5,000 stored): by the new model",
        "  radios, speakers (2 stored): when there is time, tvs may draw some away",
        f"{tmp_path}/next.to-label.jsonl.gz: 2 offers to label",
    ]


def lost(path: Path) -> list[dict[str, str | None]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def split_headphones(folder: Path) -> tuple[Path, Path]:
    """The shop's taxonomy, and changes: of the headphones only the sport ones have a label."""
    save(shop(), folder / "taxonomy.json")
    text = f"""
        taxonomy: {shop().version}
        changes:
          - {{change: split, id: headphones, into: {{speakers: [sport], radios: [old]}}}}
          - {{change: retire, id: radios}}
          - {{change: merge, id: faxes, into: printers}}
        """
    return folder / "taxonomy.json", written(folder / "changes.yaml", text)


def test_offers_that_lose_their_label_are_listed_each_once(tmp_path: Path) -> None:
    made: list[lakes.Row] = [
        {"offer_id": "5", "label": "headphones", "subcategory": "studio", "title": "Über"},
        {"offer_id": "4", "label": "headphones", "subcategory": "sport"},
        {"offer_id": "3", "label": "headphones"},
        {"offer_id": "2", "label": "headphones", "subcategory": "old", "title": "x"},
        {"offer_id": "1", "label": "radios", "subcategory": "sport", "title": "y"},
        {"offer_id": "kept", "label": "faxes"},
        {"offer_id": "stranger", "label": "phones"},
        {"offer_id": "free", "label": None},
        {"offer_id": None, "label": "radios"},
        # Of these only the newest revision counts: one has got another label, one lost its own.
        {"offer_id": "6", "label": "radios", "revision": 1},
        {"offer_id": "6", "label": "speakers", "revision": 2},
        {"offer_id": "7", "label": "radios", "title": "older", "revision": 1},
        {"offer_id": "7", "label": "radios", "title": "newer", "revision": 2},
    ]
    lake = str(lakes.write(tmp_path / "lake" / "offers.parquet", made).parent)
    taxonomy, changes = split_headphones(tmp_path)
    out, said = tmp_path / "next.json", list[str]()
    applied = apply_files(taxonomy, changes, out, said.append, lake)
    path = tmp_path / "next.to-label.jsonl.gz"
    assert lost(path) == [
        {"offer_id": "2", "label": "headphones", "subcategory": "old", "title": "x"},
        {"offer_id": "5", "label": "headphones", "subcategory": "studio", "title": "Über"},
        {"offer_id": "3", "label": "headphones", "subcategory": None, "title": None},
        {"offer_id": "1", "label": "radios", "subcategory": "sport", "title": "y"},
        {"offer_id": "7", "label": "radios", "subcategory": None, "title": "newer"},
    ]
    assert said[-1] == f"{path}: 5 offers to label"
    assert sum(each.offers or 0 for each in applied.report.label_lost) == 5
    content = path.read_bytes()
    apply_files(taxonomy, changes, out, said.append, lake)
    assert path.read_bytes() == content


def test_offers_to_label_are_none_of_the_lake_s(tmp_path: Path) -> None:
    lake = lakes.write(tmp_path / "offers.jsonl", [{"offer_id": "1", "label": "radios"}]).parent
    taxonomy, changes = split_headphones(tmp_path)
    with pytest.raises(StageError, match=r"next\.to-label\.jsonl\.gz: would be one of the lake's"):
        apply_files(taxonomy, changes, tmp_path / "next.json", print, str(lake))
    assert not (tmp_path / "next.json").exists()
    # Without a lake nobody knows them.
    apply_files(taxonomy, changes, tmp_path / "next.json", print)
    assert not (tmp_path / "next.to-label.jsonl.gz").exists()


def test_nothing_to_do_is_said(tmp_path: Path) -> None:
    result = applied(Rename("radios", {"en": "R"}))
    assert list(lines(result.report))[1:] == [
        "to label: nothing",
        "to retrain: nothing, the labels are the same; names and parents come with the next model",
        "to reclassify: nothing",
    ]


def test_refused_set_writes_nothing(tmp_path: Path) -> None:
    save(shop(), tmp_path / "taxonomy.json")
    changes = written(
        tmp_path / "changes.yaml",
        f"taxonomy: {shop().version}\nchanges: [{{change: retire, id: audio}}]",
    )
    with pytest.raises(
        TaxonomyError, match=r"changes\.yaml: change 1 \(retire 'audio'\): it has active"
    ):
        apply_files(tmp_path / "taxonomy.json", changes, tmp_path / "next.json", print)
    assert {path.name for path in tmp_path.iterdir()} == {"taxonomy.json", "changes.yaml"}


SUBCATEGORIES = ("x", "y", "z")


def split(category_id: str, way: dict[str, str]) -> Split:
    into: dict[str, tuple[str, ...]] = {}
    for subcategory, target in way.items():
        into[target] = (*into.get(target, ()), subcategory)
    return Split(category_id, into)


@st.composite
def changes_of(draw: st.DrawFn, now: Taxonomy, fresh: str) -> list[Change]:
    """A small set of changes for an edition; most fit it. `fresh` is an id that is free."""
    leaves = label_ids(now)
    leaf = draw(st.sampled_from(leaves))
    places = [None, *(item.id for item in now.categories if item.active and item.id not in leaves)]
    place = draw(st.sampled_from(places))
    new = New(fresh, named(fresh), place)
    ways = st.dictionaries(st.sampled_from(SUBCATEGORIES), st.sampled_from(leaves), min_size=1)
    kind = draw(st.sampled_from(["new", "move", "retire", "merge", "up", "split", "into new"]))
    match kind:
        case "new":
            return [new]
        case "move":
            return [Move(leaf, place)]
        case "retire":
            return [Retire(leaf)]
        case "merge":
            return [Merge(leaf, draw(st.sampled_from(leaves)))]
        case "up":
            return [Merge(leaf, now.by_id()[leaf].parent or leaf)]
        case "split":
            return [split(leaf, draw(ways))]
        case _:
            # Among others into a new one, which stands beside the old or under it.
            new = draw(st.sampled_from([new, New(fresh, named(fresh), leaf)]))
            return [new, split(leaf, {**draw(ways), draw(st.sampled_from(SUBCATEGORIES)): fresh})]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10), st.data())
def test_editions_one_by_one_and_all_changes_at_once_have_the_same_labels(
    editions: int, data: st.DataObject
) -> None:
    base = shop()
    steps: list[Applied] = []
    kept: list[Change] = []
    now = base
    for number in range(editions):
        changes = data.draw(changes_of(now, f"n{number}"))
        try:
            steps.append(applied(*changes, base=now))
        except TaxonomyError:
            continue
        kept += changes
        now = steps[-1].taxonomy
    if not kept:
        return
    at_once = applied(*kept, base=base)
    assert at_once.taxonomy.categories == now.categories

    counts = data.draw(
        st.dictionaries(
            st.tuples(
                st.sampled_from(label_ids(base)), st.none() | st.sampled_from([*SUBCATEGORIES, "w"])
            ),
            st.integers(1, 9),
        )
    )
    later: Counter[str | None] = Counter()
    for (label, subcategory), count in counts.items():
        stepwise: str | None = label
        for step in steps:
            stepwise = step.remap(stepwise, subcategory)
        assert stepwise == at_once.remap(label, subcategory)
        assert stepwise == remap_from(now, base.version)(label, subcategory)
        later[stepwise] += count
    assert remap_from(now, base.version).rows() == at_once.remap.rows()
    # Every offer has a label of the new edition, or is among those that need one.
    assert later.keys() - {None} <= set(label_ids(now))
    report = applied(*kept, base=base, offers=counts).report
    assert sum(lost.offers or 0 for lost in report.label_lost) == later[None]
    assert {fresh.category: fresh.offers for fresh in report.added} == {
        label: later[label] for label in set(label_ids(now)) - set(label_ids(base))
    }
    assert all(Row(row.label, None, row.label) != row for step in now.history for row in step.rows)
