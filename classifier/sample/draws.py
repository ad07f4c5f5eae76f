"""Random numbers: blocks of them, the same in every process and with every NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

WIDTH = 32
"""Numbers in a row. An offer takes one row, so no offer's numbers depend on its neighbours."""
_BLOCK = 1024


def rows(seed: int, stream: int) -> Iterator[list[int]]:
    """Endless rows of WIDTH uniform 32-bit integers.

    Raw PCG64 output, which NumPy promises to keep, and none of its distributions, which it may
    change. Raises ValueError when `seed` is negative.
    """
    if seed < 0:
        raise ValueError(f"the seed of the sample catalogue is {seed}; it must not be negative")
    bits = np.random.PCG64(np.random.SeedSequence([seed, stream]))
    while True:
        raw = bits.random_raw(_BLOCK * WIDTH // 2)
        yield from raw.astype("<u8").view("<u4").reshape(_BLOCK, WIDTH).tolist()
