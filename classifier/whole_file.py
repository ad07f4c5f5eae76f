"""Whole files: a file appears under its name when it is complete, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from classifier.jsonl import FileError


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[IO[bytes]]:
    """A file to write: it takes its name when the block ends well, and is gone if it does not.

    What had the name is replaced. Raises FileError when it cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}.", suffix=".part", delete=False
        ) as file:
            part = Path(file.name)
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                # As a plain open() would have made it; temporary files are their owner's alone.
                mask = os.umask(0)
                os.umask(mask)
                part.chmod(0o666 & ~mask)
                part.replace(target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
