"""The sets are what was asked for, share nothing that they must not, and come out the same."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import fsspec  # type: ignore[import-untyped, unused-ignore]
import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from classifier.text import DEFAULT_RECIPE
from tests.training import lakes
from tests.training.lakes import SMALL, draw, figures, read, rows
from training import taxonomy as editions
from training.changes import ChangeSet, Merge, New, Split, apply
from training.dataset import make
from training.distributions import effective, weighting
from training.lake import make_sample
from training.parameters import DatasetParameters, LakeParameters
from training.production import Production
from training.production import read as read_production
from training.sampling import COLUMNS
from training.stage import StageError

SETS = ("train", "validation", "test", "transfer", "experiments/s", "experiments/m")
SPLITS = ("train", "validation", "test")

DRAWN = DatasetParameters(
    training_offers=3_000,
    floor=12,
    cap=200,
    validation_offers=300,
    test_offers=500,
    test_floor=3,
    experiment_offers={"s": 500, "m": 1_500},
    transfer_offers=1_000,
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with a sample lake and the sets drawn from it."""
    place = tmp_path_factory.mktemp("sample")
    lake = place / "lake"
    make_sample(LakeParameters(offers=15_000, seed=3), lake, print)
    known = editions.load(lake / "taxonomy.json")
    draw(place, lake, known, DRAWN, read_production(lake / "production.json", known))
    return place


def plain(*fields: str | None) -> str:
    """A text as a reader sees it, by the service's own cleaning rather than by the plan's SQL."""
    from classifier.offer import Offer

    recipe = msgspec.structs.replace(DEFAULT_RECIPE, fields=DEFAULT_RECIPE.fields[:1])
    said = [recipe.text(Offer(offer_id="-", title=field)) for field in fields]
    return " | ".join(" ".join(re.findall(r"\w+", each.casefold())) for each in said)


def name(row: dict[str, Any]) -> str:
    """What an offer is called: its title, or its description where that says nothing."""
    return plain(row["title"]) or plain(row["description"])


def text(row: dict[str, Any]) -> str:
    return f"{name(row)} | {plain(row['category_path'], row['description'])}"


# What is asked for


def test_columns_are_those_of_an_offer_set(sample: Path) -> None:
    for name in SETS:
        schema = pq.read_schema(lakes.path(sample, name))
        extra = ["weight"] if name in ("test", "validation") else []
        assert schema.names == [*COLUMNS, *extra]
        assert {str(schema.field(column).type) for column in COLUMNS} == {"string"}
        assert not extra or str(schema.field("weight").type) == "double"


def test_training_is_level_over_categories_as_far_as_there_are_offers(sample: Path) -> None:
    drawn = Counter(row["label"] for row in read(sample, "train"))
    available = figures(sample)["available"]["train"]
    assert sum(drawn.values()) == DRAWN.training_offers
    assert drawn.keys() == available.keys()
    level = max(drawn.values())
    assert sum(count in (level, level - 1) for count in drawn.values()) > 80
    for label, count in drawn.items():
        assert count == available[label] or count >= level - 1
    assert (
        figures(sample)["diversity"]["train"]["effective_categories"]
        > 1.8 * (figures(sample)["diversity"]["pool"]["effective_categories"])
    )


def test_training_is_level_over_subcategories_inside_a_category(sample: Path) -> None:
    level = max(Counter(row["label"] for row in read(sample, "train")).values())
    by_label: dict[str, Counter[str | None]] = defaultdict(Counter)
    for row in read(sample, "train"):
        by_label[row["label"]][row["subcategory"]] += 1
    largest = figures(sample)["diversity"]["largest_subcategory"]
    scarce = full = 0
    for label, counts in by_label.items():
        before, after = largest[label]
        assert after == pytest.approx(max(counts.values()) / sum(counts.values()), abs=1e-4)
        if sum(counts.values()) >= level - 1:
            full += 1
            assert after <= before + 0.02
            scarce += after < before - 0.05
    assert scarce > 0.7 * full > 50


def test_experiments_are_nested_and_training_of_the_same_rule(sample: Path) -> None:
    small, medium, train = (
        {row["offer_id"] for row in read(sample, name)}
        for name in ("experiments/s", "experiments/m", "train")
    )
    assert len(small) == 500
    assert len(medium) == 1_500
    assert small < medium < train


def test_validation_and_test_have_their_sizes_and_floors(sample: Path) -> None:
    told = figures(sample)
    production = told["production"]
    everything = sum(production.values())
    for name, wanted, floor in (("validation", 300, 0), ("test", 500, 3)):
        drawn = Counter(row["label"] for row in read(sample, name))
        for label, there in told["available"][name].items():
            share = wanted * production.get(label, 0) / everything
            least, most = min(there, max(floor, int(share))), min(there, max(floor, int(share) + 1))
            assert least <= drawn[label] <= most


@pytest.mark.parametrize("split", ["validation", "test"])
def test_weighted_set_is_distributed_like_production(sample: Path, split: str) -> None:
    rows_ = read(sample, split)
    weights: dict[str, list[float]] = defaultdict(list)
    for row in rows_:
        weights[row["label"]].append(row["weight"])
    total = sum(row["weight"] for row in rows_)
    assert total / len(rows_) == pytest.approx(1, abs=1e-12)
    production = figures(sample)["production"]
    covered = sum(count for label, count in production.items() if label in weights)
    for label, each in weights.items():
        assert len(set(each)) == 1
        assert sum(each) / total == pytest.approx(production.get(label, 0) / covered, abs=1e-12)
    told = figures(sample)[split]
    squares = sum(row["weight"] ** 2 for row in rows_)
    assert told["effective_sample_size"] == pytest.approx(total**2 / squares)
    assert told["uncovered_mass"] == pytest.approx(1 - covered / sum(production.values()))


def test_weights_by_hand(tmp_path: Path) -> None:
    """Production: 60 a, 30 b, 10 of a category without offers, and 25 without a label now."""
    lake = lakes.write(tmp_path / "lake.parquet", rows(3_000, ("a", "b"), unlabelled=50))
    production = Production({"a": 60, "b": 30, "c": 10}, {"gone": 25})
    parameters = SMALL.model_copy(update={"test_offers": 10, "test_floor": 6})
    draw(tmp_path, lake, lakes.taxonomy("a", "b", "c"), parameters, production)
    test = read(tmp_path, "test")
    # Seats: 6 of a, 3 of b raised to 6. Weights: (60/90) / (6/12) and (30/90) / (6/12).
    assert Counter((row["label"], round(row["weight"], 9)) for row in test) == {
        ("a", 1.333333333): 6,
        ("b", 0.666666667): 6,
    }
    told = figures(tmp_path)["test"]
    assert told["effective_sample_size"] == pytest.approx(144 / (6 * 16 / 9 + 6 * 4 / 9))
    assert told["uncovered_mass"] == pytest.approx(35 / 125)
    assert told["uncovered_categories"] == 1


def test_validation_says_how_far_it_is_from_production_by_weights(tmp_path: Path) -> None:
    made = rows(2_000, ("a", "b", "b", "b", "b", "b"), unlabelled=50)
    lake = lakes.write(tmp_path / "lake.parquet", made)
    production = Production({"a": 90, "b": 10, "c": 100}, {})
    parameters = SMALL.model_copy(update={"validation_offers": 1_000})
    draw(tmp_path, lake, lakes.taxonomy("a", "b", "c"), parameters, production)
    weights = Counter((row["label"], row["weight"]) for row in read(tmp_path, "validation"))
    (a, a_weight), (b, b_weight) = sorted(pair for pair in weights)
    rare, common = weights[a, a_weight], weights[b, b_weight]
    assert rare < 45  # of 450 wanted
    assert rare * a_weight / (common * b_weight) == pytest.approx(9)
    told = figures(tmp_path)["validation"]
    assert told["offers"] == rare + common
    assert told["effective_sample_size"] == pytest.approx(1 / (0.81 / rare + 0.01 / common))
    assert told["uncovered_mass"] == pytest.approx(0.5)


def test_kish_and_simpson_by_hand() -> None:
    # Weights 2, 2 and 0.5 four times: 36 / (8 + 1).
    told = weighting({"a": 2, "b": 4}, {"a": 4, "b": 2}, 0)
    assert told["effective_sample_size"] == pytest.approx(6**2 / (2 * 2**2 + 4 * 0.5**2))
    assert weighting({}, {"a": 1}, 0) == {
        "offers": 0,
        "effective_sample_size": 0.0,
        "uncovered_mass": 1.0,
        "uncovered_categories": 1,
    }
    assert effective([5, 5, 5]) == 3
    assert effective([9, 1, 0]) == pytest.approx(100 / 82)
    assert effective([]) == 0


def test_transfer_is_unlabelled_and_level_over_languages_and_shops(tmp_path: Path) -> None:
    made: list[dict[str, str | None]] = rows(100)
    for number in range(900):
        language = "de" if number % 9 else "fr"
        shop = "large" if number % 7 else f"small{number % 3}"
        made.append(
            {
                "offer_id": f"u{number}",
                "title": f"other thing {number}",
                "language": language,
                "shop_id": shop,
            }
        )
    lake = lakes.write(tmp_path / "lake.parquet", made)
    parameters = SMALL.model_copy(update={"transfer_offers": 60})
    draw(tmp_path, lake, lakes.taxonomy("a", "b", "c"), parameters)
    transfer = read(tmp_path, "transfer")
    assert {row["label"] for row in transfer} == {None}
    languages = Counter(row["language"] for row in transfer)
    # 25 unlabelled offers of rows() are in de, en and fr; "en" has no others.
    assert languages["de"] - 1 <= languages["fr"] <= languages["de"] + 1
    assert languages["en"] <= 9
    shops = Counter(
        row["shop_id"] for row in transfer if row["language"] == "de" and row["offer_id"][0] == "u"
    )
    assert len(shops) == 4
    assert max(shops.values()) - min(shops.values()) <= 1


# What must not be shared


def leaks(place: Path) -> None:
    """No id, product or text is in two of the splits, or in transfer and held; no id or text twice.

    Nor is a title, unless it is that of known products, which are told apart by that.
    """
    clusters: dict[str, set[str]] = defaultdict(set)
    titles: dict[str, set[str]] = defaultdict(set)
    unknown: set[str] = set()
    seen: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for split in (*SPLITS, "transfer"):
        side = "train" if split == "transfer" else split
        for row in read(place, split):
            seen[text(row)] += 1
            ids[row["offer_id"]] += 1
            titles[name(row)].add(side)
            if row["cluster"] is not None:
                clusters[row["cluster"]].add(side)
            else:
                unknown.add(name(row))
    assert all(len(names) == 1 for names in clusters.values())
    assert all(len(titles[title]) == 1 for title in unknown)
    assert max(seen.values(), default=1) == 1
    assert max(ids.values(), default=1) == 1
    held = {row["offer_id"] for split in ("validation", "test") for row in read(place, split)}
    for split in ("experiments/s", "experiments/m"):
        assert not held & {row["offer_id"] for row in read(place, split)}


def test_sample_s_sets_share_no_product_and_no_text(sample: Path) -> None:
    leaks(sample)
    assert all(len(read(sample, name)) >= 200 for name in SETS)


TITLES = st.sampled_from(["Red shoe", "RED  shoe!", "r&eacute;d", "réd", "Blue <b>shoe</b>", "12"])


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    made=st.lists(
        st.fixed_dictionaries(
            {
                "offer_id": st.integers(0, 60).map(str),
                "revision": st.sampled_from([None, 1, 2]),
                "title": st.one_of(TITLES, st.integers(0, 30).map("thing {}".format)),
                "category_path": st.sampled_from([None, "Shoes", "SHOES!", "Sale"]),
                "cluster": st.sampled_from([None, *"pqrstuvwxyz"]),
                "label": st.sampled_from([None, "a", "b"]),
                "shop_id": st.sampled_from("123"),
            }
        ),
        min_size=30,
        max_size=120,
    )
)
def test_random_lakes_leak_nothing(
    tmp_path_factory: pytest.TempPathFactory, made: list[dict[str, Any]]
) -> None:
    place = tmp_path_factory.mktemp("random")
    sure = [{"offer_id": f"s{n}", "title": f"sure {n}", "label": "a"} for n in range(8)]
    lake = lakes.write(place / "lake.parquet", [*sure, *made])
    draw(place, lake, lakes.taxonomy("a", "b"))
    leaks(place)


def test_product_stays_on_its_side_when_the_lake_and_the_seed_change(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    old = lakes.write(tmp_path / "old.parquet", rows(800))
    new = lakes.write(tmp_path / "new.parquet", rows(2_000)[300:])
    draw(tmp_path / "1", old, known)
    draw(tmp_path / "2", new, known, SMALL.model_copy(update={"seed": 5}))
    for name in ("validation", "test"):
        held = {row["cluster"] for row in read(tmp_path / "1", name)} - {None}
        trained = {row["cluster"] for row in read(tmp_path / "2", "train")}
        assert held
        assert not held & trained


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_an_offer_stands_in_one_set_once_in_its_newest_revision(
    tmp_path: Path, suffix: str
) -> None:
    made: list[lakes.Row] = []
    for row in rows(600, unlabelled=50):
        told = [{**row, "cluster": None, "title": f"{row['title']}, told {n}"} for n in range(3)]
        made += [{**told[n], "revision": [10, 9, None][n]} for n in range(3)]
    made += [made[0], {**made[3], "offer_id": None}]
    random.Random(1).shuffle(made)
    lake = lakes.write(tmp_path / f"lake.{suffix}", made)
    parameters = SMALL.model_copy(
        update={"training_offers": 400, "cap": 400, "test_offers": 200, "validation_offers": 200}
    )
    draw(tmp_path, lake, lakes.taxonomy("a", "b", "c"), parameters)
    leaks(tmp_path)
    drawn = [row for split in SPLITS for row in read(tmp_path, split)]
    assert len(drawn) > 500
    assert {row["title"][-6:] for row in drawn} == {"told 0"}
    told = figures(tmp_path)["lake"]
    assert (told["offers"], told["older_rows"], told["without_id"]) == (600, 1_201, 1)


def test_without_revisions_one_row_of_an_offer_is_taken_whatever_their_order(
    tmp_path: Path,
) -> None:
    made = [{**row, "cluster": None} for row in rows(400)]
    made += [{**row, "title": f"another {row['title']}"} for row in made]
    known = lakes.taxonomy("a", "b", "c")
    for place in ("1", "2"):
        lake = lakes.write(tmp_path / place / "lake.parquet", made)
        draw(tmp_path / place, lake, known)
        leaks(tmp_path / place)
        made.reverse()
    assert (
        lakes.files(tmp_path / "1")["train.parquet"]
        == (lakes.files(tmp_path / "2")["train.parquet"])
    )
    titles = [row["title"].startswith("another") for row in read(tmp_path / "1", "train")]
    assert 10 < sum(titles) < 50


def test_text_of_two_products_stays_where_it_was_tested_on_whatever_the_seed(
    tmp_path: Path,
) -> None:
    made: list[lakes.Row] = [
        {
            "offer_id": f"o{number}-{product}",
            "title": f"thing {number}",
            "label": "a",
            "cluster": f"p{product}-{number}",
        }
        for number in range(300)
        for product in range(2)
    ]
    lake = lakes.write(tmp_path / "lake.parquet", made)
    held: dict[str, set[str]] = {"validation": set(), "test": set()}
    everything = SMALL.model_copy(
        update={"training_offers": 300, "cap": 300, "test_offers": 300, "validation_offers": 300}
    )
    for seed in range(3):
        place = tmp_path / str(seed)
        draw(place, lake, lakes.taxonomy("a"), everything.model_copy(update={"seed": seed}))
        for split, before in held.items():
            titles = {row["title"] for row in read(place, split)}
            assert len(titles) > 30
            assert titles == (before or titles)
            held[split] = titles
    # The side of either product is a tenth each, and test goes first.
    assert len(held["test"]) == pytest.approx(0.19 * 300, abs=20)


def test_offers_of_one_title_that_differ_otherwise_are_different_texts(tmp_path: Path) -> None:
    """A shop calls every case "Hülle" and says in its path and description what it is for."""
    made: list[lakes.Row] = [
        {
            "offer_id": f"o{number}",
            "title": "Hülle",
            "category_path": f"Zubehör > {'Handy' if number % 2 else 'Tablet'}",
            "description": f"Für Modell {number // 2}",
            "cluster": f"p{number}",
            "label": "ab"[number % 2],
        }
        for number in range(200)
    ]
    made += [{**row, "offer_id": f"{row['offer_id']} again"} for row in made[:40]]
    # Of these nobody knows which product they are, so that they may be any of them.
    unknown: list[lakes.Row] = [
        {"offer_id": f"u{number}", "title": "HÜLLE", "description": f"{number}", "label": "a"}
        for number in range(10)
    ]
    torn: list[lakes.Row] = [
        {"offer_id": f"t{number}", "title": "Torn", "cluster": "t", "label": "ab"[number % 2]}
        for number in range(6)
    ]
    lake = lakes.write(tmp_path / "lake.parquet", [*made, *unknown, *torn])
    everything = SMALL.model_copy(
        update={"training_offers": 500, "cap": 500, "test_offers": 500, "validation_offers": 500}
    )
    draw(tmp_path, lake, lakes.taxonomy("a", "b"), everything, Production({"a": 1, "b": 1}, {}))
    leaks(tmp_path)
    drawn = {row["description"] for split in SPLITS for row in read(tmp_path, split)}
    assert drawn == {f"Für Modell {number}" for number in range(100)}
    told = figures(tmp_path)["lake"]
    assert told["texts_to_draw_from"] == 200
    assert told["dropped"] == {
        "duplicates": 40,
        "contested": 6,
        "title_on_several_sides": 10,
        "unlabelled_of_a_held_side": 0,
    }
    assert told["offers"] == 200 + sum(told["dropped"].values())


# The same again


def test_order_of_rows_files_and_formats_and_threads_change_nothing(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    made = rows(600)
    made.append(made[17])  # a row that stands there twice
    one = lakes.write(tmp_path / "one" / "lake.parquet", made)
    many = tmp_path / "many"
    shuffled = random.Random(5).sample(made, len(made))
    for part in range(3):
        lakes.write(many / f"{9 - part}" / "part.jsonl.gz", shuffled[part::3])
    draw(tmp_path / "1", one, known)
    draw(tmp_path / "2", many, known, SMALL.model_copy(update={"threads": 4}))
    assert lakes.files(tmp_path / "1").keys() == lakes.files(tmp_path / "2").keys()
    for name, content in lakes.files(tmp_path / "1").items():
        assert content == lakes.files(tmp_path / "2")[name], name


def test_another_seed_draws_others(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    lake = lakes.write(tmp_path / "lake.parquet", rows(600))
    draw(tmp_path / "1", lake, known)
    draw(tmp_path / "2", lake, known, SMALL.model_copy(update={"seed": 1}))
    first, second = (
        {row["offer_id"] for row in read(tmp_path / place, "train")} for place in ("1", "2")
    )
    assert len(first) == len(second) == 60
    assert first != second


def test_second_run_does_nothing_and_says_so(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    lake = lakes.write(tmp_path / "lake.parquet", rows(200))
    record = draw(tmp_path, lake, known)
    said: list[str] = []
    assert draw(tmp_path, lake, known, said=said) == record
    assert said == [f"{tmp_path / 'sets'}: is there already"]
    assert record.summary["lake_offers"] == 200
    assert not (tmp_path / "sets" / "parts").exists()


KILLED = """
import sys
from pathlib import Path
from tests.training import lakes
from training import taxonomy
place = Path(sys.argv[1])

class Aloud(list):
    def append(self, line):
        print(line, flush=True)
        if line.startswith("chosen"):  # which it is about to make
            sys.stdin.read()  # until killed

lakes.draw(place, place / "lake.parquet", lakes.taxonomy("a", "b", "c"), said=Aloud())
"""


def test_killed_run_is_taken_up_where_it_was(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for place in (killed, whole):
        lakes.write(place / "lake.parquet", rows(600))
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(killed)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    heard = list(_until(process.stdout, "chosen"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()
    steps = [line.strip() for line in heard if " of 9" in line]
    assert steps[0] == "repeated: 1 of 9"
    assert steps[-1] == "chosen: 8 of 9"
    assert not (killed / "sets" / "stage.json").exists()
    said: list[str] = []
    less = SMALL.model_copy(update={"memory": "500MB", "threads": 2})
    draw(killed, killed / "lake.parquet", known, less, said=said)
    assert said[0] == "chosen: 8 of 9"
    draw(whole, whole / "lake.parquet", known)
    assert lakes.files(killed) == lakes.files(whole)


def _until(lines: Iterator[str], start: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith(start):
            return
    raise AssertionError(f"the run ended before {start!r}")


def test_torn_database_of_a_killed_run_is_made_anew(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    lake = lakes.write(tmp_path / "lake.parquet", rows(200))
    record = draw(tmp_path, lake, known)
    whole = lakes.files(tmp_path)
    sets = tmp_path / "sets"
    (sets / "stage.json").unlink()
    parts = sets / "parts" / record.fingerprint[:16]
    parts.mkdir(parents=True)
    (parts / "sampling.duckdb").write_bytes(b"torn" * 5_000)
    draw(tmp_path, lake, known)
    assert lakes.files(tmp_path) == whole


@pytest.mark.parametrize("torn", ["sampling.duckdb", "sampling.duckdb.wal"])
def test_database_torn_in_any_way_is_made_anew(tmp_path: Path, torn: str) -> None:
    place = tmp_path / "block"  # a name that has "lock" in it
    known = lakes.taxonomy("a", "b", "c")
    lake = lakes.write(place / "lake.parquet", rows(200))
    record = draw(place, lake, known)
    whole = lakes.files(place)
    (place / "sets" / "stage.json").unlink()
    parts = place / "sets" / "parts" / record.fingerprint[:16]
    parts.mkdir(parents=True)
    file = parts / "sampling.duckdb"
    with duckdb.connect(file) as database:
        database.execute("PRAGMA disable_checkpoint_on_shutdown")
        database.execute("CREATE TABLE offers AS SELECT range AS i FROM range(1000)")
    content = bytearray((parts / torn).read_bytes())
    if torn == file.name:
        content[4096:12288] = b"\xff" * 8192  # both of its headers
    else:
        content[-30:] = b"\xff" * 30
    (parts / torn).write_bytes(content)
    draw(place, lake, known)
    assert lakes.files(place) == whole


def test_two_runs_at_once_are_told_apart(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    lake = lakes.write(tmp_path / "lake.parquet", rows(200))
    record = draw(tmp_path, lake, known)
    sets = tmp_path / "sets"
    (sets / "stage.json").unlink()
    parts = sets / "parts" / record.fingerprint[:16]
    parts.mkdir(parents=True)
    code = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True);"
        " sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(parts / "sampling.duckdb")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StageError, match="another run is at work there"):
            draw(tmp_path, lake, known)
        other.communicate(b"")


def experiments(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (place / "sets" / "experiments").iterdir()}


def test_frozen_experiments_stay_when_the_lake_grows(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    draw(tmp_path, lakes.write(tmp_path / "lake.parquet", rows(300)), known)
    frozen, first = experiments(tmp_path), figures(tmp_path)
    assert len(frozen) == 2
    for name, digest in first["hashes"].items():
        if name in first["experiments"]:
            assert first["experiments"][name] == f"experiments/{name}-{digest[:12]}.parquet"
    drawn = read(tmp_path, "experiments/s")

    grown = lakes.write(tmp_path / "lake.parquet", rows(600))
    said: list[str] = []
    record = draw(tmp_path, grown, known, said=said)
    assert read(tmp_path, "experiments/s") != drawn
    after = experiments(tmp_path)
    assert len(after) == 4
    assert {name: after[name] for name in frozen} == frozen
    now = figures(tmp_path)["experiments"]
    assert now["s"] != first["experiments"]["s"]
    assert f"frozen: {tmp_path / 'sets' / now['s']}" in said
    assert now["s"] in record.files
    assert first["experiments"]["s"] not in record.files


def test_experiments_that_were_lost_are_the_same_again(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    lake = lakes.write(tmp_path / "lake.parquet", rows(300))
    draw(tmp_path, lake, known)
    frozen = experiments(tmp_path)
    (tmp_path / "sets" / figures(tmp_path)["experiments"]["s"]).unlink()
    draw(tmp_path, lake, known)
    assert experiments(tmp_path) == frozen


def test_experiments_of_other_parameters_stand_beside_the_frozen_ones(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    lake = lakes.write(tmp_path / "lake.parquet", rows(300))
    draw(tmp_path, lake, known)
    frozen = experiments(tmp_path)
    draw(tmp_path, lake, known, SMALL.model_copy(update={"experiment_offers": {"m": 20}}))
    after = experiments(tmp_path)
    assert after.items() > frozen.items()
    (new,) = after.keys() - frozen.keys()
    assert figures(tmp_path)["experiments"] == {"m": f"experiments/{new}"}
    assert len(read(tmp_path, "experiments/m")) == 20


# Taxonomy


def test_labels_of_an_older_edition_follow_its_changes(tmp_path: Path) -> None:
    base = lakes.taxonomy("a", "b", "c")
    names = dict.fromkeys(lakes.LANGUAGES, "new")
    changes = ChangeSet(
        base.version,
        (
            Merge(id="b", into="a"),
            New(id="c0", names=names, parent=None),
            New(id="c2", names=names, parent=None),
            Split(id="c", into={"c0": ("kind0",), "c2": ("kind9",)}),
        ),
    )
    after = apply(base, changes).taxonomy
    lake = lakes.write(tmp_path / "lake.parquet", rows(900))
    said: list[str] = []
    draw(tmp_path, lake, after, edition=base.version, said=said)
    assert any("labelled offers have no label in edition 2-" in line for line in said)
    assert "1 categories need labels: see dataset.json" in said
    labels = Counter(row["label"] for row in read(tmp_path, "train"))
    assert labels.keys() == {"a", "c0"}
    assert {row["subcategory"] for row in read(tmp_path, "train") if row["label"] == "c0"} == {
        "kind0"
    }
    told = figures(tmp_path)
    assert told["lost_labels"].keys() == {"c"}
    assert told["lake"]["labelled"] + told["lake"]["labels_lost"] == 675
    assert {each["category"]: each["training_offers"] for each in told["needs_labels"]} == {"c2": 0}
    # What lost its label can be learned from without one.
    by_id = {str(row["offer_id"]): row["label"] for row in rows(900)}
    assert "c" in {by_id[row["offer_id"]] for row in read(tmp_path, "transfer")}


def test_without_production_the_lake_stands_for_it(tmp_path: Path) -> None:
    lake = lakes.write(tmp_path / "lake.parquet", rows(900, ("a", "a", "a", "b")))
    draw(tmp_path, lake, lakes.taxonomy("a", "b"))
    told = figures(tmp_path)
    assert told["production"] == told["labelled"]
    assert told["test"]["uncovered_mass"] == 0


# Lakes


def test_lake_in_another_file_system(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    local = lakes.write(tmp_path / "lake.parquet", rows(300))
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe("/lake/part-1.parquet", local.read_bytes())
        memory.pipe("/lake/_SUCCESS", b"")
        draw(tmp_path / "far", "memory://lake", known)
    finally:
        memory.rm("/lake", recursive=True)
    draw(tmp_path / "near", local, known)
    assert (
        lakes.files(tmp_path / "far")["train.parquet"]
        == (lakes.files(tmp_path / "near")["train.parquet"])
    )


def test_lake_in_an_archive(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b", "c")
    plain_file = lakes.write(tmp_path / "lake.jsonl", rows(300))
    with zipfile.ZipFile(tmp_path / "lake.zip", "w") as archive:
        archive.write(plain_file, "inside/lake.jsonl")
    draw(tmp_path / "far", f"zip://inside/lake.jsonl::{tmp_path}/lake.zip", known)
    draw(tmp_path / "near", plain_file, known)
    assert (
        lakes.files(tmp_path / "far")["train.parquet"]
        == (lakes.files(tmp_path / "near")["train.parquet"])
    )


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("odd", ["[1]", "1*", "1?", "it's {a,b}"])
def test_names_that_look_like_globs_are_names(tmp_path: Path, suffix: str, odd: str) -> None:
    known = lakes.taxonomy("a", "b", "c")
    made = rows(300)
    lakes.write(tmp_path / odd / f"offers{odd}.{suffix}", made[:200])
    lakes.write(tmp_path / odd / f"offers1.{suffix}", made[200:])
    draw(tmp_path, tmp_path / odd, known)
    assert figures(tmp_path)["lake"]["offers"] == 300
    draw(tmp_path / "one", tmp_path / odd / f"offers{odd}.{suffix}", known)
    assert figures(tmp_path / "one")["lake"]["offers"] == 200


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_directories_named_like_columns_change_no_column(tmp_path: Path, suffix: str) -> None:
    made = rows(300)
    lake = tmp_path / "lake"
    lakes.write(lake / "label=x" / f"offers.{suffix}", made[:200])
    lakes.write(lake / "label=y" / f"offers.{suffix}", made[200:])
    draw(tmp_path, lake, lakes.taxonomy("a", "b", "c"))
    assert {row["label"] for row in read(tmp_path, "train")} == {"a", "b", "c"}


def test_far_names_that_look_like_globs_are_names(tmp_path: Path) -> None:
    made = rows(300)
    first = lakes.write(tmp_path / "1.parquet", made[:200])
    second = lakes.write(tmp_path / "2.parquet", made[200:])
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe("/odd/part[1].parquet", first.read_bytes())
        memory.pipe("/odd/part1.parquet", second.read_bytes())
        draw(tmp_path, "memory://odd", lakes.taxonomy("a", "b", "c"))
    finally:
        memory.rm("/odd", recursive=True)
    assert figures(tmp_path)["lake"]["offers"] == 300


def test_name_that_no_engine_can_be_told_is_refused(tmp_path: Path) -> None:
    lakes.write(tmp_path / "back\\slash.parquet", rows(5))
    with pytest.raises(StageError, match=r"back.*slash\.parquet: .*backslash"):
        draw(tmp_path, tmp_path / "back\\slash.parquet", lakes.taxonomy("a", "b", "c"))


def test_columns_that_a_lake_has_not_are_null_and_others_pass_by(tmp_path: Path) -> None:
    made = [
        {"offer_id": number, "title": f"thing {number}", "label": "ab"[number % 2], "price": 3.5}
        for number in range(100)
    ]
    path = tmp_path / "lake.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    draw(tmp_path, path, lakes.taxonomy("a", "b"))
    row = read(tmp_path, "train")[0]
    assert row["offer_id"].isdigit()
    assert row["shop_id"] is row["cluster"] is row["subcategory"] is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("lake.parquet", b"PAR1 but not really", "lake.parquet"),
        ("lake.jsonl", b'{"offer_id": "1", "title"\n', "sampling, repeated: .*JSON"),
        ("lake.jsonl.gz", b"\x1f\x8b torn", "lake.jsonl.gz"),
        ("lake.csv", b"offer_id,title\n", "lake.csv: must be one of .parquet"),
    ],
)
def test_broken_lake_is_refused_with_a_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StageError, match=message) as caught:
        draw(tmp_path, tmp_path / name, lakes.taxonomy("a", "b"))
    assert "\n" not in str(caught.value)


def test_lake_that_cannot_be_drawn_from_is_refused_with_a_line(tmp_path: Path) -> None:
    known = lakes.taxonomy("a", "b")
    with pytest.raises(StageError, match="no offers there"):
        draw(tmp_path, tmp_path / "nowhere", known)
    other = tmp_path / "other.parquet"
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT 1 AS id) TO '{other}'")
    with pytest.raises(StageError, match="has no column offer_id"):
        draw(tmp_path, other, known)
    strange = lakes.write(tmp_path / "strange.parquet", rows(50, ("x", "y")))
    with pytest.raises(StageError, match="are the labels this taxonomy's"):
        draw(tmp_path, strange, known)
    lakes.write(tmp_path / "mixed" / "a.parquet", rows(5))
    lakes.write(tmp_path / "mixed" / "b.jsonl", rows(5))
    with pytest.raises(StageError, match="both Parquet and JSON lines"):
        draw(tmp_path, tmp_path / "mixed", known)
    lakes.write(tmp_path / "sets" / "old.parquet", rows(5))
    with pytest.raises(StageError, match="is inside the lake"):
        draw(tmp_path, f"{tmp_path}/sets", known)
    whole = lakes.write(tmp_path / "whole" / "deep" / "a.parquet", rows(5)).parents[1]
    (tmp_path / "link").symlink_to(whole, target_is_directory=True)
    for within in (whole, tmp_path / "link", f"{whole}/**/*.parquet", f"{whole}/*/*.parquet"):
        with pytest.raises(StageError, match="is inside the lake"):
            draw(whole, within, known)
    with pytest.raises(StageError, match="no offers of any category"):
        draw(tmp_path, other, known, production=Production({}, {"x": 1}))
    with pytest.raises(StageError, match="too many to count with"):
        draw(tmp_path, other, known, production=Production({"a": 2**60}, {}))
    with pytest.raises(StageError, match="none of those that led to"):
        draw(tmp_path, other, known, edition="3-00000000")
    with pytest.raises(StageError, match=r"taxonomy\.json: cannot be read"):
        make(SMALL, str(other), tmp_path / "no" / "taxonomy.json", None, tmp_path, print)
    with pytest.raises(StageError, match="Memory"):
        draw(tmp_path, other, known, SMALL.model_copy(update={"memory": "much"}))


def test_picture_shows_what_came(sample: Path) -> None:
    content = (sample / "sets" / "plots.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 20_000
