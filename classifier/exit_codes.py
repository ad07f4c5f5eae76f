"""What the process's exit code says, the same for every command and for a worker."""

from __future__ import annotations

from typing import Final

STOPPED: Final = 0
"""Stopped as asked, or done."""
FAULT: Final = 1
"""Something failed, or is missing; the log or standard error says what."""
BAD_SETTINGS: Final = 2
"""A setting, an argument or the address is wrong."""
BAD_MODEL: Final = 3
"""The model cannot be served."""
INTERRUPTED: Final = 130
"""Ctrl-C, as a shell says it."""
