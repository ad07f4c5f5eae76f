"""What the demo says at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from classifier.artifact import Artifact, Label
from classifier.classification import REMOVED
from classifier.demo.account import (
    CLASSIFIED,
    DEAD_LETTER,
    SKIPPED,
    SUPERSEDED,
    Account,
    Right,
    examples,
)
from classifier.demo.service import Snapshot

_EXAMPLES = 12


@dataclass(frozen=True)
class Run:
    """What was measured while the service ran."""

    seconds: float  # from the first record sent to the last one done
    last: Snapshot
    answers: Mapping[str, tuple[int, str]]  # an endpoint's URL: its status and its body's beginning


def show(
    console: Console, account: Account, run: Run, artifact: Artifact, truth: str | None
) -> None:
    """Print the tables. `truth` says what accuracy is measured against; None: nothing is known."""
    console.print()
    console.print(_figures(account, run))
    if truth is not None and account.languages:
        console.print(_accuracy(account, truth))
    console.print(_examples(account, artifact, console.width))
    console.print(_endpoints(run, console.width))


_SAID = {
    CLASSIFIED: "classified",
    SUPERSEDED: "superseded by a newer event",
    REMOVED: "removed",
    DEAD_LETTER: "dead letters",
    SKIPPED: "skipped",
}


def line(account: Account) -> str:
    """The account in one line."""
    parts = ", ".join(
        f"{account.found[end]:,} {said}" for end, said in _SAID.items() if account.found[end]
    )
    found = sum(account.found.values())
    return f"{account.sent:,} records sent, {found:,} accounted for: {parts or 'nothing'}"


def _table(title: str, *, head: bool = True) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_header=head)


def _figures(account: Account, run: Run) -> Table:
    table = _table("Offers in, categories out", head=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("records", f"{account.sent:,}")
    table.add_row("seconds", f"{run.seconds:.1f}")
    table.add_row("records a second", f"{account.sent / max(1e-6, run.seconds):,.0f}")
    for name, quantile in (("median", 0.5), ("p99", 0.99)):
        age = run.last.age(quantile)
        # The histogram's buckets are too wide for more digits.
        table.add_row(f"offer age, {name}", "none" if age is None else f"{age:.2g} s")
    table.add_section()
    for outcome, count in run.last.outcomes.items():
        if count:
            table.add_row(f"counted {outcome.replace('_', ' ')}", f"{count:,}")
    return table


def _accuracy(account: Account, truth: str) -> Table:
    table = _table(f"Accuracy against {truth}")
    table.add_column("language")
    for name in ("offers", "accuracy", "certain", "accuracy of those"):
        table.add_column(name, justify="right")
    for language, right in sorted(account.languages.items()):
        table.add_row(language, *_shares(right))
    table.add_section()
    table.add_row("all", *_shares(account.overall))
    return table


def _shares(right: Right) -> tuple[str, str, str, str]:
    def share(part: int, whole: int) -> str:
        return f"{part / whole:.1%}" if whole else "none"

    return (
        f"{right.offers:,}",
        share(right.right, right.offers),
        share(right.certain, right.offers),
        share(right.certain_right, right.certain),
    )


def _examples(account: Account, artifact: Artifact, width: int) -> Table:
    labels = {label.id: label for label in artifact.labels}
    table = _table("A few of them, as read back from MongoDB")
    for name in ("", "title", "category"):
        table.add_column(name)
    table.add_column("score", justify="right")
    table.add_column("status")
    # What the terminal has beside the short columns and the space between all of them.
    free = max(40, width - 35)
    for offer, document, truth in examples(account, _EXAMPLES):
        title = " ".join((offer.title or offer.description or "").split())
        right = "" if truth is None else "✓ " if truth == document["category_id"] else "✗ "
        name = _name(labels.get(document["category_id"]), document, offer.language)
        table.add_row(
            _short(offer.language or "", 2),
            _short(title, free * 3 // 5),
            _short(right + name, free * 2 // 5),
            f"{document['score']:.2f}",
            document["status"],
        )
    return table


def _name(label: Label | None, document: Mapping[str, object], language: str | None) -> str:
    names = label.names if label else {}
    return names.get(language or "") or names.get("en") or str(document["category_id"])


def _endpoints(run: Run, width: int) -> Table:
    table = _table("Where it answered while it ran", head=False)
    for url, (status, body) in run.answers.items():
        table.add_row(url, str(status), _short(body, max(20, width - len(url) - 12)))
    return table


def _short(text: str, cells: int) -> Text:
    """Text from outside in one line of so many cells: it is no markup, and steers no terminal."""
    line = Text("".join(each if each.isprintable() else " " for each in text))
    line.truncate(cells, overflow="ellipsis")
    return line
