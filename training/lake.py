"""The lake: the site's offers as files, and a sample of such a lake.

A lake is a file, a directory or a glob of Parquet files, or of JSON lines, plain or gzipped, on
this machine or wherever fsspec reaches ("s3://bucket/offers"). Its rows hold the columns of an
offer set (sampling.COLUMNS) and a whole number `revision`, of which an offer's largest counts; all
but offer_id may be missing, and others pass by.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import fsspec  # type: ignore[import-untyped, unused-ignore]
from fsspec.implementations.local import (  # type: ignore[import-untyped, unused-ignore]
    LocalFileSystem,
)
from fsspec.utils import glob_translate  # type: ignore[import-untyped, unused-ignore]

from classifier import sample
from classifier.artifact import file_hash
from classifier.progress import bar
from classifier.sample.listing import listings
from classifier.sample.stream import listed
from training import taxonomy
from training.parameters import LakeParameters
from training.sampling import COLUMNS
from training.stage import Record, Stage, StageError, write_json

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["parquet", "jsonl"]

SUFFIXES: Final[dict[str, Format]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson.gz": "jsonl",
}

ROWS_A_FILE: Final = 250_000  # of the sample lake
ROWS_A_GROUP: Final = 50_000
PRODUCTION_OFFERS: Final = 50_000
"""So many listings of the sample catalogue's shops are production's share of each category."""

# Hundredths of the sample lake's labelled offers whose subcategory, and of all offers whose product
# nobody knows.
NO_SUBCATEGORY: Final = 15
NO_CLUSTER: Final = 20


@dataclass(frozen=True)
class Lake:
    """The files of a lake, sorted by name; all of one format."""

    where: str  # as it was given
    protocol: str  # of fsspec: "file", "s3", "memory" ...
    files: tuple[str, ...]  # a path each, or a URL by fsspec's own name of the protocol
    format: Format
    fingerprint: str  # see `open_lake`
    system: Any = field(compare=False, repr=False)  # fsspec's, by which it was found
    path: str  # as that file system has it

    def would_hold(self, path: Path) -> bool:
        """Whether a Parquet file at the local path would be one of the lake's, were it opened."""
        if self.protocol != "file":
            return False
        inside = Path(os.path.realpath(path))
        if (root := Path(os.path.realpath(self.path))).is_dir():
            return inside.is_relative_to(root) and not _hidden(
                str(inside).removeprefix(str(root)), ""
            )
        if not _is_glob(self.system, self.path):
            return False
        return re.fullmatch(glob_translate(self.path), str(path.absolute())) is not None


def open_lake(where: str) -> Lake:
    """The lake at a path, a glob or a URL.

    Its fingerprint is one of its content where the files are local, of sizes and of what the store
    knows of versions (ETags, times) where they are not. Files whose names begin with "." or "_",
    and those of other kinds, are no part of it. Raises StageError.
    """
    try:
        system, path = fsspec.url_to_fs(where)
        if system.isdir(path):
            found = system.find(path)
        elif _is_glob(system, path):
            found = [name for name in system.glob(path) if not system.isdir(name)]
        else:
            found = [path] if system.exists(path) else []
            if found and _format(path) is None:
                raise StageError(f"{where}: must be one of {', '.join(SUFFIXES)}")
    except (OSError, ValueError, ImportError) as error:
        raise StageError(f"{where}: cannot be opened: {error}") from error
    files = sorted(name for name in found if _format(name) and not _hidden(name, path))
    if not files:
        raise StageError(f"{where}: no offers there (files that end in {', '.join(SUFFIXES)})")
    formats = {format_ for name in files if (format_ := _format(name))}
    if len(formats) > 1:
        raise StageError(f"{where}: holds both Parquet and JSON lines; name one of them by a glob")
    if odd := [name for name in files if "\\" in name]:
        raise StageError(f"{odd[0]}: has a backslash in its name; rename it")
    local = isinstance(system, LocalFileSystem)
    try:
        if local:
            told = sorted(file_hash(Path(name)) for name in files)
        else:
            told = [_version(system, name) for name in files]
    except OSError as error:
        raise StageError(f"{where}: cannot be read: {error}") from error
    return Lake(
        where,
        "file" if local else system.unstrip_protocol("").partition("://")[0],
        tuple(files if local else (system.unstrip_protocol(name) for name in files)),
        formats.pop(),
        hashlib.sha256("\n".join(told).encode()).hexdigest(),
        system,
        path,
    )


def _is_glob(system: Any, path: str) -> bool:
    """Whether a path is one, rather than the name of a file that looks like it."""
    return any(letter in path for letter in "*?[") and not system.exists(path)


def _format(name: str) -> Format | None:
    for suffix, format_ in SUFFIXES.items():
        if name.lower().endswith(suffix):
            return format_
    return None


def _hidden(name: str, path: str) -> bool:
    """Whether the file, or a directory below what was named, is hidden by its name."""
    named = path
    if magic := re.search(r"[*?\[]", path):
        named = path[: path.rfind("/", 0, magic.start()) + 1]
    inside = name.removeprefix(named).split("/")
    return any(part.startswith((".", "_")) for part in inside)


def _version(system: Any, name: str) -> str:
    info = system.info(name)
    told = [info.get(key) for key in ("size", "ETag", "etag", "mtime", "LastModified", "created")]
    return repr((name, [str(value) for value in told]))


def make_sample(parameters: LakeParameters, out: Path, say: Callable[[str], None]) -> Record:
    """A lake of made-up offers in `out`, with taxonomy.json and production.json.

    Labels come as they do in practice, by a shop's mapping of its own categories: a shop's offers
    of a category have it or have it not. So neither categories nor shops are labelled in
    production's shares, which is what sampling is for. Raises StageError.
    """
    stage = Stage("lake", out, parameters, {"catalogue": sample.version()})
    if record := stage.done():
        say(f"{out}: is there already")
        return record
    stage.begin()
    for old in out.glob("offers-*.parquet"):
        old.unlink()
    results = {}
    labelled = 0
    with bar("offers") as show:
        rows = _sample_rows(parameters)
        for number in range(-(-parameters.offers // ROWS_A_FILE)):
            name = f"offers-{number:05d}.parquet"
            labelled += _write(out / name, islice(rows, ROWS_A_FILE))
            results[name] = out / name
            made = min(parameters.offers, (number + 1) * ROWS_A_FILE)
            show(made / parameters.offers, made, name)
    edition = taxonomy.from_sample()
    taxonomy.save(edition, out / "taxonomy.json")
    drawn = islice(listings(parameters.seed + 1, "train", 0), PRODUCTION_OFFERS)
    counts = dict(sorted(Counter(listing.category for listing in drawn).items()))
    write_json(out / "production.json", {"taxonomy": edition.version, "counts": counts})
    for name in ("taxonomy.json", "production.json"):
        results[name] = out / name
    say(f"{out}: {parameters.offers:,} offers, {labelled:,} of them labelled")
    return stage.finish({"offers": parameters.offers, "labelled": labelled}, results)


def _sample_rows(parameters: LakeParameters) -> Iterator[tuple[str | None, ...]]:
    """Rows in the order of COLUMNS."""
    seed = parameters.seed
    mapped: dict[tuple[str, str], bool] = {}
    for number, (offer, listing) in enumerate(listed(seed, parameters.offers, "train")):
        pair = (listing.shop.id, listing.category)
        if pair not in mapped:
            mapped[pair] = _lot(f"{seed}/{pair}") < parameters.labelled_share
        lot = number * 7919 % 10_000
        is_labelled = mapped[pair]
        yield (
            offer.offer_id,
            offer.shop_id,
            offer.language,
            offer.title,
            offer.description,
            offer.category_path,
            offer.brand,
            listing.category if is_labelled else None,
            f"{listing.category}/{listing.sort + 1}"
            if is_labelled and lot % 100 >= NO_SUBCATEGORY
            else None,
            listing.product if lot // 100 >= NO_CLUSTER else None,
            "sample",
        )


def _lot(text: str) -> float:
    """A number from 0 to below 1 that hangs on the text alone."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:6]) / 2**48


def _write(path: Path, rows: Iterator[tuple[str | None, ...]]) -> int:
    """Writes the rows as Parquet and gives how many have a label."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from classifier.whole_file import appearing

    labelled = 0
    with appearing(path) as file, pq.ParquetWriter(file, schema(), compression="zstd") as writer:
        while chunk := list(islice(rows, ROWS_A_GROUP)):
            columns = list(zip(*chunk, strict=True))
            labelled += sum(label is not None for label in columns[COLUMNS.index("label")])
            writer.write_table(pa.table([pa.array(c, pa.string()) for c in columns], schema()))
    return labelled


def schema() -> pa.Schema:
    """Of the sample lake's rows, and of every set, but for its weights."""
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in COLUMNS])
