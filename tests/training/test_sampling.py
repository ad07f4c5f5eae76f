"""The sampling plan: quotas by hand and by another way, fair turns, texts and sides that hold."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training import sampling
from training.sampling import FIELDS, STEPS, VIEW, Dialect, Set, bounds, statement

SNAPSHOTS = Path(__file__).parent / "sql"
VALUES = {"seed": "7", "salt": sampling.SALT, **bounds(0.1, 0.2)}


@pytest.mark.parametrize("dialect", ["duckdb", "spark"])
@pytest.mark.parametrize("step", [VIEW, *STEPS])
def test_sql_is_as_it_was_reviewed(step: str, dialect: Dialect) -> None:
    """To accept a change: UPDATE_SNAPSHOTS=1 pytest tests/training/test_sampling.py."""
    path = SNAPSHOTS / dialect / f"{step}.sql"
    made = statement(step, VALUES, dialect) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made, encoding="utf-8")
    assert made == path.read_text(encoding="utf-8")


def test_a_parameter_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="seed"):
        statement("quotas", {}, "duckdb")


def test_a_value_stays_a_value() -> None:
    assert "'o''clock'" in statement("quotas", {"seed": "o'clock"}, "duckdb")


@cache
def sql(step: str, seed: str = "7") -> str:
    return statement(step, {**VALUES, "seed": seed}, "duckdb")


# Quotas


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield connection


def put(
    database: duckdb.DuckDBPyConnection, table: str, columns: str, rows: Sequence[Sequence[Any]]
) -> None:
    names = [column.split()[0] for column in columns.split(", ")]
    kinds = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "INTEGER": pa.int32()}
    types = [kinds[column.split()[1]] for column in columns.split(", ")]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(types)]
    database.register("given", pa.table(arrays, names=names))
    database.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM given")
    database.unregister("given")


def quotas(
    database: duckdb.DuckDBPyConnection,
    available: Mapping[str, int],
    *sets: Set,
    production: Mapping[str, int] | None = None,
) -> dict[str, dict[str, int]]:
    """By set and stratum; every set is drawn from the same pool."""
    put(
        database,
        "available",
        "pool VARCHAR, stratum VARCHAR, offers BIGINT",
        [(pool, *item) for pool in {each.pool for each in sets} for item in available.items()],
    )
    put(
        database,
        "sets",
        "name VARCHAR, pool VARCHAR, rule VARCHAR, offers BIGINT, least BIGINT, most BIGINT",
        [(s.name, s.pool, s.rule, s.offers, s.least, s.most) for s in sets],
    )
    put(
        database,
        "production",
        "label VARCHAR, offers BIGINT",
        list((production or {"a": 1}).items()),
    )
    found: dict[str, dict[str, int]] = {each.name: {} for each in sets}
    made = database.execute(sql("quotas"))
    for name, _, stratum, quota in made.fetchall():
        assert stratum not in found[name]
        found[name][stratum] = quota
    return found


def uniform(offers: int, least: int = 0, most: int = 10**9, name: str = "train") -> Set:
    return Set(name, "train", "uniform", offers, least, most)


def alike(offers: int, least: int = 0) -> Set:
    return Set("test", "test", "production", offers, least, 0)


def test_small_categories_give_all_and_the_others_share_what_is_left(
    database: duckdb.DuckDBPyConnection,
) -> None:
    drawn = quotas(database, {"a": 1, "b": 5, "c": 10, "d": 80}, uniform(13))["train"]
    # 13 = 1 + 4 + 4 + 4
    assert drawn == {"a": 1, "b": 4, "c": 4, "d": 4}


def test_what_is_left_over_at_the_level_goes_to_one_each(
    database: duckdb.DuckDBPyConnection,
) -> None:
    drawn = quotas(database, {"a": 1, "b": 5, "c": 10, "d": 80}, uniform(15))["train"]
    assert drawn["a"] == 1
    assert sorted(drawn.values()) == [1, 4, 5, 5]


def test_level_stays_between_floor_and_cap(database: duckdb.DuckDBPyConnection) -> None:
    available = {"a": 3, "b": 50, "c": 900}
    few, many, between = quotas(
        database,
        available,
        uniform(30, least=20, most=100, name="few"),
        uniform(900, least=20, most=100, name="many"),
        uniform(103, least=20, most=100, name="between"),
    ).values()
    assert few == {"a": 3, "b": 20, "c": 20}
    assert many == {"a": 3, "b": 50, "c": 100}
    assert between == {"a": 3, "b": 50, "c": 50}


counts = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2), st.integers(1, 60), min_size=1, max_size=12
)


@settings(max_examples=30, deadline=None)
@given(available=counts, wanted=st.integers(1, 400))
def test_uniform_quotas_are_the_fairest_there_are(
    database: duckdb.DuckDBPyConnection, available: dict[str, int], wanted: int
) -> None:
    drawn = quotas(database, available, uniform(wanted))["train"]
    assert drawn.keys() == available.keys()
    assert sum(drawn.values()) == min(wanted, sum(available.values()))
    most = max(drawn.values())
    for stratum, quota in drawn.items():
        # Whoever has less than another by more than the odd one has no more to give.
        assert quota == available[stratum] or most - 1 <= quota <= available[stratum]


@settings(max_examples=30, deadline=None)
@given(available=counts, smaller=st.integers(1, 300), more=st.integers(0, 100))
def test_a_larger_set_of_the_same_rule_holds_the_smaller(
    database: duckdb.DuckDBPyConnection, available: dict[str, int], smaller: int, more: int
) -> None:
    s, m = quotas(
        database, available, uniform(smaller, 1, 40, "s"), uniform(smaller + more, 1, 40, "m")
    ).values()
    assert all(s[stratum] <= m[stratum] for stratum in available)


def test_seats_by_largest_remainder(database: duckdb.DuckDBPyConnection) -> None:
    # The example by which Hamilton's rule is taught, with ten seats.
    votes = {"y": 47_000, "w": 16_000, "r": 15_800, "g": 12_000, "b": 6_100, "p": 3_100}
    drawn = quotas(database, dict.fromkeys(votes, 1_000), alike(10), production=votes)["test"]
    # 4.70 1.60 1.58 1.20 0.61 0.31: seven seats at once, three to .70, .61 and .60
    assert drawn == {"y": 5, "w": 2, "r": 1, "g": 1, "b": 1, "p": 0}


def test_test_floor_and_what_is_there_bound_the_seats(
    database: duckdb.DuckDBPyConnection,
) -> None:
    drawn = quotas(
        database,
        {"large": 30, "small": 40, "tiny": 2, "unseen": 9},
        alike(100, least=5),
        production={"large": 900, "small": 99, "tiny": 1, "missing": 1_000},
    )["test"]
    # Shares of 100: 45, 4.95, 0.05; what production does not know gets the floor.
    assert drawn == {"large": 30, "small": 5, "tiny": 2, "unseen": 5}


@settings(max_examples=30, deadline=None)
@given(production=counts, wanted=st.integers(1, 500))
def test_seats_are_within_one_of_the_share_and_all_are_taken(
    database: duckdb.DuckDBPyConnection, production: dict[str, int], wanted: int
) -> None:
    drawn = quotas(
        database, dict.fromkeys(production, 1_000), alike(wanted), production=production
    )["test"]
    total = sum(production.values())
    assert sum(drawn.values()) == wanted
    for stratum, seats in drawn.items():
        assert abs(Fraction(production[stratum] * wanted, total) - seats) < 1


def test_seats_of_production_s_size_are_counted_exactly(
    database: duckdb.DuckDBPyConnection,
) -> None:
    # Doubles end at 2^53, which a year's offers times a test set's pass by far.
    production = {"a": 3 * 10**12 + 1, "b": 3 * 10**12}
    drawn = quotas(
        database, dict.fromkeys(production, 10**7), alike(1_000_001), production=production
    )["test"]
    assert drawn == {"a": 500_001, "b": 500_000}


# Turns


def turns(
    database: duckdb.DuckDBPyConnection, rows: Sequence[tuple[str, str, str, str]], quota: int
) -> list[str]:
    """Ids in the order of their turns. Rows: id, subcategory, product, shop, of one category."""
    put(
        database,
        "pools",
        "row_id VARCHAR, draw VARCHAR, pool VARCHAR, stratum VARCHAR, language VARCHAR,"
        " outer_lot VARCHAR, middle_lot VARCHAR, inner_lot VARCHAR",
        [(row_id, row_id, "train", "a", "", *lots) for row_id, *lots in rows],
    )
    put(
        database,
        "quotas",
        "name VARCHAR, pool VARCHAR, stratum VARCHAR, quota BIGINT",
        [("train", "train", "a", quota)],
    )
    ranked = database.execute(sql("ranked")).fetchall()
    return [row[0] for row in sorted(ranked, key=lambda row: int(row[4]))]


def test_subcategories_then_products_then_shops_take_turns(
    database: duckdb.DuckDBPyConnection,
) -> None:
    rows = [
        ("1", "cases", "p1", "s1"),
        ("2", "cases", "p1", "s1"),
        ("3", "cases", "p1", "s2"),
        ("4", "cases", "p2", "s1"),
        ("5", "cables", "p3", "s1"),
        ("6", "cables", "p3", "s1"),
    ]
    order = turns(database, rows, 10)
    # cables, cases: first products, then the other product, and p1's other shop before its first.
    assert order == ["5", "1", "6", "4", "3", "2"]


@settings(max_examples=30, deadline=None)
@given(
    lots=st.lists(
        st.tuples(st.sampled_from("ABC"), st.sampled_from("pqrs"), st.sampled_from("xyz")),
        min_size=1,
        max_size=40,
    ),
    quota=st.integers(1, 40),
)
def test_whatever_the_quota_each_kind_is_spread_as_evenly_as_can_be(
    database: duckdb.DuckDBPyConnection, lots: list[tuple[str, str, str]], quota: int
) -> None:
    rows = [(f"{number:02d}", *each) for number, each in enumerate(lots)]
    order = turns(database, rows, quota)
    assert len(order) == len(set(order)) == min(quota, len(rows))
    kinds = {row_id: each for row_id, *each in rows}
    for depth in range(3):
        siblings: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for row_id, each in kinds.items():
            siblings[tuple(each[:depth])].append(row_id)
        for family in siblings.values():
            there = Counter(kinds[row_id][depth] for row_id in family)
            drawn = Counter(kinds[row_id][depth] for row_id in order if row_id in set(family))
            most = max(drawn.values(), default=0)
            assert all(drawn[kind] >= min(n, most - 1) for kind, n in there.items())


# Texts, sides and labels


def offers(
    database: duckdb.DuckDBPyConnection,
    *rows: Mapping[str, str | int | None],
    routes: Sequence[tuple[str, str | None, str | None]] = (("a", None, "a"), ("b", None, "b")),
    seed: str = "7",
) -> list[dict[str, Any]]:
    """What the plan knows of each row, sorted by row id."""
    given_rows = [
        [{"offer_id": f"{number:04d}", **row}.get(column) for column in FIELDS]
        for number, row in enumerate(rows)
    ]
    columns = ", ".join(f"{column} {kind}" for column, kind in FIELDS.items())
    put(database, "files", columns.replace("STRING", "VARCHAR"), given_rows)
    database.execute(f"CREATE OR REPLACE TEMP VIEW lake AS {sql('lake')}")
    database.execute(f"CREATE OR REPLACE TABLE repeated AS {sql('repeated')}")
    put(database, "routes", "label VARCHAR, subcategory VARCHAR, new_label VARCHAR", routes)
    made = database.execute(sql("offers", seed))
    names = [column[0] for column in made.description]
    found = [dict(zip(names, row, strict=True)) for row in made.fetchall()]
    return sorted(found, key=lambda row: str(row["row_id"]))


def texts(database: duckdb.DuckDBPyConnection, *titles: str | None) -> set[str | None]:
    return {row["text_id"] for row in offers(database, *({"title": title} for title in titles))}


@pytest.mark.parametrize(
    "variants",
    [
        ("Schuh für Kinder", "SCHUH FÜR KINDER!", " schuh,  für (Kinder) "),
        ("Schuh für Kinder", "Schuh f&uuml;r Kinder", "Schuh f&#252;r Kinder"),
        ("Schuh für Kinder", "Schuh f&amp;uuml;r Kinder", "Schuh fÃ¼r Kinder"),
        ("R&D 5kg", "R&amp;D 5kg", "<b>R&amp;amp;D</b> 5kg", "&lt;b&gt;R&amp;D&lt;/b&gt; 5kg"),
        ("Ключ гаечный", "КЛЮЧ ГАЕЧНЫЙ", "ключ - гаечный"),
    ],
)
def test_spellings_of_one_text_are_one(
    database: duckdb.DuckDBPyConnection, variants: tuple[str, ...]
) -> None:
    assert len(texts(database, *variants)) == 1


def test_different_texts_stay_different(database: duckdb.DuckDBPyConnection) -> None:
    titles = ("iPhone 12", "iPhone 13", "Ключ", "Ключи", "<5kg", "5kg max", "キー", "鍵")
    assert len(texts(database, *titles)) == len(titles)


def test_description_stands_in_for_a_title_that_says_nothing(
    database: duckdb.DuckDBPyConnection,
) -> None:
    same = [
        {"title": title, "description": "A red shoe."} for title in (None, "", "...", "A red shoe")
    ]
    assert len({row["text_id"] for row in offers(database, *same)}) == 1
    assert texts(database, None, "", "- !", "<br>") == {None}


def test_product_decides_the_side_and_the_seed_does_not(
    database: duckdb.DuckDBPyConnection,
) -> None:
    rows = [
        {"title": f"t{n}", "cluster": f"p{n // 4}", "label": "ab"[n % 2], "shop_id": f"s{n % 3}"}
        for n in range(1_200)
    ]
    first = offers(database, *rows)
    again = offers(database, *rows, seed="8")
    sides = {row["row_id"]: row["side"] for row in first}
    assert sides == {row["row_id"]: row["side"] for row in again}
    assert {row["draw"] for row in first} != {row["draw"] for row in again}
    of_product: dict[str, set[str]] = defaultdict(set)
    for row in first:
        of_product[row["middle_lot"]].add(row["side"])
    assert all(len(found) == 1 for found in of_product.values())
    share = {side: count / 1_200 for side, count in Counter(sides.values()).items()}
    # VALUES has 0.1 for validation and 0.2 for test.
    assert share["test"] == pytest.approx(0.2, abs=0.06)
    assert share["validation"] == pytest.approx(0.1, abs=0.05)


def test_labels_follow_the_routes(database: duckdb.DuckDBPyConnection) -> None:
    routes = [("old", None, None), ("old", "x", "new"), ("a", None, "a"), ("merged", None, "a")]
    rows = [
        {"title": "1", "label": "old", "subcategory": "x"},
        {"title": "2", "label": "old", "subcategory": "y"},
        {"title": "3", "label": "old"},
        {"title": "4", "label": "merged", "subcategory": "x"},
        {"title": "5", "label": "unknown"},
        {"title": "6"},
    ]
    found = Counter(
        (row["label"], row["lost_label"]) for row in offers(database, *rows, routes=routes)
    )
    assert found == {
        ("new", None): 1,
        (None, "old"): 2,
        ("a", None): 1,
        (None, "unknown"): 1,
        (None, None): 1,
    }


def pools(
    database: duckdb.DuckDBPyConnection, *rows: Mapping[str, str | None]
) -> list[tuple[str, str]]:
    """Stratum and pool of each row that is left."""
    found = offers(database, *rows)
    columns = ", ".join(f"{name} VARCHAR" for name in found[0] if name != "alone")
    put(
        database,
        "offers",
        columns + ", alone INTEGER",
        [
            [value for name, value in row.items() if name != "alone"] + [row["alone"]]
            for row in found
        ],
    )
    for step in ("contested", "pools"):
        database.execute(f"CREATE OR REPLACE TABLE {step} AS {sql(step)}")
    drawn_from = "SELECT stratum, pool FROM pools WHERE pool NOT IN ('held', 'torn')"
    return sorted(database.execute(drawn_from).fetchall())


def test_text_under_several_labels_has_the_majority_s_or_none(
    database: duckdb.DuckDBPyConnection,
) -> None:
    left = pools(
        database,
        {"title": "One", "label": "a", "shop_id": "1"},
        {"title": "one", "label": "b", "shop_id": "2"},
        {"title": "ONE", "label": "b", "shop_id": "3"},
        {"title": "Two", "label": "a", "shop_id": "1"},
        {"title": "two", "label": "b", "shop_id": "2"},
        {"title": "Three", "label": "a", "shop_id": "1"},
        {"title": "Three", "label": "a", "shop_id": "1"},
    )
    assert [stratum for stratum, _ in left] == ["a", "b"]


def test_transfer_holds_no_text_that_has_a_label_and_no_product_of_another_side(
    database: duckdb.DuckDBPyConnection,
) -> None:
    rows = [{"title": f"p{n}", "cluster": f"p{n}", "language": "de"} for n in range(200)]
    labelled = [{"title": "p0", "cluster": "elsewhere", "label": "a"}]
    sides = Counter(row["side"] for row in offers(database, *rows[1:]))
    left = Counter(pool for _, pool in pools(database, *rows, *labelled))
    assert left["transfer"] == sides["train"]
    assert sides["test"] > 20
