"""The batch command: a file of offers in, the same file with categories out.

Every row goes through the very code that a record from Kafka goes through: its decoding, the text
recipe, the cache, the batches and the engine. Rows keep their order, and no row is lost: one that
cannot be classified comes out with an `error` in place of a category.

Columns that are added, and replaced where a file has them already:

    category_id   string, null with an error
    score         the calibrated probability of it
    alternatives  the next best, a list of {category_id, score}
    status        "classified" or "uncertain", null with an error
    model         the artefact's id
    error         null, or {reason, detail}
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from classifier import jsonl
from classifier.jsonl import FileError
from classifier.model import Model
from classifier.offer import Offer
from classifier.record import INFERENCE_DETAIL, NO_TEXT_DETAIL, Reason, decode_offer
from classifier.scores import Prediction
from classifier.whole_file import appearing

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that go through the model together: enough of each length for full engine batches.
ROWS = 2_048
# Rows of one row group of a Parquet file, which has to be in memory at once. Readers skip by row
# group, and smaller ones cost them; this is some tens of megabytes of offers.
ROW_GROUP = 32_768
_BUFFER_BYTES = 1 << 20  # of one column of a Parquet file, read at once
# What of a line that is no JSON comes out again.
_SHOWN_CHARACTERS = 1_000
_BOM = b"\xef\xbb\xbf"

_ADDED = ("category_id", "score", "alternatives", "status", "model", "error")
_DEFAULTS = msgspec.structs.asdict(Offer(offer_id="-"))
# Values are carried over as the bytes they are, so that no number loses a digit.
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode

Refusal = tuple[Reason, str]


@dataclass
class Counts:
    """How the rows ended so far."""

    rows: int = 0
    classified: int = 0
    uncertain: int = 0
    errors: int = 0


def say(counts: Counts) -> str:
    """The counts for a person."""
    return (
        f"{counts.rows:,} rows, {counts.classified:,} classified, {counts.uncertain:,} uncertain, "
        f"{counts.errors:,} with an error"
    )


OnProgress = Callable[[Counts, float], None]
"""Hears the counts and which share of the input, 0 to 1, was read."""


def is_parquet(path: Path) -> bool:
    """Whether the name says Parquet; anything else is taken for JSON lines."""
    return path.suffix in {".parquet", ".pq"}


def output_beside(source: Path) -> Path:
    """Where the output goes unless told: offers.jsonl.gz -> offers.classified.jsonl.gz."""
    packed = source.suffix == ".gz"
    inner = source.with_suffix("") if packed else source
    suffix = inner.suffix + (".gz" if packed else "")
    return source.with_name(f"{inner.stem}.classified{suffix}")


def classify_file(
    source: Path,
    target: Path,
    model: Model,
    *,
    record_bytes: int,
    on_progress: OnProgress | None = None,
) -> Counts:
    """Classify every row of `source` into `target`, both JSON lines or both Parquet.

    Lines of more than `record_bytes` bytes are errors, as they are in the stream. Memory does not
    grow with the file. The target appears whole, at the end, in place of what had its name.

    Raises:
        FileError: a file cannot be read or written, or the two are not of one kind.
    """
    if is_parquet(source) != is_parquet(target):
        raise FileError(f"{source.name} and {target.name}: both must be Parquet, or neither")
    if target.exists() and source.exists() and source.samefile(target):
        raise FileError(f"{target} is the input itself: choose another output")
    if not source.is_file():
        raise FileError(f"cannot read {source}: no such file")
    with appearing(target) as file:
        if is_parquet(source):
            return _classify_parquet(source, file, model, on_progress)
        with jsonl.packer(file) if target.suffix == ".gz" else contextlib.nullcontext(file) as out:
            return _classify_lines(source, out, model, record_bytes, on_progress)


def _classify_lines(
    source: Path,
    out: IO[bytes] | GzipFile,
    model: Model,
    record_bytes: int,
    on_progress: OnProgress | None,
) -> Counts:
    counts = Counts()
    size = source.stat().st_size or 1
    position = 0

    def on_bytes(read: int) -> None:
        nonlocal position
        position = read

    for lines in _chunks(jsonl.read(source, on_bytes), ROWS):
        decoded = [_decode_line(line, record_bytes) for line in lines]
        answers = _answer([offer for _, offer in decoded], model, counts)
        rows = [
            _encode({**row, **answer}) for (row, _), answer in zip(decoded, answers, strict=True)
        ]
        out.write(b"\n".join(rows) + b"\n")
        if on_progress is not None:
            on_progress(counts, min(1.0, position / size))
    return counts


def answer_schema() -> pa.Schema:
    """The columns that are added, as Arrow names their types."""
    import pyarrow as pa

    alternative = pa.struct([("category_id", pa.string()), ("score", pa.float64())])
    return pa.schema(
        [
            ("category_id", pa.string()),
            ("score", pa.float64()),
            ("alternatives", pa.list_(alternative)),
            ("status", pa.string()),
            ("model", pa.string()),
            ("error", pa.struct([("reason", pa.string()), ("detail", pa.string())])),
        ]
    )


def _classify_parquet(
    source: Path, file: IO[bytes], model: Model, on_progress: OnProgress | None
) -> Counts:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise FileError(
            "Parquet files need pyarrow: pip install 'offer-classifier[parquet]'"
        ) from None
    added = answer_schema()
    counts = Counts()
    with contextlib.ExitStack() as stack:
        with _reading(source):
            reader = stack.enter_context(_open_parquet(source))
            batches = reader.iter_batches(batch_size=ROWS)
        kept = [name for name in reader.schema_arrow.names if name not in _ADDED]
        if "offer_id" not in kept:
            raise FileError(f"{source} has no column offer_id; it has {', '.join(kept)}")
        fields = [reader.schema_arrow.field(name) for name in kept]
        schema = pa.schema([*fields, *added], metadata=reader.schema_arrow.metadata)
        wanted = [name for name in kept if name in _DEFAULTS]
        total = reader.metadata.num_rows or 1
        writer = stack.enter_context(pq.ParquetWriter(file, schema, compression="zstd"))
        waiting: list[Any] = []
        while True:
            with _reading(source):
                batch = next(batches, None)
            if batch is not None:
                answers = _answer(
                    [_decode_row(row) for row in batch.select(wanted).to_pylist()], model, counts
                )
                columns = pa.Table.from_pylist(answers, schema=added).combine_chunks().columns
                waiting.append(
                    pa.Table.from_arrays([*batch.select(kept).columns, *columns], schema=schema)
                )
            if waiting and (batch is None or sum(map(len, waiting)) >= ROW_GROUP):
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
            if batch is None:
                return counts
            if on_progress is not None:
                on_progress(counts, counts.rows / total)


def _open_parquet(source: Path) -> Any:
    """A Parquet file to be read batch by batch, of which only the batch is held in memory.

    Arrow by itself keeps the bytes of every row group that it has read.
    """
    import pyarrow.parquet as pq

    return pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES)


@contextlib.contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Turns what pyarrow raises over a file that it cannot read into a FileError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        line = str(error).split("\n", 1)[0]
        raise FileError(f"{source} is no Parquet file that can be read: {line}") from error


def _chunks(lines: Iterator[bytes], rows: int) -> Iterator[list[bytes]]:
    """At most `rows` lines at a time, fewer where they are long."""
    chunk: list[bytes] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line)
        if len(chunk) >= rows or size >= 4 * jsonl.LINE_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _decode_line(line: bytes, record_bytes: int) -> tuple[dict[str, Any], Offer | Refusal]:
    """The row as it came, and the offer in it; of a line that is no JSON object, its beginning."""
    if len(line) > record_bytes:
        detail = f"{len(line)} bytes; at most {record_bytes} are read"
        return _shown(line), (Reason.TOO_LARGE, detail)
    offer = decode_offer(line)
    if isinstance(offer, tuple) and offer[0] is Reason.NESTING:
        return _shown(line), offer
    # What is written is UTF-8, whatever was read; `offer` is the judgement of the bytes themselves.
    text = line if line.isascii() else line.decode(errors="replace").encode()
    try:
        try:
            return dict(_decode_object(text.removeprefix(_BOM))), offer
        except msgspec.ValidationError:
            return _shown(line), offer
        except msgspec.DecodeError:
            # Half of an emoji, cut off by a shop's export, is nothing that may be written again.
            mended = json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace")
            return dict(_decode_object(mended)), offer
    except (ValueError, RecursionError):
        return _shown(line), offer


def _shown(line: bytes) -> dict[str, Any]:
    return {"line": line[: 4 * _SHOWN_CHARACTERS].decode(errors="replace")[:_SHOWN_CHARACTERS]}


def _decode_row(row: dict[str, Any]) -> Offer | Refusal:
    """The offer in a row of a table, by the rules for JSON."""
    try:
        return msgspec.convert(row, Offer)
    except msgspec.ValidationError as error:
        return Reason.SCHEMA, str(error)


def _answer(
    offers: Sequence[Offer | Refusal], model: Model, counts: Counts
) -> list[dict[str, Any]]:
    """What is added to each row, in order; counts them."""
    good = [index for index, offer in enumerate(offers) if isinstance(offer, Offer)]
    asked = model.ask(offer for offer in offers if isinstance(offer, Offer))
    for call in asked.question.calls:
        model.compute(asked.question, call)
    predictions = dict(
        zip((good[index] for index in asked.indexes), asked.question.answers, strict=True)
    )
    counts.rows += len(offers)
    answers = []
    for index, offer in enumerate(offers):
        if isinstance(offer, tuple):
            answers.append(_refused(*offer))
        elif index not in predictions:
            answers.append(_refused(Reason.NO_TEXT, NO_TEXT_DETAIL))
        elif (prediction := predictions[index]) is None:
            answers.append(_refused(Reason.INFERENCE, INFERENCE_DETAIL))
        else:
            if prediction.status == "classified":
                counts.classified += 1
            else:
                counts.uncertain += 1
            answers.append(_categorised(prediction, model.artifact.manifest.id))
            continue
        counts.errors += 1
    return answers


def _categorised(prediction: Prediction, model: str) -> dict[str, Any]:
    return {
        "category_id": prediction.category_id,
        "score": prediction.score,
        "alternatives": prediction.alternative_documents(),
        "status": prediction.status,
        "model": model,
        "error": None,
    }


def _refused(reason: Reason, detail: str) -> dict[str, Any]:
    return dict.fromkeys(_ADDED) | {"error": {"reason": str(reason), "detail": detail}}
