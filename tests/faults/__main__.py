"""The fault campaign: `make faults`."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from classifier.settings import Settings
from tests.faults import plan, table
from tests.faults.campaign import Campaign, Outcome
from training.tiny import tiny_artifact


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Holds the promises under faults."
    )
    parser.add_argument("--seed", type=int, default=None, help="of plan and offers; drawn if none")
    parser.add_argument("--faults", type=_count, default=24)
    parser.add_argument("--offers", type=_count, default=40_000)
    parser.add_argument("--machines", type=_count, default=2)
    parser.add_argument("--plan", type=Path, help="a plan that an earlier campaign saved")
    parser.add_argument("--directory", type=Path, help="for plan, ledger, trace and logs")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def main(arguments: list[str] | None = None) -> int:
    """0: every promise held. 1: one did not. 2: a wrong argument. 130: Ctrl-C."""
    given = parser().parse_args(arguments)
    if given.plan:
        try:
            chosen = plan.Plan.load(given.plan)
        except (OSError, ValueError) as error:
            print(f"no plan: {error}", file=sys.stderr)
            return 2
    else:
        seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
        chosen = plan.make(seed, given.faults, given.offers, given.machines)
    for name in Settings.model_fields:
        os.environ.pop(name.upper(), None)
    os.environ["HF_HUB_OFFLINE"] = "1"
    directory = given.directory or Path(tempfile.mkdtemp(prefix="faults-"))
    directory.mkdir(parents=True, exist_ok=True)
    chosen.save(directory / "plan.json")
    print(
        f"seed {chosen.seed}: {chosen.faults} faults, {chosen.offers} offers; {directory}",
        flush=True,
    )
    artifact = tiny_artifact(directory)
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {line}", flush=True)

    async def run() -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        # Cleaned up as after Ctrl-C.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await Campaign(chosen, artifact, directory, say).run()

    try:
        outcome = asyncio.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return 130
    print()
    print("\n".join(table.lines(outcome)))
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
