"""The run directory: the workers' socket and the metrics of one service, while it runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOCKET: Final = "supervisor.sock"

_LOCK: Final = "lock"
_PREFIX: Final = "classifier-run-"
# A Unix socket's path has room for 107 bytes on Linux and 103 on macOS.
_MOST_PATH: Final = 100


@contextmanager
def run_directory() -> Iterator[Path]:
    """Make a directory that only this user can enter, and remove it at the end.

    What services left behind that were killed is removed, too: each holds a lock on its directory,
    which ends with its process, however that ends. Raises OSError where none can be made.
    """
    parent = Path(tempfile.gettempdir())
    if len(str(parent / _PREFIX)) + len("12345678/") + len(SOCKET) > _MOST_PATH:
        parent = Path("/tmp")  # noqa: S108 - short; the directory in it is private
    _sweep(parent)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        # Locked before it has its name: whoever finds it under that name finds it locked.
        with (directory / f"{_LOCK}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (directory / f"{_LOCK}.new").rename(directory / _LOCK)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            # One without a lock is being made at this moment.
            with (directory / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
