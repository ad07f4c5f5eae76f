"""Research stands apart from production: nothing imports it, and it is in no package."""

from __future__ import annotations

import ast
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHERS = ("classifier", "training", "compile", "benchmarks", "tests")


def imported(file: Path) -> set[str]:
    """The top-level names of what a module imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_nothing_imports_research() -> None:
    files = [file for each in OTHERS for file in (ROOT / each).rglob("*.py")]
    assert len(files) > 100
    assert [file for file in files if "research" in imported(file)] == []


def test_research_is_in_no_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    include = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert any(fnmatch("training", pattern) for pattern in include)
    assert [pattern for pattern in include if fnmatch("research", pattern)] == []
