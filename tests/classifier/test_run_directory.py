"""A service's directory is private, goes with it, and outlives no kill for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from classifier.run_directory import SOCKET, run_directory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short directory for temporary files: a socket's path has little room."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        monkeypatch.setenv("TMPDIR", directory)
        yield Path(directory)


def killed() -> Path:
    """The directory of a service that was killed."""
    program = (
        "import os, signal\n"
        "from classifier.run_directory import run_directory\n"
        "with run_directory() as directory:\n"
        "    (directory / 'counter_0.db').touch()\n"
        "    print(directory, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL
    return Path(done.stdout.strip())


def test_it_is_private_and_gone_at_the_end(temporary: Path) -> None:
    with run_directory() as directory:
        assert directory.parent == temporary
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / "counter_0.db").touch()
    assert list(temporary.iterdir()) == []


def test_it_is_gone_after_a_fault_too(temporary: Path) -> None:
    with pytest.raises(ZeroDivisionError), run_directory():
        raise ZeroDivisionError
    assert list(temporary.iterdir()) == []


def test_what_a_killed_service_left_is_removed_by_the_next(temporary: Path) -> None:
    left = killed()
    assert left.exists()
    with run_directory() as directory:
        assert list(temporary.iterdir()) == [directory]


def test_services_beside_it_keep_theirs(temporary: Path) -> None:
    with run_directory() as first, run_directory() as second, run_directory() as third:
        assert sorted(temporary.iterdir()) == sorted([first, second, third])


def test_what_is_not_a_services_is_left_alone(temporary: Path) -> None:
    (temporary / "classifier-run-new").mkdir()
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (temporary / "classifier-run-link").symlink_to(elsewhere)
    with run_directory():
        pass
    assert sorted(path.name for path in temporary.iterdir()) == [
        "classifier-run-link",
        "classifier-run-new",
        "elsewhere",
    ]
    assert (elsewhere / "lock").exists()


def test_a_long_path_for_temporary_files_leaves_the_socket_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with run_directory() as directory:
        assert len(os.fsencode(directory / SOCKET)) <= 100
