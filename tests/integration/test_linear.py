"""The linear model is served by the very worker that serves encoders."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from classifier.artifact import current
from classifier.model import Model
from tests.integration.harness import (
    Place,
    classifications,
    dead_letters,
    done,
    offer,
    produce,
    working,
)
from training.baseline import make
from training.parameters import BaselineParameters
from training.tiny import tiny_offers


@pytest.fixture
def linear(place: Place, tmp_path: Path) -> Place:
    """A place where the baseline is served."""
    rows = list(tiny_offers(each=4))
    for name, part in (("train", rows[::2]), ("validation", rows[1::2])):
        lines = (msgspec.to_builtins(made) | {"label": label} for made, label in part)
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    files = (tmp_path / "train.jsonl", tmp_path / "validation.jsonl")
    make(BaselineParameters(costs=(1.0,)), *files, None, tmp_path / "out", print)
    return Place(place.kafka, place.mongodb, place.topic, place.database, current(tmp_path / "out"))


async def test_stream_answers_as_the_model_does(linear: Place) -> None:
    offers = [made for made, _ in tiny_offers(seed=1, each=8)]
    await produce(linear, [msgspec.json.encode(made) for made in offers])
    await produce(linear, [offer("none", title="\u2014"), b"no offer"])
    async with working(linear.settings(fetch_offers=50)):
        await done(linear)
    assert len(await dead_letters(linear)) == 2
    model = Model.load(linear.model, threads=1)
    stored = await classifications(linear)
    assert len(stored) == len(offers)
    for made, answer in zip(
        offers, model.predict(list(map(model.recipe.text, offers))), strict=True
    ):
        assert answer is not None
        document = stored[made.offer_id]
        assert document["model"] == model.artifact.manifest.id
        assert document["status"] == answer.status
        assert [document["category_id"], document["score"]] == [answer.category_id, answer.score]
        assert document["alternatives"] == answer.alternative_documents()
    model.close()
