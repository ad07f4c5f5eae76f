"""What the stages' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compile.verify import one_thread


@pytest.fixture(scope="module")
def on_one_thread() -> Iterator[None]:
    """PyTorch, and every stage, on one thread: for so little work that is fastest."""
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr("classifier.cpu.quota", lambda: 1)
        yield
