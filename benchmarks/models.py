"""The models under measurement: the demonstration's, and one of the size that serves."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from classifier.demo.training import model

KEPT = Path("models")


@cache
def demonstration() -> Path:
    """The folder of the demonstration model, trained first when there is none."""
    return model(None, KEPT, lambda line: print(line, file=sys.stderr)).path
