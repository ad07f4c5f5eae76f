"""The verdict: what the gate said of one artefact, and whether promotion may take it.

verdict.json holds every check with its figure, its bound and its reason, and names by their hashes
what was judged, against what, on what. verdict.html says the same to people.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, StrictUndefined

from classifier.artifact import MANIFEST, Artifact, ArtifactError, file_hash
from classifier.whole_file import appearing
from training.stage import StageError, read_record, write_json
from training.throughput import Throughput

FORMAT = 1
STAGE = "gate"
VERDICT = "verdict.json"
PAGE = "verdict.html"
TEMPLATE = Path(__file__).with_name("verdict.html")


class RefusedError(Exception):
    """An artefact must not be served. The message is one line: why."""


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    passed: bool
    says: str  # one sentence, with what was found and what is asked
    figure: float | None = None
    champion: float | None = None  # the same of the champion
    bound: float | None = None  # what `figure`, or its distance to the champion's, may be
    p_value: float | None = None  # adjusted where there are several such checks


class Judged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An artefact, and which bytes it was."""

    id: str
    manifest_sha256: str  # the manifest has the hash of every other file
    checkpoint: str
    kind: str
    target: str
    precision: str
    taxonomy: str


class TestSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was asked."""

    sha256: str  # of the file
    questions: str | None  # see Predictions.test_set; None where there were no answers to read
    offers: int | None


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """verdict.json."""

    format: int = FORMAT
    passed: bool
    at: str  # ISO 8601, UTC
    artifact: Judged
    champion: Judged | None  # None: nothing is served yet, so that absolute bounds alone were asked
    test_set: TestSet
    taxonomy: str  # version of the one that is current
    parameters: dict[str, Any]  # the bounds
    throughput: dict[str, Throughput]  # of the candidate and of the champion
    checks: list[Check]
    sha256: str = ""  # of all the rest: a verdict that was edited is none

    @property
    def reasons(self) -> list[str]:
        """Why it was refused, one line each."""
        return [f"{each.name}: {each.says}" for each in self.checks if not each.passed]


def judged(artifact: Artifact) -> Judged:
    """What a verdict says of an artefact that was loaded."""
    manifest = artifact.manifest
    return Judged(
        id=manifest.id,
        manifest_sha256=file_hash(artifact.path / MANIFEST),
        checkpoint=manifest.checkpoint,
        kind=manifest.kind,
        target=manifest.target,
        precision=manifest.precision,
        taxonomy=manifest.taxonomy,
    )


def write(out: Path, verdict: Verdict) -> dict[str, Path]:
    """Writes verdict.json and verdict.html into `out`; gives them by name. Raises FileError."""
    # As a reader gets it: 5 comes back as 5.0.
    verdict = msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict)
    files = {VERDICT: out / VERDICT, PAGE: out / PAGE}
    write_json(files[VERDICT], msgspec.structs.replace(verdict, sha256=_hash(verdict)))
    page = render(verdict)
    with appearing(files[PAGE]) as file:
        file.write(page.encode())
    return files


def read(path: Path) -> Verdict:
    """Reads verdict.json. Raises StageError when it is none, or was edited."""
    try:
        verdict = msgspec.json.decode(path.read_bytes(), type=Verdict)
    except OSError as error:
        raise StageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StageError(f"{path}: is no verdict: {error}") from error
    if verdict.format != FORMAT:
        raise StageError(f"{path}: format {verdict.format}, but this version reads {FORMAT}")
    if verdict.sha256 != _hash(verdict):
        raise StageError(f"{path}: was changed since the gate wrote it; judge again")
    return verdict


def finished(directory: Path) -> Verdict:
    """The verdict of the gate's last run in `directory`.

    Raises StageError when that did not finish, or when the verdict there is not the one it wrote.
    """
    record = read_record(directory)
    file = directory / VERDICT
    if record is None or record.stage != STAGE or not file.is_file():
        raise StageError(f"{directory}: has no verdict of a gate that finished; judge again")
    found = read(file)
    if record.files.get(VERDICT) != file_hash(file):
        raise StageError(f"{file}: is another verdict than the gate's last run ended with")
    return found


def withdraw(out: Path) -> None:
    """Hides an earlier run's verdict, for `give_back` or until the stage begins anew.

    So a run that dies before it knows whether it would judge the same leaves none to be read.
    """
    for name in (VERDICT, PAGE):
        with contextlib.suppress(FileNotFoundError):
            (out / name).replace(_hidden(out, name))


def give_back(out: Path) -> None:
    """Shows what `withdraw` hid."""
    for name in (VERDICT, PAGE):
        with contextlib.suppress(FileNotFoundError):
            _hidden(out, name).replace(out / name)


def accepted(verdict: Verdict, path: Path, champion: str | None = None) -> Artifact:
    """The artefact in `path`, if it may be served by this verdict.

    `champion` is the id of the artefact that is served now, where there is one. Raises RefusedError
    when the gate refused it, judged another artefact or judged it against another champion, and
    when the artefact was changed since.
    """
    if not verdict.passed:
        raise RefusedError(f"artefact {verdict.artifact.id} was refused: {verdict.reasons[0]}")
    try:
        found = Artifact.load(path)
    except ArtifactError as error:
        raise RefusedError(f"not what was judged: {error}") from error
    if judged(found) != verdict.artifact:
        raise RefusedError(
            f"{path}: is artefact {found.manifest.id}, and the verdict is of {verdict.artifact.id}"
        )
    against = None if verdict.champion is None else verdict.champion.id
    if champion is not None and champion != against:
        raise RefusedError(
            f"artefact {found.manifest.id} was judged against"
            f" {against or 'no champion'}, and {champion} is served now; judge again"
        )
    return found


def render(verdict: Verdict) -> str:
    """The page: what was refused first."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        verdict=verdict,
        refused=[each for each in verdict.checks if not each.passed],
        passed=[each for each in verdict.checks if each.passed],
    )


def number(value: float | None) -> str:
    """To four digits, as far as they tell something."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _hidden(out: Path, name: str) -> Path:
    return out / f".{name}.part"  # of training.stage.HALVES: gone when the stage begins


def _hash(verdict: Verdict) -> str:
    rest = msgspec.structs.replace(verdict, sha256="")
    return hashlib.sha256(msgspec.json.encode(rest, order="sorted")).hexdigest()
