"""Files of offers, labelled or not: what is trained on, and what a compiler measures on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from classifier.bulk import is_parquet
from classifier.jsonl import FileError, read
from classifier.offer import Offer


class DataError(Exception):
    """The labelled offers cannot be trained on. The message is one line."""


class LabelledOffer(Offer, frozen=True, gc=False):
    """An offer and the id of the category that it is known to belong to."""

    label: str | None = None


def read_labelled(path: Path) -> Iterator[tuple[Offer, str]]:
    """The offers of a file, each with its `label`: Parquet, or JSONL, plain or gzipped.

    Raises DataError on the first row that is no offer or has no label.
    """
    for number, offer in enumerate(read_offers(path), start=1):
        if offer.label is None or not offer.label.strip():
            raise DataError(f"{path}, row {number}: has no label, and training needs one")
        yield offer, offer.label


def read_offers(path: Path) -> Iterator[LabelledOffer]:
    """The offers of a file, labelled or not: Parquet, or JSONL, plain or gzipped.

    Raises DataError on the first row that is no offer.
    """
    rows = _rows(path) if is_parquet(path) else _lines(path)
    number = 0
    while True:
        number += 1
        try:
            offer = next(rows, None)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path}, row {number}: no offer: {error}") from error
        except FileError as error:
            raise DataError(str(error)) from error
        if offer is None:
            return
        yield offer


def _lines(path: Path) -> Iterator[LabelledOffer]:
    decoder = msgspec.json.Decoder(LabelledOffer)
    return map(decoder.decode, read(path))


def _rows(path: Path) -> Iterator[LabelledOffer]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(
            "Parquet files need pyarrow: pip install 'offer-classifier[parquet]'"
        ) from None
    try:
        with pq.ParquetFile(path) as file:
            wanted = set(LabelledOffer.__struct_fields__)
            columns = [name for name in file.schema_arrow.names if name in wanted]
            for batch in file.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    yield msgspec.convert(row, LabelledOffer)
    except (pa.ArrowException, OSError) as error:
        line = str(error).split("\n", 1)[0]
        raise DataError(f"{path} is no Parquet file that can be read: {line}") from error
