"""A file appears under its name when it is complete, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from classifier.jsonl import FileError
from classifier.whole_file import appearing


def test_file_has_its_name_only_when_the_block_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    with appearing(target) as file:
        file.write(b"1")
        assert not target.exists()
    assert target.read_bytes() == b"1"


def test_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    target.write_bytes(b"before")

    def fail() -> None:
        with appearing(target) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(FileError, match=r"cannot write .*: No such file"),
        appearing(tmp_path / "missing" / "a"),
    ):
        pass
