"""What a new head alone costs against the whole training, on the sample catalogue.

    python -m research.refit [--offers 12000] [--each 6] [--encoder DIR] [--out DIR]

Of the categories of an old edition some are split, some merged, and some are new, whose offers the
old teacher and student never saw. Then the old student gets a new head, and beside it teacher and
student are trained anew, by the same parameters and seeds. Both answer the same test offers.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray

from classifier.sample import Split
from classifier.sample.stream import listed
from compile.checkpoint import Checkpoint
from compile.labelled import read_labelled
from training import pretraining, refit, student, teacher
from training.comparison import mcnemar
from training.embeddings import answers, embedder
from training.parameters import (
    OwnEncoderParameters,
    RefitParameters,
    StudentParameters,
    TeacherParameters,
)

SHARED: dict[str, Any] = {
    "rate": 1e-3,
    "epochs": 3,
    "max_tokens": 48,
}  # the encoder is not a pretrained one


def main(
    out: Path = Path("runs/research/refit"),
    offers: int = 12_000,
    each: int = 6,
    seed: int = 0,
    encoder: Path | None = None,
) -> None:
    """Change `each` categories in each of three ways, and print what became of all."""
    out.mkdir(parents=True, exist_ok=True)
    kinds = drawn(offers, each, seed)
    for split in ("train", "test"):
        write(out, split, offers, seed, kinds)
    files = {f"{edition}-{part}": out / f"{edition}-{part}.jsonl"
             for edition in ("old", "new") for part in ("train", "validation", "test")}  # fmt: skip
    seconds = {}
    if encoder is None:
        own = OwnEncoderParameters(layers=4, width=128, inner=256, pieces=16_000, max_tokens=48)
        pretraining.make(own, files["old-train"], None, out / "encoder", typer.echo)
        encoder = out / "encoder" / "encoder"
    for edition in ("old", "new"):
        train, held = files[f"{edition}-train"], files[f"{edition}-validation"]
        larger = TeacherParameters(encoder=str(encoder), **SHARED)
        smaller = StudentParameters(encoder=str(encoder), layers=2, **SHARED)
        taught, learnt = out / f"{edition}-teacher", out / f"{edition}-student"
        seconds[edition] = teacher.make(larger, train, held, None, taught, typer.echo).seconds
        seconds[edition] += student.make(
            smaller, train, held, None, taught, None, learnt, typer.echo
        ).seconds
        if edition == "old":
            for name in ("refit", "again"):  # the second finds all embeddings
                new = files["new-train"], files["new-validation"]
                record = refit.make(RefitParameters(), learnt, *new, None, out / name, typer.echo)
                seconds[name] = record.seconds
    models = {"old student": "old-student", "refit": "refit", "full training": "new-student"}
    right = {name: answered(out / path, files["new-test"]) for name, path in models.items()}
    report(right, files["new-test"], kinds, seconds)


def drawn(offers: int, each: int, seed: int) -> dict[str, str]:
    """Category -> what happens to it; all but the rarest may be drawn."""
    counts = Counter(listing.category for _, listing in listed(seed, offers))
    sorts = {(one.category, one.sort > 0) for _, one in listed(seed, offers)}
    common = sorted(name for name, count in counts.items() if count >= offers / 400)
    order = np.random.default_rng(seed).permutation(common).tolist()
    order.sort(key=lambda name: len({(name, True), (name, False)} & sorts) < 2)
    kinds = dict.fromkeys(order[:each], "split")
    kinds |= dict.fromkeys(order[each : 3 * each], "merged")
    return kinds | dict.fromkeys(order[3 * each : 4 * each], "new")


def label(category: str, sort: int, kinds: dict[str, str], edition: str) -> str | None:
    """Of the old edition or the new one."""
    kind = kinds.get(category)
    if kind == "new" and edition == "old":
        return None
    if kind == "split" and edition == "new":
        return f"{category}/{'rest' if sort else 'first'}"
    if kind == "merged" and edition == "new":
        merged = [name for name, what in kinds.items() if what == "merged"]
        return merged[merged.index(category) // 2 * 2]
    return category


def write(out: Path, split: Split, count: int, seed: int, kinds: dict[str, str]) -> None:
    """The offers under either edition's labels; of those held out a third is for validation."""
    lines: dict[str, list[bytes]] = {}
    for offer, listing in listed(seed, count, split):
        part: str = split
        if split == "test" and zlib.crc32(listing.product.encode()) % 3 == 0:
            part = "validation"
        for edition in ("old", "new"):
            if name := label(listing.category, listing.sort, kinds, edition):
                row = msgspec.to_builtins(offer) | {"label": name}
                lines.setdefault(f"{edition}-{part}.jsonl", []).append(msgspec.json.encode(row))
    for place, rows in lines.items():
        (out / place).write_bytes(b"\n".join(rows))


def answered(stage: Path, test: Path) -> NDArray[np.bool_]:
    """Whether each test offer is answered rightly."""
    model = Checkpoint.load(stage / "checkpoint")
    recipe = model.description.text
    rows = [(recipe.text(offer) or "", name) for offer, name in read_labelled(test)]
    encoder = model.encoder()
    embedded = embedder(encoder, model.tokeniser())([text for text, _ in rows])
    ids = np.array([each.id for each in model.labels])
    found = ids[answers(encoder, embedded).argmax(axis=1)]
    right: NDArray[np.bool_] = found == np.array([name for _, name in rows])
    return right


def report(
    right: dict[str, NDArray[np.bool_]],
    test: Path,
    kinds: dict[str, str],
    seconds: dict[str, float],
) -> None:
    """The table, in Markdown."""
    names = [name.split("/")[0] for _, name in read_labelled(test)]
    of = np.array([kinds.get(name, "unchanged") for name in names])
    columns = ("all", "unchanged", "merged", "split", "new")
    typer.echo(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for row in ("offers", *right):
        cells = []
        for column in columns:
            some = (of == column) | (column == "all")
            share = f"{some.sum():,}" if row == "offers" else f"{right[row][some].mean():.3f}"
            cells.append(share)
        typer.echo(f"| {row} | {' | '.join(cells)} |")
    one, other = right["refit"], right["full training"]
    for column in columns:
        some = (of == column) | (column == "all")
        lost, won = (other & ~one & some).sum(), (one & ~other & some).sum()
        p = float(mcnemar(np.array(won), np.array(lost)))
        typer.echo(f"{column}: {lost} only by full training, {won} only by the refit, p = {p:.2g}")
    typer.echo(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    typer.run(main)
