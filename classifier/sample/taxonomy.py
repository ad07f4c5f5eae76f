"""The sample catalogue's taxonomy: departments, groups and leaf categories, in five languages."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

LANGUAGES = ("de", "en", "fr", "es", "it")

DATA = Path(__file__).parent / "data"


class Category(msgspec.Struct, frozen=True):
    """One category: its stable id, its name in each language, its parents' ids, nearest first."""

    id: str
    names: dict[str, str]
    parents: tuple[str, ...] = ()


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    parent: str | None
    names: dict[str, str]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    categories: tuple[_Node, ...]


@cache
def _file() -> _File:
    return msgspec.json.decode((DATA / "taxonomy.json").read_bytes(), type=_File)


def version() -> str:
    """Which edition of the taxonomy this is; it changes with every category."""
    return f"sample-{_file().version}"


@cache
def categories() -> dict[str, Category]:
    """All categories of the three levels by id, a parent before its children."""
    known: dict[str, Category] = {}
    for node in _file().categories:
        parents = (node.parent, *known[node.parent].parents) if node.parent else ()
        known[node.id] = Category(node.id, node.names, parents)
    return known


@cache
def taxonomy() -> tuple[Category, ...]:
    """The leaf categories, which are what offers are classified into, in the file's order."""
    above = {parent for category in categories().values() for parent in category.parents}
    return tuple(category for category in categories().values() if category.id not in above)
