"""Progress for a person at a terminal; nothing where nobody watches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Show = Callable[[float, int, str], None]
"""Takes the share that is done, 0 to 1, how many rows that is (0 where nobody counts them), and a
word about them."""


@contextlib.contextmanager
def bar(what: str, console: Console | None = None) -> Iterator[Show]:
    """A progress bar on standard error, gone at the end; none unless that is a terminal."""
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}  {task.fields[note]}"),
        TimeRemainingColumn(),
    )
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as it:
        task = it.add_task(what, total=1.0, rate="", note="")

        def show(share: float, rows: int, note: str) -> None:
            seconds = max(1e-6, time.perf_counter() - started)
            rate = f"{rows / seconds:,.0f}/s" if rows else ""
            it.update(task, completed=share, rate=rate, note=note)

        yield show
