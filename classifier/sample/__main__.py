"""`python -m classifier.sample`: sample offers as a file, or how fast events are made."""

from __future__ import annotations

import gzip
import io
import time
from pathlib import Path
from typing import Annotated

import typer

from classifier.sample.listing import Split
from classifier.sample.stream import events, labelled


def main(
    count: Annotated[int, typer.Option(min=1, help="How many offers.")] = 100_000,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where labelled offers go, .jsonl or .jsonl.gz; without it, events are made for "
            "the rate alone.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="Which products.")] = "train",
    seed: Annotated[int, typer.Option(min=0, help="Which offers of them.")] = 0,
) -> None:
    """Write labelled offers of the sample catalogue, with the category id as `label`."""
    next(iter(events(seed, 1, split)))  # reads the catalogue's files, outside of what is measured
    started = time.process_time()
    if out is None:
        for _ in events(seed, count, split):
            pass
        made = "events"
    else:
        try:
            _write(out, seed, count, split)
        except OSError as error:
            typer.echo(f"{out}: {error.strerror}", err=True)
            raise typer.Exit(2) from None
        made = f"offers written to {out}"
    rate = count / (time.process_time() - started)
    typer.echo(f"{count:,} {made}, {rate:,.0f} a CPU second")


def _write(out: Path, seed: int, count: int, split: Split) -> None:
    with out.open("wb") as file:
        if out.suffix != ".gz":
            file.writelines(line + b"\n" for line in labelled(seed, count, split))
            return
        # No name and no time in the archive: the same offers are the same bytes.
        with (
            gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
            io.BufferedWriter(packed, 1 << 20) as buffered,
        ):
            for line in labelled(seed, count, split):
                buffered.write(line + b"\n")


if __name__ == "__main__":
    typer.run(main)
