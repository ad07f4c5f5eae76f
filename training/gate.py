"""The gate: may this artefact take the champion's place, judged on the endpoint that serves it?

Candidate and champion answer the same test set through the same service, `classifier serve` over
Kafka and MongoDB; what they answered and what that took is held against the bounds of
pipeline.yaml. The stage is done when there is a verdict, whichever.

verdict.json    every check: a training.verdict.Verdict
verdict.html    the same for people
candidate/, champion/    their answers, unless they were given: see training.endpoint
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from classifier.artifact import Artifact, file_hash, resolve
from classifier.demo.service import EndedError
from classifier.exit_codes import BAD_MODEL
from compile.prices import PRICES, PriceError, load_prices
from training import checks, endpoint, stage, throughput, verdict
from training.bootstrap import Bootstrap
from training.checks import Contender
from training.judgement import successors
from training.parameters import EvaluateParameters, GateParameters
from training.predictions import read
from training.stage import Stage, StageError
from training.taxonomy import Taxonomy
from training.taxonomy import load as load_taxonomy
from training.throughput import Throughput
from training.verdict import Check, Verdict

VERSION = 2

CONDITIONS = ("service", "alternatives")
"""Of the endpoint stage's inputs, besides model and offers: under which it was asked."""


class Answered(NamedTuple):
    """An artefact and what the endpoint stage kept of it."""

    artifact: Artifact
    directory: Path
    record: stage.Record

    def throughput(self) -> Throughput | None:
        """What was measured, where anything was asked in the run that finished."""
        if throughput.FILE not in self.record.files:
            return None
        return throughput.read(self.directory / throughput.FILE)


def make(
    parameters: GateParameters,
    evaluation: EvaluateParameters,
    candidate: Path,
    champion: Path | None,
    offers: Path,
    taxonomy: Path,
    out: Path,
    console: Console,
    *,
    answers: Path | None = None,
    champion_answers: Path | None = None,
) -> stage.Record:
    """Judge the artefact `candidate`, against `champion` where there is one, on the set `offers`.

    `answers` and `champion_answers` are what the endpoint stage made of each; where they are not
    given, the set is sent through the service. `taxonomy` is the current edition. `evaluation` says
    how intervals are drawn.

    Raises StageError, ArtifactError, DemoError when nothing can be said of the candidate: something
    that is not the candidate's fault is in the way.
    """
    if out.exists():
        stage.claim(verdict.STAGE, out)
        verdict.withdraw(out)
    own = Artifact.load(resolve(candidate))
    other = None if champion is None else Artifact.load(resolve(champion))
    files = {"offers": offers, "taxonomy": taxonomy, "prices": PRICES}
    for name, directory in (("answers", answers), ("champion answers", champion_answers)):
        if directory is not None:
            files[name] = directory / endpoint.ANSWERS
            if (directory / throughput.FILE).exists():
                files[f"{name} throughput"] = directory / throughput.FILE
    inputs = stage.hash_inputs(files) | {
        "model": own.manifest.id,
        "champion": "" if other is None else other.manifest.id,
        "bootstrap": f"{evaluation.resamples}, {evaluation.confidence}, {evaluation.seed}",
        **endpoint.conditions(),
    }
    run = Stage(verdict.STAGE, out, parameters, inputs, version=VERSION)
    verdict.give_back(out)
    if record := run.done():
        return record
    verdict.withdraw(out)
    run.begin()
    known = load_taxonomy(taxonomy)
    against = None
    if other is not None:
        # First the one whose faults would be nobody's: then the candidate is not asked in vain.
        against = _answered(other, offers, champion_answers, out / "champion", console)
    found = list(checks.of_artifact(own, known))
    judged: Verdict | None = None
    try:
        answered = _answered(own, offers, answers, out / "candidate", console)
    except EndedError as error:
        if error.code != BAD_MODEL:
            raise
        found.append(Check(name="served", passed=False, says=str(error)))
        judged = _verdict(found, own, other, offers, known, parameters)
    if judged is None:
        judged = judge(answered, against, offers, known, parameters, evaluation, found)
    files = verdict.write(out, judged)
    summary = {
        "model": own.manifest.id,
        "champion": None if other is None else other.manifest.id,
        "passed": judged.passed,
        "refused_for": [each.name for each in judged.checks if not each.passed],
    }
    return run.finish(summary, files)


def judge(
    own: Answered,
    champion: Answered | None,
    offers: Path,
    taxonomy: Taxonomy,
    parameters: GateParameters,
    evaluation: EvaluateParameters,
    found: list[Check] | None = None,
) -> Verdict:
    """The verdict on answers that are there. `found` are checks of the artefact that were made.

    Raises StageError when the champion's answers cannot be read.
    """
    found = list(checks.of_artifact(own.artifact, taxonomy)) if found is None else found
    other = None if champion is None else champion.artifact
    same = list(_same_questions(own, champion, offers))
    found += same
    speeds = _throughput(own, champion)
    if not all(each.passed for each in same):
        # Figures of other questions say nothing of these models.
        return _verdict(found, own.artifact, other, offers, taxonomy, parameters, speeds)
    became = successors(taxonomy)
    paths = {"": own.directory / endpoint.ANSWERS}
    try:
        alone = read(paths, became)
    except StageError as error:
        found.append(Check(name="answers", passed=False, says=str(error)))
        return _verdict(found, own.artifact, other, offers, taxonomy, parameters, speeds)
    theirs = None
    if champion is not None:
        paths["champion"] = champion.directory / endpoint.ANSWERS
        alone = read(paths, became)
        theirs = Contender(champion.artifact, alone["champion"], champion.throughput())
    mine = Contender(own.artifact, alone[""], own.throughput())
    how = Bootstrap(evaluation.resamples, evaluation.confidence, evaluation.seed)
    found += checks.of_answers(
        mine.predictions, None if theirs is None else theirs.predictions, parameters, how
    )
    try:
        found += checks.of_throughput(mine, theirs, parameters, load_prices())
    except PriceError as error:
        raise StageError(str(error)) from error
    test_set = verdict.TestSet(
        sha256=file_hash(offers),
        questions=mine.predictions.test_set(),
        offers=len(mine.predictions),
    )
    return _verdict(found, own.artifact, other, offers, taxonomy, parameters, speeds, test_set)


def headline(judged: Verdict) -> list[str]:
    """The verdict in a few lines: how it ended, and why."""
    name = judged.artifact.id
    against = "absolute bounds alone: there is no champion yet"
    if judged.champion is not None:
        against = f"champion {judged.champion.id}"
    if judged.passed:
        return [f"passed: {name}, {len(judged.checks)} checks, {against}"]
    return [
        f"refused: {name}, {len(judged.reasons)} of {len(judged.checks)} checks, {against}",
        *(f"refused: {reason}" for reason in judged.reasons),
    ]


def answered(artifact: Artifact, directory: Path) -> Answered:
    """What the endpoint stage made in `directory`. Raises StageError when it is not whole."""
    record = stage.read_record(directory)
    if record is None or record.stage != "endpoint":
        raise StageError(f"{directory}: holds no answers of `training endpoint`")
    for name, digest in record.files.items():
        file = directory / name
        if not file.is_file() or file_hash(file) != digest:
            raise StageError(f"{file}: is not what `training endpoint` wrote there; run it again")
    return Answered(artifact, directory, record)


def _answered(
    artifact: Artifact, offers: Path, given: Path | None, own: Path, console: Console
) -> Answered:
    if given is not None:
        return answered(artifact, given)
    endpoint.answer(artifact.path, offers, own, console)
    return answered(artifact, own)


def _same_questions(own: Answered, champion: Answered | None, offers: Path) -> Iterator[Check]:
    """Whether each answered for itself, and both the very same test set under equal conditions."""
    asked = file_hash(offers)
    for who, each in (("it", own), ("the champion", champion)):
        if each is None:
            continue
        inputs = each.record.inputs
        if inputs.get("model") != each.artifact.manifest.id:
            yield Check(
                name="answers",
                passed=False,
                says=f"{each.directory} has answers of artefact {inputs.get('model')}, not of"
                f" {each.artifact.manifest.id}",
            )
        if inputs.get("offers") != asked:
            yield Check(
                name="same test set",
                passed=False,
                says=f"{who} was asked another test set ({str(inputs.get('offers'))[:12]}) than"
                f" the one to judge on ({asked[:12]})",
            )
    if champion is not None:
        differing = [
            name
            for name in CONDITIONS
            if own.record.inputs.get(name) != champion.record.inputs.get(name)
        ]
        yield Check(
            name="same service",
            passed=not differing,
            says="both were asked by the same version of the service with the same settings"
            if not differing
            else f"the champion was asked under another {' and another '.join(differing)}; answer"
            " the test set anew",
        )


def _throughput(own: Answered, champion: Answered | None) -> dict[str, Throughput]:
    found = {"candidate": own.throughput()}
    if champion is not None:
        found["champion"] = champion.throughput()
    return {name: each for name, each in found.items() if each is not None}


def _verdict(
    found: list[Check],
    own: Artifact,
    champion: Artifact | None,
    offers: Path,
    taxonomy: Taxonomy,
    parameters: GateParameters,
    speeds: dict[str, Throughput] | None = None,
    test_set: verdict.TestSet | None = None,
) -> Verdict:
    return Verdict(
        passed=all(each.passed for each in found),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        artifact=verdict.judged(own),
        champion=None if champion is None else verdict.judged(champion),
        test_set=test_set or verdict.TestSet(sha256=file_hash(offers), questions=None, offers=None),
        taxonomy=taxonomy.version,
        parameters=parameters.model_dump(mode="json"),
        throughput=speeds or {},
        checks=found,
    )
