"""The Neuron road from end to end, and a fleet of which it is one half."""

from __future__ import annotations

import fcntl
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from classifier.artifact import Artifact
from classifier.exit_codes import DEVICE_TAKEN, NO_DEVICE, WRONG_RUNTIME
from classifier.model import Model
from classifier.precision import LOGIT_BOUND
from classifier.scores import Prediction
from compile.build import build
from tests.integration.harness import (
    Document,
    Place,
    Service,
    classifications,
    done,
    produce,
    until,
)
from tests.neuron import environment, machine
from training.tiny import tiny_offers

OFFERS = [offer for offer, _ in tiny_offers(seed=5, each=10)]
RECORDS = [msgspec.json.encode(offer) for offer in OFFERS]

Serve = Callable[[dict[str, object]], Service]


@pytest.fixture(scope="module")
def compiled(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Neuron artefact of the checkpoint whose ONNX artefact `artifact` is."""
    with machine(tmp_path_factory.mktemp("drivers")):
        checkpoint = artifact.parent / "checkpoint"
        return build(checkpoint, "neuron-inf2", tmp_path_factory.mktemp("neuron"))


def on_neuron(place: Place, model: Path, drivers: Path, **more: object) -> dict[str, object]:
    """Settings of a service on a machine with two cores."""
    return place.overrides(model=model, **environment(drivers), **more)


def taken(drivers: Path) -> list[str]:
    return sorted(file.name for file in drivers.glob("core*"))


def answers(model: Path) -> dict[str, Prediction]:
    """What the model says of the offers, asked in this process."""
    loaded = Model.load(model, threads=1)
    predictions = loaded.predict([loaded.recipe.text(offer) for offer in OFFERS])
    loaded.close()
    return {
        offer.offer_id: prediction
        for offer, prediction in zip(OFFERS, predictions, strict=True)
        if prediction is not None
    }


def check_close(document: Document, other: Prediction, bound: float, temperature: float) -> None:
    """Whether the answers are one answer, their logits at most `bound` apart.

    A probability moves by at most half of what its logits move; a category may be another where
    the two were a tie within the bound.
    """
    scores = {document["category_id"]: document["score"]} | {
        each["category_id"]: each["score"] for each in document["alternatives"]
    }
    assert other.category_id in scores
    assert abs(scores[other.category_id] - other.score) <= bound / temperature / 2
    if document["category_id"] != other.category_id:
        lead = math.log(document["score"] / scores[other.category_id]) * temperature
        assert lead <= 2 * bound


async def test_offers_go_through_the_neuron_engine(
    place: Place, compiled: Path, serve: Serve, tmp_path: Path
) -> None:
    service = serve(on_neuron(place, compiled, tmp_path, workers=2))
    await until(service.is_ready, "the workers are ready")
    await produce(place, RECORDS)
    await done(place)
    assert taken(tmp_path) == ["core0", "core1"]  # one a worker, its slot's
    stored = await classifications(place)
    (tmp_path / "here").mkdir()
    with machine(tmp_path / "here"):
        expected = answers(compiled)
    assert stored.keys() == expected.keys()
    for offer_id, document in stored.items():
        other = expected[offer_id]
        assert document["model"] == compiled.name
        assert document["category_id"] == other.category_id
        assert document["status"] == other.status
        # Other calls, so other shapes: the same rounding, sums in another order.
        assert document["score"] == pytest.approx(other.score, abs=5e-3)
    assert service.stop() == 0


async def test_in_a_mixed_fleet_every_offer_gets_the_answer_that_the_other_worker_would_have_given(
    place: Place, artifact: Path, compiled: Path, serve: Serve, tmp_path: Path
) -> None:
    models = {artifact.name: artifact, compiled.name: compiled}
    manifests = {name: Artifact.load(path).manifest for name, path in models.items()}
    assert len({manifest.checkpoint for manifest in manifests.values()}) == 1
    fleet = [serve(place.overrides()), serve(on_neuron(place, compiled, tmp_path))]

    def both_have_partitions() -> bool:
        return all(
            service.is_ready() and "classifier_lag_records{" in service.get("/metrics").text
            for service in fleet
        )

    await until(both_have_partitions, "both are in the group")
    await produce(place, RECORDS)
    await done(place)
    stored = await classifications(place)
    assert len(stored) == len(OFFERS)
    assert {document["model"] for document in stored.values()} == models.keys()
    (tmp_path / "here").mkdir()
    with machine(tmp_path / "here"):
        given = {name: answers(path) for name, path in models.items()}
    bound = LOGIT_BOUND["bf16"] + LOGIT_BOUND["fp32"]
    temperature = manifests[artifact.name].temperature
    apart = []
    for offer_id, document in stored.items():
        (other,) = (given[name][offer_id] for name in models if name != document["model"])
        check_close(document, other, bound, temperature)
        apart.append(document["category_id"] != other.category_id)
    assert sum(apart) <= len(OFFERS) / 100  # ties are rare


@pytest.mark.parametrize(
    ("machine_has", "code", "says"),
    [
        ({"neuron_double_cores": "0"}, NO_DEVICE, "there is no Neuron device here"),
        ({"neuron_double_cores": "1"}, DEVICE_TAKEN, "cannot be had"),
        ({"neuron_double_runtime": "3.0.0"}, WRONG_RUNTIME, "NEFF version mismatch"),
    ],
)
async def test_what_no_restart_mends_ends_the_service(
    place: Place,
    compiled: Path,
    serve: Serve,
    tmp_path: Path,
    machine_has: dict[str, object],
    code: int,
    says: str,
) -> None:
    with (tmp_path / "core0").open("w") as another:
        if code == DEVICE_TAKEN:
            fcntl.flock(another, fcntl.LOCK_EX)  # as another process has it
        service = serve(on_neuron(place, compiled, tmp_path, **machine_has))
        assert service.wait() == code
    assert says in service.log
    assert "worker ended" not in service.log  # and so was never started again
