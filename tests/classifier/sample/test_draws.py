"""Random numbers: the same from the same seed, others from another seed or stream."""

from __future__ import annotations

from itertools import islice

import pytest

from classifier.sample.draws import WIDTH, rows


def test_rows_follow_from_seed_and_stream() -> None:
    assert list(islice(rows(1, 0), 3000)) == list(islice(rows(1, 0), 3000))
    assert next(rows(1, 0)) != next(rows(2, 0))
    assert next(rows(1, 0)) != next(rows(1, 1))


def test_rows_hold_32_bit_integers() -> None:
    drawn = [number for row in islice(rows(0, 0), 500) for number in row]
    assert len(drawn) == 500 * WIDTH
    assert 0 <= min(drawn) < 2**21
    assert 2**32 - 2**21 < max(drawn) < 2**32
    assert len(set(drawn)) > len(drawn) - 5


def test_rows_do_not_repeat_where_blocks_meet() -> None:
    drawn = [tuple(row) for row in islice(rows(0, 0), 4000)]
    assert len(set(drawn)) == len(drawn)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed of the sample catalogue is -1"):
        next(rows(-1, 0))
