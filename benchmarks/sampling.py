"""The sampling plan over ten million offers, on two cores.

    python -m benchmarks.sampling [--offers 10000000] [--folder DIR] [--seed 0]

The lake is made by the sample catalogue, by two processes, which takes a few minutes and is no part
of what is measured; with a folder given it stays there and is used again. The sets are drawn by a
process of its own, from the files to the finished sets, so that its peak memory is the sampler's.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.bounds import command
from training import dataset, production, taxonomy
from training.lake import make_sample
from training.parameters import DatasetParameters, LakeParameters

MOST_SECONDS = 300.0
MOST_BYTES = 4_000_000_000
PARTS = 20
"""The lake is made in so many parts, each of a seed of its own."""
THREADS = 2

# What a site of this size would draw.
PARAMETERS = DatasetParameters(
    training_offers=1_000_000,
    floor=200,
    cap=20_000,
    validation_offers=50_000,
    test_offers=100_000,
    test_floor=20,
    experiment_offers={"s": 50_000, "m": 200_000, "l": 1_000_000},
    transfer_offers=1_000_000,
    memory="2GB",
    threads=THREADS,
)


def measure(offers: int = 10_000_000, folder: Path | None = None, seed: int = 0) -> list[str]:
    """Prints seconds and peak memory of drawing the sets from so many offers.

    Gives what falls short.
    """
    with _folder(folder) as place:
        lake = place / f"lake-{offers}-{seed}"
        started = time.monotonic()
        _make_lake(lake, offers, seed)
        size = sum(path.stat().st_size for path in lake.rglob("*.parquet"))
        print(f"lake: {offers:,} offers, {size / 1e6:,.0f} MB, {_since(started)}", flush=True)
        with tempfile.TemporaryDirectory(dir=place) as out:
            argument = [sys.executable, "-m", "benchmarks.sampling", "--draw", str(lake), out]
            drawn = subprocess.run(argument, stdout=subprocess.PIPE, check=True)
        figures = json.loads(drawn.stdout)
    sets = {name: each["drawn"] for name, each in figures["sets"].items()}
    print(", ".join(f"{name} {count:,}" for name, count in sets.items()))
    print(f"from {figures['texts']:,} texts, labelled once or on training's side without a label")
    print(
        f"drawn in {figures['seconds']:,.0f} s (at most {MOST_SECONDS:,.0f}), {THREADS} threads,"
        f" {figures['used']:,.0f} s of the processors"
    )
    print(f"peak: {figures['peak'] / 1e6:,.0f} MB (at most {MOST_BYTES / 1e6:,.0f})")
    short = []
    if figures["seconds"] > MOST_SECONDS:
        short.append(f"{figures['seconds']:,.0f} s, at most {MOST_SECONDS:,.0f}")
    if figures["peak"] > MOST_BYTES:
        short.append(f"peak {figures['peak'] / 1e6:,.0f} MB, at most {MOST_BYTES / 1e6:,.0f}")
    return short


@contextlib.contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _make_lake(lake: Path, offers: int, seed: int) -> None:
    share = -(-offers // PARTS)
    jobs = [
        (min(share, offers - part * share), seed + 2 * part, lake / f"part-{part:02d}")
        for part in range(PARTS)
        if part * share < offers
    ]
    with ProcessPoolExecutor(2) as pool:
        for _ in pool.map(_make_part, jobs):
            pass


def _make_part(job: tuple[int, int, Path]) -> None:
    offers, seed, out = job
    make_sample(LakeParameters(offers=offers, seed=seed), out, lambda _: None)


def draw(lake: Path, out: Path) -> None:
    """Draws the sets and prints what it took, as JSON."""
    first = lake / "part-00"
    known = taxonomy.load(first / "taxonomy.json")
    counts = production.read(first / "production.json", known)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    started, used = time.monotonic(), time.process_time()
    dataset.make(PARAMETERS, str(lake), first / "taxonomy.json", counts, out, say)
    seconds, used = time.monotonic() - started, time.process_time() - used
    figures = json.loads((out / "dataset.json").read_bytes())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    texts = figures["lake"]["texts_to_draw_from"]
    sets = figures["sets"]
    said = {"seconds": seconds, "used": used, "peak": peak, "texts": texts, "sets": sets}
    os.write(1, json.dumps(said).encode())


def _since(started: float) -> str:
    return f"{time.monotonic() - started:,.0f} s"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        draw(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        command(measure)
