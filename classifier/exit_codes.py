"""What the process's exit code says, the same for every command and for a worker."""

from __future__ import annotations

from typing import Final

STOPPED: Final = 0
"""Stopped as asked, or done."""
FAULT: Final = 1
"""Something failed, or is missing; the log or standard error says what."""
BAD_SETTINGS: Final = 2
"""A setting, an argument or the address is wrong, or a package is not installed."""
BAD_MODEL: Final = 3
"""The model cannot be served."""
NO_DEVICE: Final = 4
"""The model is for a device that is not here."""
DEVICE_TAKEN: Final = 5
"""The device, or the core of it that this worker is to use, belongs to another process."""
WRONG_RUNTIME: Final = 6
"""The device's runtime does not run what the model's compiler made."""
REFUSED: Final = 10
"""The gate judged the model, and refuses it; standard error and the verdict say why."""
INTERRUPTED: Final = 130
"""Ctrl-C, as a shell says it."""

NOT_MENDED: Final = frozenset({BAD_SETTINGS, BAD_MODEL, NO_DEVICE, DEVICE_TAKEN, WRONG_RUNTIME})
"""What a worker that never worked would end with again, however often it is started."""
