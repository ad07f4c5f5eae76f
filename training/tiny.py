"""A tiny trained model, made as every model is, in seconds: for tests and for trying things out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from classifier.artifact import Label, set_current
from classifier.offer import Offer
from classifier.text import DEFAULT_RECIPE
from compile.build import build
from compile.checkpoint import Checkpoint
from compile.verify import one_thread
from training.examples import examples
from training.fit import Schedule
from training.scratch import Shape, train

LABELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "kettles": {
            "de": "Wasserkocher", "en": "kettle", "es": "hervidor", "fr": "bouilloire",
            "it": "bollitore",
        },
        "sofas": {
            "de": "Polstersofa", "en": "sofa", "es": "sofá", "fr": "canapé", "it": "divano",
        },
        "tents": {
            "de": "Zelt", "en": "tent", "es": "tienda de campaña", "fr": "tente", "it": "tenda",
        },
        "bicycles": {
            "de": "Fahrrad", "en": "bicycle", "es": "bicicleta", "fr": "vélo", "it": "bici",
        },
        "headphones": {
            "de": "Kopfhörer", "en": "headphones", "es": "auriculares", "fr": "casque audio",
            "it": "cuffie",
        },
        "olive-oil": {
            "de": "Olivenöl", "en": "olive oil", "es": "aceite de oliva", "fr": "huile d'olive",
            "it": "olio d'oliva",
        },
        "dog-food": {
            "de": "Hundefutter", "en": "dog food", "es": "comida para perros",
            "fr": "croquettes pour chien", "it": "cibo per cani",
        },
        "desk-lamps": {
            "de": "Schreibtischlampe", "en": "desk lamp", "es": "flexo de escritorio",
            "fr": "lampe de bureau", "it": "lampada da scrivania",
        },
    }
)  # fmt: skip
"""Categories and what each is called, by language."""

_BRANDS = ("Norvik", "Altea", "Brunn", "Castel", "Delmo", "Fjordal", "Kestrel", "Ombra")
_EXTRAS = (
    "rot", "black", "blanco", "gris", "verde", "XL", "1,5 l", "2 kg", "500 ml", "30 cm", "mini",
    "pro", "set", "2er Pack", "light", "classic", "neu", "2024", "A100", "KX-7", "premium",
)  # fmt: skip

_SHAPE = Shape(pieces=1500, hidden=32, layers=2, heads=2, inner=64, max_tokens=32, dropout=0.1)
_SCHEDULE = Schedule(
    table_passes=8,
    passes=1,
    batch=16,
    table_rate=2e-2,
    head_rate=2e-2,
    label_smoothing=0.05,
    piece_dropout=0.0,
)


def tiny_artifact(
    parent: Path,
    labels: Mapping[str, Mapping[str, str]] = LABELS,
    seed: int = 0,
    target: str = "onnx-cpu",
) -> Path:
    """A published artefact `parent`/<id>, which `parent`/current names; see tiny_checkpoint."""
    tiny_checkpoint(parent / "checkpoint", labels, seed)
    artifact = build(parent / "checkpoint", target, parent)
    set_current(parent, artifact)
    return artifact


def tiny_checkpoint(
    path: Path, labels: Mapping[str, Mapping[str, str]] = LABELS, seed: int = 0
) -> Checkpoint:
    """A checkpoint trained for a second on made-up offers of `labels` (id -> language -> word).

    Two layers, at most 32 tokens. It tells its few categories apart by their words; equal arguments
    give equal answers, other seeds other ones.
    """
    with one_thread():
        return _train(path, labels, seed)


def _train(path: Path, labels: Mapping[str, Mapping[str, str]], seed: int) -> Checkpoint:
    return train(
        path,
        examples(tiny_offers(labels, seed), DEFAULT_RECIPE),
        DEFAULT_RECIPE,
        {label: Label(label, dict(words)) for label, words in labels.items()},
        shape=_SHAPE,
        schedule=_SCHEDULE,
        data={"name": "tiny", "seed": seed},
        taxonomy="tiny-1",
        seed=seed,
    )


def tiny_offers(
    labels: Mapping[str, Mapping[str, str]] = LABELS, seed: int = 0, each: int = 20
) -> Iterator[tuple[Offer, str]]:
    """Made-up offers with their labels, `each` for every label and language."""
    rng = np.random.default_rng(seed)
    for label, words in sorted(labels.items()):
        for language, word in sorted(words.items()):
            for number in range(each):
                count = int(rng.integers(0, 14))
                extras = [_EXTRAS[i] for i in rng.integers(0, len(_EXTRAS), count)]
                at = int(rng.integers(0, len(extras) + 1))
                title = " ".join([*extras[:at], word, *extras[at:]])
                yield (
                    Offer(
                        offer_id=f"{label}-{language}-{number}",
                        language=language,
                        title=title,
                        brand=_BRANDS[int(rng.integers(0, len(_BRANDS)))],
                    ),
                    label,
                )
