"""Nesting is what a decoder would find, and no bytes take long."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier.nesting import is_deeper

TEXTS = st.text(st.sampled_from('[]{}"\\a:,'))
JSON = st.recursive(
    TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(JSON)
def test_depth_is_that_of_what_is_decoded(value: Any) -> None:
    encoded, levels = msgspec.json.encode(value), depth(value)
    assert not is_deeper(encoded, levels)
    assert levels == 0 or is_deeper(encoded, levels - 1)


@given(st.binary())
def test_no_bytes_raise(value: bytes) -> None:
    assert not is_deeper(value, len(value))


@pytest.mark.parametrize("part", [b'"', b'\\"', b'"\\', b'["', b'[\\"', b'"[', b'"]"['])
@pytest.mark.parametrize("head", [b"", b'"'])
def test_a_megabyte_of_anything_is_looked_through_in_time(head: bytes, part: bytes) -> None:
    started = time.process_time()
    is_deeper(b"[" * 80 + head + part * (1_000_000 // len(part)), 64)
    assert time.process_time() - started < 1
