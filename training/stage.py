"""A stage: one step of training, done once for the same inputs and parameters, resumed when killed.

A stage reads what the stage before it wrote and writes into a directory of its own:

    .stage        whose directory it is; locked while a run is at work there
    stage.json    what it was made of and what came out; written last, so it says "done"
    parts/        what a killed run had finished; gone when the stage is done
    ...           its results

Run again with the same parameters and the same inputs it does nothing; with others it starts anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from classifier.artifact import file_hash
from classifier.whole_file import appearing
from training import processes

RECORD = "stage.json"
MARK = ".stage"
PARTS = "parts"
HALVES = (".*.part", ".staging-*", ".checkpoint-*")
"""What is being written: files, directories, checkpoints; each gets its name when it is whole."""


class StageError(Exception):
    """A stage cannot run on what it was given. The message is one line."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """stage.json."""

    stage: str
    fingerprint: str  # hash of the parameters and the inputs
    parameters: dict[str, Any]
    inputs: dict[str, str]  # name -> hash of its content
    files: dict[str, str]  # results: name -> SHA-256
    summary: dict[str, Any]
    seconds: float  # of the run that finished it


class Stage:
    """One run of a stage in its directory.

    `parameters` is None where it has none. `inputs` names what the stage reads, each by a hash of
    its content. `version` is raised when the stage's code would make something else of the same
    inputs.
    """

    def __init__(
        self,
        name: str,
        out: Path,
        parameters: BaseModel | None,
        inputs: Mapping[str, str],
        *,
        version: int = 1,
    ) -> None:
        self.name = name
        self.out = out
        self.parameters = {} if parameters is None else parameters.model_dump(mode="json")
        self.inputs = dict(sorted(inputs.items()))
        # Not sorted: the order of a mapping, as of a recipe's fields, may mean something.
        encoded = msgspec.json.encode([name, version, self.parameters, self.inputs])
        self.fingerprint = hashlib.sha256(encoded).hexdigest()
        self._started = time.monotonic()
        self._release: Callable[[], object] = lambda: None
        try:
            out.mkdir(parents=True, exist_ok=True)
            if processes.leads():  # to the others it looks half made when they come
                self._check_own()
        except OSError as error:
            raise StageError(f"{out}: cannot be made or read: {error.strerror}") from error

    def done(self) -> Record | None:
        """What an earlier run with the same inputs left, if all of it is still there."""
        record = read_record(self.out)
        if record is None or record.fingerprint != self.fingerprint:
            return None
        for name, digest in record.files.items():
            if not (self.out / name).is_file() or file_hash(self.out / name) != digest:
                return None
        return record

    def begin(self) -> Path:
        """The directory for parts, with those that a killed run of the same stage finished.

        Parts of other inputs are removed, and so are the record that says "done" and what a killed
        run was writing. Until `finish`, or until the stage is forgotten, no other run can begin in
        this directory. Of several processes of one run the first does that, and the others wait.
        Raises StageError.
        """
        if not processes.leads():
            processes.wait()
            return self._own_parts()
        try:
            self._take()
            (self.out / RECORD).unlink(missing_ok=True)
            own = self._own_parts()
            own.mkdir(parents=True, exist_ok=True)
            halves = [p for kind in HALVES for p in self.out.glob(kind)]
            for other in (*halves, *(part for part in own.parent.iterdir() if part != own)):
                if other.is_dir() and not other.is_symlink():
                    shutil.rmtree(other)
                else:
                    other.unlink()
        except OSError as error:
            raise StageError(f"{self.out}: cannot be written: {error.strerror}") from error
        processes.wait()
        return own

    def finish(self, summary: Mapping[str, Any], results: Mapping[str, Path]) -> Record:
        """Says that the stage is done, with the files that are its results, by name in `out`."""
        record = Record(
            stage=self.name,
            fingerprint=self.fingerprint,
            parameters=self.parameters,
            inputs=self.inputs,
            files={name: file_hash(path) for name, path in sorted(results.items())},
            summary=dict(summary),
            seconds=round(time.monotonic() - self._started, 1),
        )
        if not processes.leads():
            return record
        write_json(self.out / RECORD, record)
        shutil.rmtree(self.out / PARTS, ignore_errors=True)
        self._release()
        return record

    def _own_parts(self) -> Path:
        return self.out / PARTS / self.fingerprint[:16]

    def _check_own(self) -> None:
        """Raises StageError where the directory holds what this stage has not made."""
        mark = self.out / MARK
        if mark.exists():
            owner = mark.read_text(encoding="utf-8").strip()
            if owner and owner != self.name:
                raise StageError(f"{self.out}: is the stage {owner}'s; choose another directory")
            return
        record = read_record(self.out)
        if (record is None or record.stage != self.name) and any(self.out.iterdir()):
            raise StageError(
                f"{self.out}: holds files that are not the stage {self.name}'s; choose a new"
                " directory"
            )

    def _take(self) -> None:
        descriptor = os.open(self.out / MARK, os.O_RDWR | os.O_CREAT, 0o644)
        # Given back by `finish`, or when the stage is forgotten or its process ends, however.
        release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            release()
            raise StageError(f"{self.out}: another run is at work there") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{self.name}\n".encode())
        self._release = release


def claim(name: str, out: Path) -> None:
    """Makes `out` the stage's directory before it begins, so that it may hold what it will read.

    Raises StageError when it is another's.
    """
    Stage(name, out, None, {})
    try:
        with (out / MARK).open("a+", encoding="utf-8") as mark:
            mark.seek(0)
            if not mark.read():
                mark.write(f"{name}\n")
    except OSError as error:
        raise StageError(f"{out}: cannot be written: {error.strerror}") from error


def read_record(out: Path) -> Record | None:
    """The record of the finished stage in `out`; None where there is none that can be read."""
    try:
        return msgspec.json.decode((out / RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_json(path: Path, value: object) -> None:
    """`value` as JSON for people too, sorted, whole or not at all. Raises FileError."""
    encoded = msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1)
    with appearing(path) as file:
        file.write(encoded + b"\n")


def hash_inputs(paths: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of each file.

    Raises StageError when one cannot be read, or lies in the directory of a stage that has not
    finished: it may be another run's.
    """
    hashes = {}
    for name, path in paths.items():
        if (path.parent / MARK).exists() and not (path.parent / RECORD).exists():
            raise StageError(f"{path}: the stage that makes it has not finished; run it again")
        try:
            hashes[name] = file_hash(path)
        except OSError as error:
            raise StageError(f"{path}: cannot be read: {error.strerror}") from error
    return hashes
