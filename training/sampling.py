"""The sampling plan: which offers of a lake go into which set, as SQL.

The plan is a list of SELECTs in DuckDB's dialect, training/sql/*.sql, each making the table of its
name from the tables before it. DuckDB runs them as they are, out of core, and Spark as sqlglot
translates them; both choose the very same offers. What that takes: every random choice is the order
of MD5 hashes, no sum is one of floating-point numbers, and no choice hangs on a row's place.

Tables that the plan is given:

    files       the lake's rows: FIELDS, null where a lake has no such column
    routes      label, subcategory, new_label: what became of the lake's labels
    production  label, offers: how many offers of each category production sees
    sets        name, pool, rule, offers, least, most: what is to be drawn, see `Set`

and its result, `chosen` (which row is in which set, with what weight) and `selected` (the rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, Literal

import sqlglot
from sqlglot import exp

COLUMNS: Final = (
    "offer_id",
    "shop_id",
    "language",
    "title",
    "description",
    "category_path",
    "brand",
    "label",
    "subcategory",
    "cluster",
    "source",
)
"""Of an offer set, in this order; all are strings."""

FIELDS: Final = {**dict.fromkeys(COLUMNS, "STRING"), "revision": "BIGINT"}
"""Of the lake's rows, with their types in either dialect. An offer's newest revision counts."""

VIEW: Final = "lake"
"""Of the files' rows with an id each. It holds nothing, so each run makes it anew."""

STEPS: Final = (
    "repeated",
    "offers",
    "contested",
    "pools",
    "available",
    "quotas",
    "ranked",
    "chosen",
    "selected",
)
"""The plan's tables, in the order in which they are made."""

SALT: Final = "offer-classifier/"
"""Goes into the hash that puts a product on its side. Another salt would test a model on products
that the one before it was trained on, so it is no parameter."""

Dialect = Literal["duckdb", "spark"]


@dataclass(frozen=True)
class Set:
    """A set to be drawn from a pool.

    `rule` "uniform": about `offers` in all, every stratum as many as there are up to one level that
    lies between `least` and `most`. "production": `offers` in all by production's shares, and in
    each category at least `least`, where there are so many; what a category lacks no other gets,
    and weights make up for both.
    """

    name: str
    pool: Literal["train", "validation", "test", "transfer"]
    rule: Literal["uniform", "production"]
    offers: int
    least: int
    most: int


def bounds(validation_share: float, test_share: float) -> dict[str, str]:
    """Which lots, of 8 hexadecimal digits, are on which side: test's, validation's, training's."""

    def border(share: float) -> str:
        return f"{round(share * 2**32):08x}"

    return {
        "test_below": border(test_share),
        "validation_below": border(test_share + validation_share),
    }


def statement(step: str, parameters: Mapping[str, str], dialect: Dialect) -> str:
    """The SELECT that makes the table `step`, with the parameters' values in it."""

    def fill(node: Any) -> Any:
        if isinstance(node, exp.Placeholder):
            return exp.Literal.string(parameters[node.name])
        return node

    filled = _parsed(step).transform(fill)
    return str(filled.sql(dialect=dialect, pretty=True, comments=False))


@cache
def _parsed(step: str) -> Any:
    text = (resources.files("training.sql") / f"{step}.sql").read_text(encoding="utf-8")
    return sqlglot.parse_one(text, dialect="duckdb")
