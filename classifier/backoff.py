"""Backoff: how long a worker that ended stays away."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from `first` to `most`, and start over after `steady` seconds of life."""

    def __init__(self, first: float, most: float, steady: float):
        self._first, self._most, self._steady = first, most, steady
        self._next = first

    def after(self, lived: float) -> float:
        """Give the seconds to wait after a worker that lived for so many."""
        if lived >= self._steady:
            self._next = self._first
        # Workers that died together do not come back together: each return is a rebalance.
        wait = self._next * random.uniform(1, 1.25)
        self._next = min(self._next * 2, self._most)
        return wait
