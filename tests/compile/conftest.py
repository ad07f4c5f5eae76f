"""What is compiled once for the tests of the compiler."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from classifier.offer import Offer
from compile import choice
from compile.build import Wanted, build
from training.tiny import tiny_offers


def write_offers(file: Path, offers: Iterable[tuple[Offer, str]]) -> Path:
    """The offers as JSON lines, each with its label."""
    lines = [json.dumps(msgspec.to_builtins(offer) | {"label": label}) for offer, label in offers]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def offers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offers of the tiny model's categories, other ones than it was trained on."""
    return write_offers(tmp_path_factory.mktemp("offers") / "offers.jsonl", tiny_offers(seed=1))


@pytest.fixture(scope="session")
def int8(artifact: Path, offers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in int8."""
    wanted = Wanted(precision="int8", calibration=offers, validation=offers)
    out = tmp_path_factory.mktemp("int8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "ROUND_SECONDS", 0.02)
        return build(artifact.parent / "checkpoint", "onnx-cpu", out, wanted=wanted)
