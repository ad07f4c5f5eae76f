from __future__ import annotations

import io

from rich.console import Console

from classifier import progress


def test_nothing_is_said_where_nobody_watches() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress.bar("classifying", console) as show:
        show(0.5, 100, "rows")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().strip() == ""


def test_a_person_sees_the_share_and_the_note() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress.bar("classifying", console) as show:
        show(0.25, 100, "3 with an error")
        show(0.5, 200, "4 with an error")
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "classifying" in said
    assert "50%" in said
    assert "4 with an error" in said
    assert "/s" in said


def test_the_bar_is_gone_at_the_end() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress.bar("classifying", console) as show:
        show(1.0, 10, "rows")
    assert isinstance(console.file, io.StringIO)
    after = console.file.getvalue().rpartition("classifying")[2]
    assert "\x1b[2K" in after  # the line is cleared
    assert "\x1b[?25h" in after  # and the cursor is back
