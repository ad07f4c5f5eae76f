"""What the demo says at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from classifier.artifact import Artifact, Label
from classifier.demo.account import Account, Right, examples
from classifier.demo.service import Snapshot

_EXAMPLES = 12
_TITLE_CHARACTERS = 46


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
    console.print(_examples(account, artifact))
    console.print(_endpoints(run))


def line(account: Account) -> str:
    """The account in one line."""
    parts = ", ".join(f"{count:,} {end}" for end, count in sorted(account.found.items()) if count)
    found = sum(account.found.values())
    return f"{account.sent:,} records sent, {found:,} accounted for: {parts}"


def _figures(account: Account, run: Run) -> Table:
    table = Table(title="Offers in, categories out", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("records", f"{account.sent:,}")
    table.add_row("seconds", f"{run.seconds:.1f}")
    table.add_row("records a second", f"{account.sent / max(1e-6, run.seconds):,.0f}")
    for name, quantile in (("median", 0.5), ("p99", 0.99)):
        age = run.last.age(quantile)
        # The histogram's buckets are too wide for more digits.
        table.add_row(f"offer age, {name}", "none" if age is None else f"{age:.2g} s")
    for outcome, count in run.last.outcomes.items():
        if count:
            table.add_row(outcome.replace("_", " "), f"{count:,}")
    return table


def _accuracy(account: Account, truth: str) -> Table:
    table = Table(title=f"Accuracy against {truth}", title_justify="left")
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


def _examples(account: Account, artifact: Artifact) -> Table:
    labels = {label.id: label for label in artifact.labels}
    table = Table(title="As read back from MongoDB", title_justify="left")
    for name in ("offer", "", "title", "category"):
        table.add_column(name, no_wrap=True)
    table.add_column("score", justify="right")
    table.add_column("status")
    for offer, document, truth in examples(account, _EXAMPLES):
        title = " ".join((offer.title or offer.description or "").split())
        right = "" if truth is None else " ✓" if truth == document["category_id"] else " ✗"
        table.add_row(
            _plain(offer.offer_id[:18]),
            offer.language or "",
            _plain(title[:_TITLE_CHARACTERS]),
            _plain(_name(labels.get(document["category_id"]), document, offer.language)) + right,
            f"{document['score']:.2f}",
            document["status"],
        )
    return table


def _name(label: Label | None, document: Mapping[str, object], language: str | None) -> str:
    names = label.names if label else {}
    return names.get(language or "") or names.get("en") or str(document["category_id"])


def _endpoints(run: Run) -> Table:
    table = Table(title="Where it answered while it ran", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column()
    for url, (status, body) in run.answers.items():
        table.add_row(url, str(status), _plain(body))
    return table


def _plain(text: str) -> str:
    """Text from outside: its brackets are no markup, and it cannot steer the terminal."""
    return "".join(each if each.isprintable() else " " for each in text).replace("[", "\\[")
