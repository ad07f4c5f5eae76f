"""The tests that docs/cases.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "cases.md"


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w*)`", PAGE.read_text())
    assert len(named) > 50
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not any(re.search(rf"def {name}", path.read_text()) for path in TESTS.rglob(file))
    ]
    assert missing == []
