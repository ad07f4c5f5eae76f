"""The table that a campaign ends with."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tests.faults import verifier
from tests.faults.campaign import Outcome

DEMANDED = (
    verifier.LOST,
    verifier.STALE,
    verifier.WRONG,
    verifier.ALIEN,
    verifier.WRONGLY_SET_ASIDE,
    verifier.REASON,
    verifier.CHANGED,
    verifier.EARLY,
    verifier.UNCOMMITTED,
    verifier.BEYOND,
)


def lines(outcome: Outcome) -> Iterator[str]:
    counts = outcome.verdict.counts
    yield f"seed {outcome.plan.seed}, {outcome.plan.machines} machines"
    yield ""
    for kind, count in sorted(outcome.injected.items()):
        missed = outcome.missed[kind]
        yield f"{kind:<45}{count:>10}" + (f"   ({missed} without a chance)" if missed else "")
    yield f"{'faults':<45}{outcome.injected.total():>10}"
    yield f"{'records acknowledged':<45}{outcome.events:>10}"
    for name in ("classified", "removed", "dead letters"):
        yield f"{name:<45}{counts[name]:>10}"
    for name in DEMANDED:
        yield f"{name:<45}{counts[name]:>10}"
    explained = f"   (the faults explain up to {outcome.explained})"
    yield f"{'done again':<45}{counts['repeated']:>10}{explained}"
    yield f"{'of them dead letters':<45}{counts['dead letters again']:>10}"
    if outcome.recoveries:
        worst = max(outcome.recoveries)
        yield f"{'seconds to recover, median':<45}{median(outcome.recoveries):>10.1f}"
        yield f"{'seconds to recover, worst':<45}{worst:>10.1f}"
    yield f"{'largest worker, MB':<45}{outcome.most_bytes / 1e6:>10.0f}"
    yield f"{'seconds':<45}{outcome.seconds:>10.0f}"
    for kind, examples in outcome.verdict.violations.items():
        yield f"BROKEN: {kind}"
        yield from (f"    {example}" for example in examples)
