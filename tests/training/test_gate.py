"""The gate: what serves no worse passes, and every sabotage is refused with its own reason.

Champion, shuffled labels and the constant answer are artefacts that were trained and compiled, and
their answers are the production service's. What only lies in answers or in speeds is planted into
those.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
import yaml
from onnx import numpy_helper
from rich.console import Console
from typer.testing import CliRunner

from classifier import artifact as artifacts
from classifier import cpu, metrics
from classifier.artifact import Artifact, Description, Label
from classifier.demo.service import EndedError
from classifier.exit_codes import BAD_MODEL, REFUSED
from compile import checkpoint
from compile.build import build
from compile.checkpoint import Checkpoint
from compile.verify import golden_answers
from tests.training.lakes import LANGUAGES
from training import checks, endpoint, gate, stage, throughput, tracking, verdict
from training.cli import app
from training.gate import Answered
from training.parameters import EvaluateParameters, GateParameters
from training.stage import StageError
from training.taxonomy import Category, Taxonomy, first, save
from training.tiny import LABELS, tiny_checkpoint, tiny_offers
from training.verdict import RefusedError, Verdict, accepted

# The first of these tests also waits for what they share: models are made, and asked.
pytestmark = pytest.mark.timeout(600)

BOUNDS = GateParameters(
    least_offers=500,
    most_ece=0.2,
    least_offers_per_second=1.0,  # the machine that runs the tests may be slow
    throughput_share=0.3,
    memory_rise=3.0,
)
QUICK = EvaluateParameters(resamples=200)

Rows = list[dict[str, Any]]


def edition(labels: dict[str, dict[str, str]]) -> Taxonomy:
    return first(Category(label, names, None) for label, names in labels.items())


TAXONOMY = edition({label: dict(names) for label, names in LABELS.items()})


@dataclass(frozen=True)
class World:
    """What the tests judge; each `answered` by the service."""

    offers: Path
    taxonomy: Path
    champion: Answered
    candidate: Answered  # the champion's model, published anew
    shuffled: Answered
    constant: Answered


def built(
    original: Path,
    parent: Path,
    change: Callable[[Any], None] = lambda _: None,
    taxonomy: str = TAXONOMY.version,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """An artefact compiled of the checkpoint `original` after a change of its model or labels."""
    known = Checkpoint.load(original)
    model, tokeniser = known.encoder(), known.tokeniser()
    with torch.no_grad():
        change(model)
    labels = tuple(Label(renamed.get(each.id, each.id), each.names) for each in known.labels)
    texts = {question.text: question.language for question in known.golden}
    thresholds = known.description.thresholds
    description = msgspec.structs.replace(
        known.description,
        taxonomy=taxonomy,
        thresholds={renamed.get(label, label): least for label, least in thresholds.items()},
    )
    tokenizer = tokenizers.Tokenizer.from_file(str(original / "tokenizer.json"))
    golden = golden_answers(model, tokeniser, labels, texts)
    path = parent / "checkpoint"
    checkpoint.write(path, model, tokenizer, labels, golden, description)
    return build(path, "onnx-cpu", parent)


def constant(model: Any) -> None:
    """Lets it answer everything with one category."""
    model.head.bias[2] += 50.0


def resealed(
    original: Path, parent: Path, change: Callable[[Path], None] = lambda _: None, **described: Any
) -> Path:
    """The artefact with its files changed, published again as one that is whole."""
    staging = parent / "staging"
    shutil.copytree(original, staging)
    manifest = msgspec.to_builtins(Artifact.load(original).manifest)
    (staging / artifacts.MANIFEST).unlink()
    change(staging)
    known = {field: manifest[field] for field in Description.__struct_fields__}
    return artifacts.publish(staging, msgspec.convert(known | described, Description), parent)


@pytest.fixture(scope="module")
def world(
    kafka: str, mongodb: str, artifact: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    path = tmp_path_factory.mktemp("gate")
    trained = artifact.parent / "checkpoint"
    rng = np.random.default_rng(0)
    rows = [
        {
            **{key: value for key, value in msgspec.structs.asdict(offer).items() if value},
            "offer_id": f"o-{number:04d}",
            "label": label,
            "cluster": f"k-{number // 2}",
            "weight": round(float(rng.gamma(4.0)), 3),
        }
        for number, (offer, label) in enumerate(tiny_offers(seed=11, each=25))
    ]
    offers, taxonomy = path / "test.parquet", path / "taxonomy.json"
    pq.write_table(pa.Table.from_pylist(rows), offers)
    save(TAXONOMY, taxonomy)
    turned = dict(zip(LABELS, [*list(LABELS.values())[1:], LABELS["kettles"]], strict=True))
    wrongly = tiny_checkpoint(path / "wrongly", turned)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
        patch.setenv("MONGODB_URI", mongodb)

        def asked(name: str, model: Path) -> Answered:
            endpoint.answer(model, offers, path / name, Console(file=io.StringIO()))
            return gate.answered(Artifact.load(model), path / name)

        model, report = built(trained, path / "a"), path / "report"
        words = ["--out", report, "--endpoint", model, "--offers", offers]
        quick = ["--set", "evaluate.resamples=20", "--taxonomy", taxonomy]
        patch.setattr(tracking, "log", lambda *_: False)
        done = CliRunner().invoke(app, ["evaluate", *map(str, [*words, *quick])])
        assert done.exit_code == 0, done.output
        champion = gate.answered(Artifact.load(model), report / "endpoint")
        again = resealed(champion.artifact.path, path / "b", created_at="2030-01-01T00:00:00+00:00")
        yield World(
            offers,
            taxonomy,
            champion,
            candidate=planted(champion, path / "candidate", model=Artifact.load(again)),
            shuffled=asked("shuffled", built(wrongly.path, path / "c")),
            constant=asked("constant", built(trained, path / "d", constant)),
        )


def judge(
    world: World,
    own: Answered,
    champion: Answered | None,
    bounds: GateParameters = BOUNDS,
) -> Verdict:
    return gate.judge(own, champion, world.offers, TAXONOMY, bounds, QUICK)


def refused_for(found: Verdict) -> list[str]:
    assert found.passed == (not found.reasons)
    return [each.name for each in found.checks if not each.passed]


def says(found: Verdict, name: str) -> str:
    return next(each.says for each in found.checks if each.name == name)


def planted(
    answered: Answered,
    to: Path,
    rows: Callable[[Rows], None] = lambda _: None,
    speed: Callable[[dict[str, Any]], None] = lambda _: None,
    model: Artifact | None = None,
    **inputs: str,
) -> Answered:
    """Answers with something planted, in a directory as the endpoint stage leaves it."""
    shutil.copytree(answered.directory, to)
    file = to / endpoint.ANSWERS
    table = pq.read_table(file)
    found = table.to_pylist()
    model = model or answered.artifact
    for row in found:
        row["model"] = model.manifest.id
    rows(found)
    pq.write_table(pa.Table.from_pylist(found, schema=table.schema), file)
    measured = json.loads((to / throughput.FILE).read_bytes())
    speed(measured)
    (to / throughput.FILE).write_text(json.dumps(measured))
    record = msgspec.structs.replace(
        answered.record,
        inputs=answered.record.inputs | {"model": model.manifest.id} | inputs,
        files={name: artifacts.file_hash(to / name) for name in answered.record.files},
    )
    stage.write_json(to / stage.RECORD, record)
    return gate.answered(model, to)


def wrong(row: dict[str, Any]) -> None:
    """Another answer than the label, as sure as the right one would be."""
    row["category_id"] = "sofas" if row["label"] != "sofas" else "tents"


def right(rows: Rows) -> None:
    for row in rows:
        row["category_id"] = row["label"]


def test_artefact_that_is_as_good_passes_and_its_verdict_says_what_was_judged(
    world: World,
) -> None:
    found = judge(world, world.candidate, world.champion)
    assert refused_for(found) == []
    own, other = world.candidate.artifact.manifest, world.champion.artifact.manifest
    assert (found.artifact.id, found.champion and found.champion.id) == (own.id, other.id)
    assert found.test_set.sha256 == artifacts.file_hash(world.offers)
    assert found.test_set.offers == 1_000
    assert found.taxonomy == TAXONOMY.version
    assert found.parameters == BOUNDS.model_dump(mode="json")
    names = [each.name for each in found.checks]
    assert len(set(names)) == len(names)
    assert set(names) == {
        "verified parity", "taxonomy", "label map", "same service", "test set", "answered",
        "spread", "least accuracy", "accuracy", "accuracy in production", "categories",
        "calibration", "uncertain", "precision when certain", "throughput", "cost", "memory",
        "throughput beside the champion", "memory beside the champion",
        *(f"language {language}" for language in LANGUAGES),
    }  # fmt: skip
    accuracy = next(each for each in found.checks if each.name == "accuracy")
    answers = pq.read_table(world.candidate.directory / endpoint.ANSWERS).to_pylist()
    assert accuracy.figure == pytest.approx(
        sum(row["category_id"] == row["label"] for row in answers) / 1_000
    )


def test_shuffled_labels_are_refused(world: World) -> None:
    found = judge(world, world.shuffled, world.champion)
    # It was trained so: only answers tell.
    assert {each.name for each in found.checks if each.passed} >= {"verified parity", "label map"}
    assert set(refused_for(found)) >= {
        "accuracy", "accuracy in production", "least accuracy",
        *(f"category {label}" for label in LABELS), *(f"language {each}" for each in LANGUAGES),
    }  # fmt: skip


def test_constant_answer_is_refused(world: World) -> None:
    for champion in (world.champion, None):
        found = judge(world, world.constant, champion)
        assert "spread" in refused_for(found)
        assert "100.0% of the answers and 12.5% of the labels" in says(found, "spread")


def test_nan_in_the_model_is_refused_by_the_service_and_so_by_the_gate(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka: str, mongodb: str
) -> None:
    def spoil(staging: Path) -> None:
        model = onnx.load(staging / "model.onnx")
        for tensor in model.graph.initializer:
            if list(tensor.dims) == [len(LABELS)]:
                values = np.full(len(LABELS), np.nan, np.float32)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        onnx.save(model, staging / "model.onnx")

    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
    monkeypatch.setenv("MONGODB_URI", mongodb)
    spoilt = resealed(world.champion.artifact.path, tmp_path / "models", spoil)
    record = gate.make(
        BOUNDS, QUICK, spoilt, None, world.offers, world.taxonomy, tmp_path / "out",
        Console(file=io.StringIO()),
    )  # fmt: skip
    found = verdict.read(tmp_path / "out" / verdict.VERDICT)
    assert refused_for(found) == ["verified parity", "served"]
    assert "a logit is not finite" in says(found, "served")
    assert "another model.onnx" in says(found, "verified parity")
    assert record.summary["passed"] is False


def test_offers_that_the_model_could_not_answer_are_refused(world: World, tmp_path: Path) -> None:
    def unanswered(rows: Rows) -> None:
        for row in rows[:2]:
            row.update(dict.fromkeys(("category_id", "score", "alternatives", "status", "model")))
        rows[0]["error"] = {"reason": "no answer from the model", "detail": "nan"}
        rows[1]["error"] = {"reason": "no text", "detail": "nothing"}  # the offer's own fault

    found = judge(world, planted(world.candidate, tmp_path / "x", unanswered), world.champion)
    assert refused_for(found) == ["answered"]
    assert says(found, "answered").startswith("1 offers got no answer from the model")


def test_score_that_is_no_number_is_refused(world: World, tmp_path: Path) -> None:
    def spoil(rows: Rows) -> None:
        rows[7]["score"] = float("nan")

    found = judge(world, planted(world.candidate, tmp_path / "x", spoil), world.champion)
    assert refused_for(found) == ["answers"]
    assert "row 8" in says(found, "answers")


def test_last_month_s_label_map_is_refused(world: World, tmp_path: Path) -> None:
    before = {label: dict(names) for label, names in LABELS.items() if label != "dog-food"}
    before["cat-food"] = dict(LABELS["dog-food"])
    trained = world.champion.artifact.path.parent / "checkpoint"
    renamed = {"dog-food": "cat-food"}
    old = built(trained, tmp_path / "old", taxonomy=edition(before).version, renamed=renamed)
    loaded = Artifact.load(old)
    found = judge(world, planted(world.candidate, tmp_path / "x", model=loaded), world.champion)
    assert refused_for(found) == ["taxonomy", "label map"]
    assert says(found, "taxonomy") == (
        f"its labels are of edition {edition(before).version}, and {TAXONOMY.version} is current"
    )
    assert says(found, "label map") == (
        f"lacks dog-food; has cat-food, not in edition {TAXONOMY.version}"
    )


def test_missing_category_is_refused(world: World, tmp_path: Path) -> None:
    def spoil(rows: Rows) -> None:
        for row in rows:
            if row["category_id"] == "tents":
                row["category_id"] = "sofas"

    bounds = BOUNDS.model_copy(update={"accuracy_fall": 0.5, "language_fall": 0.5})
    bounds = bounds.model_copy(update={"answer_excess": 0.5, "most_ece": 0.5, "ece_rise": 0.5})
    bounds = bounds.model_copy(update={"precision_fall": 0.5})
    found = judge(world, planted(world.candidate, tmp_path / "x", spoil), world.champion, bounds)
    assert refused_for(found) == ["category tents"]
    assert "of its 125 offers 0 are right" in says(found, "category tents")


@pytest.mark.parametrize(("speed", "refused"), [(0.6, True), (0.8, False)])
def test_candidate_that_is_40_percent_slower_is_refused(
    world: World, tmp_path: Path, speed: float, refused: bool
) -> None:
    def slower(measured: dict[str, Any]) -> None:
        measured["cpu_seconds"] /= speed
        measured["offers_per_cpu_second"] *= speed

    bounds = GateParameters(**BOUNDS.model_dump() | {"throughput_share": 0.75})
    own = planted(world.candidate, tmp_path / "x", speed=slower)
    found = judge(world, own, world.champion, bounds)
    assert refused_for(found) == (["throughput beside the champion"] if refused else [])
    if refused:
        assert "-40%; at least 75% of the champion's" in says(found, refused_for(found)[0])


def test_speeds_of_two_machines_are_not_compared(world: World, tmp_path: Path) -> None:
    def elsewhere(measured: dict[str, Any]) -> None:
        measured["machine"] = "another processor, 64 CPUs"

    other = planted(world.champion, tmp_path / "x", speed=elsewhere)
    found = judge(world, world.candidate, other)
    assert refused_for(found) == ["throughput beside the champion"]
    assert "was measured on another processor, 64 CPUs" in says(found, refused_for(found)[0])


@pytest.mark.parametrize("lacking", ["own", "champion"])
def test_where_one_has_no_processor_seconds_both_are_compared_by_the_clock(
    world: World, tmp_path: Path, lacking: str
) -> None:
    def by_the_clock(measured: dict[str, Any]) -> None:
        measured.update(offers_per_second=500.0, cpu_seconds=None, offers_per_cpu_second=None)

    def by_both(measured: dict[str, Any]) -> None:
        measured.update(offers_per_second=500.0, cpu_seconds=0.25, offers_per_cpu_second=4_000.0)

    own, other = (by_the_clock, by_both) if lacking == "own" else (by_both, by_the_clock)
    found = judge(
        world,
        planted(world.candidate, tmp_path / "own", speed=own),
        planted(world.champion, tmp_path / "other", speed=other),
    )
    assert refused_for(found) == []
    assert says(found, "throughput beside the champion").startswith(
        "500 offers a second, the champion 500: +0%"
    )


@pytest.mark.parametrize(("offers", "refused"), [(499, True), (500, False)])
def test_champion_s_speed_on_less_than_half_of_the_offers_is_none(
    world: World, tmp_path: Path, offers: int, refused: bool
) -> None:
    def rest(measured: dict[str, Any]) -> None:
        measured["offers"] = offers

    other = planted(world.champion, tmp_path / "x", speed=rest)
    found = judge(world, world.candidate, other)
    assert refused_for(found) == (["throughput beside the champion"] if refused else [])
    if refused:
        assert says(found, refused_for(found)[0]) == (
            "the champion's was measured on 499 of 1,000 offers only; answer the test set anew"
        )


def test_candidate_that_is_better_overall_and_ruins_one_language_is_refused(
    world: World, tmp_path: Path
) -> None:
    def mediocre(rows: Rows) -> None:
        right(rows)
        for row in rows[::8]:
            wrong(row)

    def ruined(rows: Rows) -> None:
        right(rows)
        italian = [row for row in rows if row["language"] == "it"]
        for row in italian[::3]:
            wrong(row)

    own = planted(world.candidate, tmp_path / "own", ruined)
    other = planted(world.champion, tmp_path / "other", mediocre)
    found = judge(world, own, other)
    accuracy = next(each for each in found.checks if each.name == "accuracy")
    assert accuracy.figure is not None
    assert accuracy.champion is not None
    assert accuracy.figure > accuracy.champion + 0.05
    assert refused_for(found) == ["language it"]


def test_fall_that_noise_explains_is_no_verdict(world: World, tmp_path: Path) -> None:
    """A fall of 1.2 points, in 30 offers one way and 18 the other: p = 0.11."""

    def but(every: list[int]) -> Callable[[Rows], None]:
        def spoil(rows: Rows) -> None:
            right(rows)
            for number in every:
                wrong(rows[number])

        return spoil

    own = planted(world.candidate, tmp_path / "own", but(list(range(0, 960, 32))))
    other = planted(world.champion, tmp_path / "other", but(list(range(5, 900, 50))))
    found = judge(world, own, other)
    assert refused_for(found) == []
    assert "-1.20%" in says(found, "accuracy")
    assert "p = 0.11, which noise explains" in says(found, "accuracy")
    # The same fall where the two agree on all the others is none of noise.
    found = judge(world, own, planted(world.champion, tmp_path / "third", right))
    assert "accuracy" in refused_for(found)


def test_scores_that_promise_too_much_and_doubt_that_grows_are_refused(
    world: World, tmp_path: Path
) -> None:
    def sure(rows: Rows) -> None:
        for row in rows:
            row["score"] = 0.5

    bounds = GateParameters(**BOUNDS.model_dump() | {"most_ece": 0.05})
    found = judge(world, planted(world.candidate, tmp_path / "x", sure), world.champion, bounds)
    assert refused_for(found) == ["calibration"]

    def doubtful(rows: Rows) -> None:
        for row in rows[::2]:
            row["status"] = "uncertain"

    found = judge(world, planted(world.candidate, tmp_path / "y", doubtful), world.champion)
    assert refused_for(found) == ["uncertain"]


def test_precision_of_nothing_that_was_certain_is_no_figure(world: World, tmp_path: Path) -> None:
    def doubtful(rows: Rows) -> None:
        for row in rows:
            row["status"] = "uncertain"

    own = planted(world.candidate, tmp_path / "own", doubtful)
    other = planted(world.champion, tmp_path / "other", doubtful)
    name = "precision when certain"
    for champion in (world.champion, other):
        found = judge(world, own, champion)
        assert refused_for(found) == ["uncertain", name]
        assert says(found, name) == "no answer was certain, so that there is no such figure"
    found = judge(world, world.candidate, other)
    assert refused_for(found) == []
    assert "of the champion's no answer was certain" in says(found, name)


def test_candidate_that_was_asked_another_test_set_than_the_champion_is_refused(
    world: World, tmp_path: Path
) -> None:
    others = planted(world.champion, tmp_path / "x", offers="0" * 64)
    found = judge(world, world.candidate, others)
    assert refused_for(found) == ["same test set"]
    assert "the champion was asked another test set (000000000000)" in says(found, "same test set")
    own = planted(world.candidate, tmp_path / "y", offers="0" * 64)
    assert refused_for(judge(world, own, world.champion)) == ["same test set"]


def test_answers_of_another_artefact_or_another_service_are_refused(
    world: World, tmp_path: Path
) -> None:
    stolen = Answered(world.constant.artifact, world.champion.directory, world.champion.record)
    assert refused_for(judge(world, stolen, world.champion)) == ["answers"]
    other = planted(world.champion, tmp_path / "x", service="0.0.1")
    found = judge(world, world.candidate, other)
    assert refused_for(found) == ["same service"]


def test_without_a_champion_absolute_bounds_alone_count_and_the_verdict_says_so(
    world: World,
) -> None:
    found = judge(world, world.candidate, None)
    assert refused_for(found) == []
    assert found.champion is None
    assert {each.name for each in found.checks} == {
        "verified parity", "taxonomy", "label map", "test set", "answered", "spread",
        "least accuracy", "calibration", "uncertain", "throughput", "cost", "memory",
    }  # fmt: skip
    assert all(each.champion is None for each in found.checks)
    assert "there is no champion yet" in gate.headline(found)[0]
    assert "there is no champion yet" in verdict.render(found)
    assert "least accuracy" in refused_for(judge(world, world.shuffled, None))


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"least_offers": 1_001}, "test set"),
        ({"least_offers_per_second": 1e6}, "throughput"),
        ({"most_cost": 1e-6}, "cost"),
        ({"instances": {}}, "cost"),
        ({"most_memory": 10}, "memory"),
    ],
)
def test_absolute_bounds_are_held(world: World, change: dict[str, Any], refused: str) -> None:
    bounds = GateParameters(**BOUNDS.model_dump() | change)
    assert refused_for(judge(world, world.candidate, world.champion, bounds)) == [refused]


def test_cost_is_the_instance_s_price_over_what_its_workers_do(
    world: World, tmp_path: Path
) -> None:
    def known(measured: dict[str, Any]) -> None:
        measured["offers_per_cpu_second"] = 1_000.0

    found = judge(world, planted(world.candidate, tmp_path / "x", speed=known), None)
    cost = next(each for each in found.checks if each.name == "cost")
    # c7g.large: 0.0725 USD an hour, two workers.
    assert cost.figure == pytest.approx(0.0725 / (2 * 1_000 * 3_600) * 1e6)
    assert f"1,000 offers a processor second as measured on {throughput.machine()};" in cost.says


def test_bounds_of_pipeline_yaml_are_those_of_the_code() -> None:
    file = Path(__file__).parents[2] / "pipeline.yaml"
    assert yaml.safe_load(file.read_bytes())["gate"] == GateParameters().model_dump(mode="json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda report: report["compile"].pop("verification"), "tells of no verification"),
        (lambda report: report.pop("compile"), "tells of no verification"),
        (
            lambda report: report["compile"]["sha256"].update({"model.onnx": "0" * 64}),
            "not this artefact: another model.onnx",
        ),
        (
            lambda report: report["compile"]["verification"].update(largest_difference=0.1),
            "by 0.1, at most",
        ),
        (lambda report: report["compile"]["verification"].update(precision="bf16"), "in bf16"),
        (
            lambda report: report["compile"].update(verification=None, unverified="no device here"),
            "nobody verified it: no device here; compile it on a machine that has the device",
        ),
    ],
)
def test_parity_that_was_not_verified_for_this_artefact_is_refused(
    world: World, tmp_path: Path, change: Callable[[Any], None], said: str
) -> None:
    def spoil(staging: Path) -> None:
        report = json.loads((staging / "report.json").read_bytes())
        change(report)
        (staging / "report.json").write_text(json.dumps(report))

    model = Artifact.load(resealed(world.candidate.artifact.path, tmp_path / "models", spoil))
    found = judge(world, planted(world.candidate, tmp_path / "x", model=model), world.champion)
    assert refused_for(found) == ["verified parity"]
    assert said in says(found, "verified parity")


@pytest.mark.parametrize(
    ("same_winner", "said"),
    [
        (0.75, "; 75.00% have the very same winner, the others are ties within the bound"),
        (1.0, "; 100.00% have the very same winner"),
        (None, "with other neighbours, at most 0.0002"),  # reports of older versions lack it
    ],
)
def test_parity_tells_ties_from_the_same_winner(
    world: World, tmp_path: Path, same_winner: float | None, said: str
) -> None:
    def tell(staging: Path) -> None:
        report = json.loads((staging / "report.json").read_bytes())
        if same_winner is None:
            del report["compile"]["verification"]["same_winner"]
        else:
            report["compile"]["verification"]["same_winner"] = same_winner
        (staging / "report.json").write_text(json.dumps(report))

    model = resealed(world.candidate.artifact.path, tmp_path / "models", tell)
    parity = next(checks.of_artifact(Artifact.load(model), TAXONOMY))
    assert parity.passed
    assert parity.says.endswith(said)


def test_artefact_that_was_changed_after_it_was_judged_is_not_accepted(
    world: World, tmp_path: Path
) -> None:
    found = judge(world, world.candidate, world.champion)
    own, champion = world.candidate.artifact, world.champion.artifact
    assert accepted(found, own.path, champion.manifest.id) == own

    changed = tmp_path / own.manifest.id
    shutil.copytree(own.path, changed)
    with (changed / "model.onnx").open("r+b") as file:
        file.seek(100)
        file.write(b"sabotage")
    with pytest.raises(RefusedError, match=r"not what was judged: .*model\.onnx was changed"):
        accepted(found, changed)

    # Whole by itself, with other thresholds: it has another id.
    other = resealed(own.path, tmp_path / "models", threshold=0.01)
    with pytest.raises(RefusedError, match=f"and the verdict is of {own.manifest.id}"):
        accepted(found, other)
    # And under the name that was judged it is none.
    other.rename(tmp_path / "renamed")
    with pytest.raises(RefusedError, match="the verdict is of"):
        accepted(found, tmp_path / "renamed")


def test_refused_artefact_and_one_judged_against_another_champion_are_not_accepted(
    world: World,
) -> None:
    found = judge(world, world.constant, world.champion)
    with pytest.raises(RefusedError, match="was refused: spread: "):
        accepted(found, world.constant.artifact.path)
    passed = judge(world, world.candidate, None)
    with pytest.raises(RefusedError, match="judged against no champion, and 0123 is served now"):
        accepted(passed, world.candidate.artifact.path, "0123")


def test_verdict_that_was_edited_is_none(world: World, tmp_path: Path) -> None:
    found = judge(world, world.constant, world.champion)
    verdict.write(tmp_path, found)
    file = tmp_path / verdict.VERDICT
    kept = verdict.read(file)
    assert kept.reasons == found.reasons
    file.write_text(file.read_text().replace('"passed": false', '"passed": true'))
    with pytest.raises(StageError, match="was changed since the gate wrote it"):
        verdict.read(file)


def command(world: World, own: Answered, out: Path, *more: str) -> list[str]:
    given = {
        "--out": out, "--model": own.artifact.path, "--answers": own.directory,
        "--champion": world.champion.artifact.path, "--champion-answers": world.champion.directory,
        "--offers": world.offers, "--taxonomy": world.taxonomy,
    }  # fmt: skip
    sets = [f"gate.{key}={json.dumps(value)}" for key, value in BOUNDS.model_dump().items()]
    sets.append("evaluate.resamples=20")
    words = [str(word) for pair in given.items() for word in pair]
    return ["gate", *words, *(word for each in sets for word in ("--set", each)), *more]


def test_evaluate_with_an_endpoint_asks_the_service_and_measures_it(world: World) -> None:
    endpoint_of = world.champion.directory
    judged = json.loads((endpoint_of.parent / "report.json").read_bytes())
    assert judged["model"] == world.champion.artifact.manifest.id
    assert judged["test_set"]["offers"] == 1_000
    assert set(world.champion.record.files) == {endpoint.ANSWERS, throughput.FILE}
    measured = throughput.read(endpoint_of / throughput.FILE)
    assert (measured.offers, measured.workers) == (1_000, 1)
    assert measured.offers_per_second == pytest.approx(1_000 / measured.seconds, rel=0.01)
    assert set(measured.stage_seconds) == set(metrics.STAGES)
    assert 0 < measured.stage_seconds["infer"] < measured.seconds
    if sys.platform == "linux":
        assert measured.cpu_seconds is not None
        assert measured.peak_memory_bytes is not None
        # The worker's alone, since it was ready: not more than its machine has.
        assert 0 < measured.cpu_seconds <= measured.seconds * cpu.quota() + 0.1
        assert 5e7 < measured.peak_memory_bytes < 5e9
        assert measured.offers_per_cpu_second == pytest.approx(
            1_000 / measured.cpu_seconds, rel=0.01
        )


@pytest.mark.parametrize(
    "words",
    [[], ["--predictions", "a", "--endpoint", "b", "--offers", "c"], ["--endpoint", "b"],
     ["--predictions", "a", "--offers", "c"]],
)  # fmt: skip
def test_evaluate_takes_answers_or_an_endpoint_with_offers(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["evaluate", "--out", "out", *words])
    assert done.exit_code == 2
    assert "--predictions FILE, or --endpoint MODEL with --offers FILE" in done.stderr


def test_gate_s_command_says_its_reasons_and_ends_with_its_own_code(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "log", lambda *_: False)
    done = CliRunner().invoke(app, command(world, world.candidate, tmp_path / "good"))
    assert done.exit_code == 0, done.output
    assert f"passed: {world.candidate.artifact.manifest.id}, 24 checks" in done.stderr

    for _ in range(2):  # what was refused is refused again, without being judged again
        done = CliRunner().invoke(app, command(world, world.constant, tmp_path / "bad"))
        assert done.exit_code == REFUSED
        found = verdict.read(tmp_path / "bad" / verdict.VERDICT)
        lines = done.stderr.splitlines()
        assert [line for line in lines if line.startswith("refused: ")][1:] == [
            f"refused: {reason}" for reason in found.reasons
        ]
    assert "is done already" in done.stderr
    page = (tmp_path / "bad" / verdict.PAGE).read_text()
    for check in found.checks:
        assert check.name in page


def test_run_that_dies_leaves_no_earlier_verdict_to_be_read(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "log", lambda *_: False)
    out, runner = tmp_path / "good", CliRunner()
    judge_it = command(world, world.candidate, out)
    assert runner.invoke(app, judge_it).exit_code == 0
    assert runner.invoke(app, ["verdict", str(out)]).exit_code == 0

    def told(directory: Path, line: str) -> None:
        done = runner.invoke(app, ["verdict", str(directory)])
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"error: {line}\n"

    nothing = f"{out}: has no verdict of a gate that finished; judge again"
    # Before it knew what to judge: such a run may still have been meant for the same.
    missing = runner.invoke(app, [*judge_it, "--model", str(tmp_path / "nothing")])
    assert missing.exit_code == 1
    assert not (out / verdict.VERDICT).exists()
    assert not (out / verdict.PAGE).exists()
    told(out, nothing)
    again = runner.invoke(app, judge_it)
    assert again.exit_code == 0
    assert "is done already" in again.stderr
    assert (out / verdict.PAGE).exists()

    # After it had begun.
    kept = tmp_path / "kept"
    shutil.copytree(out, kept)
    other = [*judge_it, "--set", "gate.least_accuracy=0.9"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "load_taxonomy", fails)
        assert runner.invoke(app, other).exit_code == 1
    assert not list(out.glob("*verdict*"))
    assert not list(out.glob(".*verdict*"))
    told(out, nothing)

    # A verdict that is there, and none of a run that finished there.
    shutil.copy(kept / verdict.VERDICT, out)
    told(out, nothing)
    bad = tmp_path / "bad"
    assert runner.invoke(app, command(world, world.constant, bad)).exit_code == REFUSED
    shutil.copy(kept / verdict.VERDICT, bad)
    told(
        bad,
        f"{bad / verdict.VERDICT}: is another verdict than the gate's last run ended with",
    )


def fails(_: Path) -> None:
    raise StageError("the disk went away")


def test_another_service_or_other_settings_of_it_are_judged_anew(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = world.candidate

    def judged() -> str:
        return gate.make(
            BOUNDS, QUICK, own.artifact.path, None, world.offers, world.taxonomy, tmp_path / "out",
            Console(file=io.StringIO()), answers=own.directory,
        ).fingerprint  # fmt: skip

    first_time = judged()
    assert judged() == first_time
    monkeypatch.setenv("ALTERNATIVES", "7")
    other_settings = judged()
    monkeypatch.setattr(endpoint, "__version__", "999.0.0")
    assert len({first_time, other_settings, judged()}) == 3


def test_files_that_are_not_the_gate_s_are_left_alone(world: World, tmp_path: Path) -> None:
    (tmp_path / verdict.VERDICT).write_text("somebody's own")
    done = CliRunner().invoke(app, command(world, world.candidate, tmp_path))
    assert done.exit_code == 1
    assert "holds files that are not the stage gate's" in done.stderr
    assert (tmp_path / verdict.VERDICT).read_text() == "somebody's own"


@pytest.mark.parametrize("code", [1, 2, 137])
def test_service_that_ends_for_another_reason_than_its_model_is_no_verdict(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    assert code != BAD_MODEL

    def ends(*_: object) -> None:
        raise EndedError(code, "the broker went away")

    monkeypatch.setattr(endpoint, "answer", ends)
    with pytest.raises(EndedError):
        gate.make(
            BOUNDS, QUICK, world.candidate.artifact.path, None, world.offers, world.taxonomy,
            tmp_path / "out", Console(file=io.StringIO()),
        )  # fmt: skip
    assert not (tmp_path / "out" / verdict.VERDICT).exists()
    assert stage.read_record(tmp_path / "out") is None


def test_answers_that_were_changed_since_they_were_kept_are_an_error(
    world: World, tmp_path: Path
) -> None:
    shutil.copytree(world.champion.directory, tmp_path / "x")
    with (tmp_path / "x" / endpoint.ANSWERS).open("ab") as file:
        file.write(b" ")
    with pytest.raises(StageError, match="is not what `training endpoint` wrote there"):
        gate.answered(world.champion.artifact, tmp_path / "x")
    with pytest.raises(StageError, match="holds no answers of `training endpoint`"):
        gate.answered(world.champion.artifact, tmp_path)
