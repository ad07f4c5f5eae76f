"""One run in several processes, as torchrun and accelerate launch start them.

The first one leads: it alone writes and speaks. The others train along, find what it wrote on the
disk that they share, and wait for it where they must.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

from classifier import cpu, progress

PATIENCE = timedelta(days=2)
"""The others wait so long for the lead, who may have a teacher's embeddings to compute."""


class LeftError(Exception):
    """Another process of this run ended early. The message is one line."""


def count() -> int:
    """How many processes this run has."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def number() -> int:
    """Which one this is, counted from 0."""
    return int(os.environ.get("RANK", "0"))


def leads() -> bool:
    """Whether this process is the one that writes and speaks."""
    return number() == 0


def threads() -> int:
    """This process's share of the machine's CPU quota."""
    return max(1, cpu.quota() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def wait() -> None:
    """Until all processes have come so far. Raises LeftError when one of them does not."""
    if count() == 1:
        return
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]

    try:
        state = PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
        state.wait_for_everyone()
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise LeftError(f"another process of this run has ended early ({reason})") from error


@contextlib.contextmanager
def lead_first() -> Iterator[None]:
    """The lead does what follows, then the others, who find what it wrote. Raises LeftError."""
    if not leads():
        wait()
    yield
    if leads():
        wait()


def leave() -> None:
    """The end of this process's part, so that no connection is torn."""
    if count() == 1:
        return
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextlib.contextmanager
def bar(what: str) -> Iterator[progress.Show]:
    """The lead's progress bar; see classifier.progress."""
    if leads():
        with progress.bar(what) as show:
            yield show
    else:
        yield lambda share, rows, note: None
