from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from classifier import jsonl
from classifier.jsonl import FileError


def write(path: Path, content: bytes, *, packed: bool = False) -> Path:
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_lines_come_without_their_ends_and_blank_ones_not_at_all(
    tmp_path: Path, packed: bool
) -> None:
    source = write(tmp_path / "offers", b'{"a": 1}\r\n\n \t\n  {"b": 2} \nlast', packed=packed)
    assert list(jsonl.read(source)) == [b'{"a": 1}', b'{"b": 2}', b"last"]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert list(jsonl.read(write(tmp_path / "empty", b""))) == []


def test_a_name_says_nothing_about_gzip(tmp_path: Path) -> None:
    assert list(jsonl.read(write(tmp_path / "plain.gz", b"a\nb\n"))) == [b"a", b"b"]
    assert list(jsonl.read(write(tmp_path / "packed.jsonl", b"a\nb\n", packed=True))) == [
        b"a",
        b"b",
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_beyond_the_bound_is_cut_and_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(jsonl, "LINE_BYTES", 8)
    content = b"x" * 30 + b"\nnext\n" + b"y" * 7 + b"\n" + b"z" * 8 + b"\nend"
    source = write(tmp_path / "offers", content, packed=packed)
    assert list(jsonl.read(source)) == [b"x" * 8, b"next", b"y" * 7, b"z" * 8, b"end"]


def test_what_was_read_grows_to_the_size_of_the_file(tmp_path: Path) -> None:
    source = write(tmp_path / "offers", b"".join(b"%d\n" % n for n in range(50_000)))
    heard: list[int] = []
    assert sum(1 for _ in jsonl.read(source, heard.append)) == 50_000
    assert heard == sorted(heard)
    assert len(set(heard)) > 10
    assert heard[-1] == source.stat().st_size


@pytest.mark.parametrize("lost", [1, 8, 60])
def test_gzip_that_is_cut_short_is_one_line(tmp_path: Path, lost: int) -> None:
    whole = gzip.compress(b"".join(b"%d\n" % (n * n) for n in range(1_000)))
    source = tmp_path / "offers.jsonl.gz"
    source.write_bytes(whole[:-lost])
    with pytest.raises(FileError, match=r"offers\.jsonl\.gz is damaged gzip, or cut short$"):
        list(jsonl.read(source))


@pytest.mark.parametrize(
    ("name", "why"), [("nowhere.jsonl", "No such file"), ("", "Is a directory")]
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str, why: str) -> None:
    source = tmp_path / name
    with pytest.raises(FileError, match=f"cannot read {source}: {why}"):
        list(jsonl.read(source))


@given(st.lists(st.binary(min_size=1).filter(lambda line: line.strip(b"\r\n \t") == line)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_packed_is_read_again(tmp_path: Path, lines: list[bytes]) -> None:
    lines = [line for line in lines if b"\n" not in line]
    file = io.BytesIO()
    with jsonl.packer(file) as out:
        out.write(b"\n".join(lines))
    source = tmp_path / "offers"
    source.write_bytes(file.getvalue())
    assert list(jsonl.read(source)) == lines


def test_equal_rows_make_equal_files() -> None:
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        with jsonl.packer(file) as out:
            out.write(b'{"offer_id": "a"}\n')
        assert not file.closed
    assert files[0].getvalue() == files[1].getvalue()
    assert files[0].getvalue()[4:8] == bytes(4)  # no time of making
