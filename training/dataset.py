"""The data sets: what is drawn from the lake to train on, tune with, judge by and distil from.

    train.parquet        near-uniform over categories, diverse inside each
    validation.parquet   like production, for costs, temperature and thresholds
    test.parquet         like production, to judge by
    transfer.parquet     without labels, near-uniform over languages, for distillation
    experiments/NAME-HASH.parquet
                         like train, smaller, one inside the next, and frozen: each under the hash
                         of its content, beside those of earlier runs
    taxonomy.json        the taxonomy that the labels belong to
    dataset.json         what was there, what was wanted, and what came
    plots.png            the same as a picture, before and after

Sets like production have a `weight` a row: so many offers of production's it stands for, in
proportion, with a mean of 1. sampling.py has the plan. An offer, a text and all offers of one
product are in one of train, validation and test, and an offer and a text there once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from classifier import cpu
from classifier.whole_file import appearing
from training import distributions, engines, sampling, taxonomy
from training.lake import open_lake, schema
from training.parameters import DatasetParameters
from training.production import Production
from training.sampling import COLUMNS, STEPS, Set
from training.stage import Record, Stage, StageError, hash_inputs, write_json

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 3
HASH: Final = 12
"""Digits of an experiment set's hash that its name has."""

SLOW: Final = 1.0
"""Seconds from which on it is said how many a table took."""

ROW_GROUP: Final = 32_768
"""Rows of one group of a Parquet file, and of one step of a set's hash."""

MOST_COUNTED: Final = 2**62
"""Production's offers times a set's must stay below, in 64 bits."""


def make(
    parameters: DatasetParameters,
    lake: str,
    taxonomy_file: Path,
    production: Production | None,
    out: Path,
    say: Callable[[str], None],
    *,
    engine: engines.Name = "duckdb",
    edition: str | None = None,
) -> Record:
    """Draws the sets from `lake` into `out`.

    `edition` is the version of the taxonomy that the lake's labels are of, where that is not the
    file's own. Without `production`, the lake's labelled offers are taken for it. A killed run is
    taken up at the table that it was making. Raises StageError.
    """
    known = taxonomy.load(taxonomy_file)
    remap = taxonomy.remap_from(known, edition or known.version)
    opened = open_lake(lake)
    if opened.would_hold(out / "set.parquet") or (
        opened.protocol == "file"
        and any(Path(name).is_relative_to(out.absolute()) for name in opened.files)
    ):
        raise StageError(f"{out}: is inside the lake {lake}; choose another directory")
    inputs = {
        "lake": opened.fingerprint,
        "edition": remap.base,
        "production": _hash(production),
        **hash_inputs({"taxonomy": taxonomy_file}),
    }
    # What a run may use changes no set: one that ran out of memory is taken up with less.
    drawing = parameters.model_copy(update={"memory": "", "threads": None})
    stage = Stage("dataset", out, drawing, inputs, version=VERSION)
    if record := stage.done():
        say(f"{out}: is there already")
        return record
    sets = wanted(parameters)
    if production is not None:
        _check(production, sets)
    parts = stage.begin()
    runner = engines.start(
        engine, opened, parts, parameters.memory, parameters.threads or cpu.quota()
    )
    try:
        _put_inputs(runner, remap, sets, production)
        _run(runner, parameters, production, say)
        hashes = {}
        for each in sets:
            rows, hashes[each.name] = _write(runner, each, parts / f"{each.name}.parquet")
            say(f"{each.name}: {rows:,} offers")
        say("figures: what the lake has, and what came")
        labels = taxonomy.label_ids(known)
        figures = distributions.measure(runner, sets, labels, parameters.floor, production)
    finally:
        runner.close()
    for line in _left_out(figures, known.version):
        say(line)
    (out / "experiments").mkdir(exist_ok=True)
    frozen = {
        name: f"experiments/{name}-{hashes[name][:HASH]}.parquet"
        for name in parameters.experiment_offers
    }
    results = {}
    for each in sets:
        # Where a frozen set of that name is, it is this very set.
        name = frozen.get(each.name, f"{each.name}.parquet")
        results[name] = (parts / f"{each.name}.parquet").replace(out / name)
    for name in frozen.values():
        say(f"frozen: {out / name}")
    taxonomy.save(known, out / "taxonomy.json")
    write_json(out / "dataset.json", {**figures, "hashes": hashes, "experiments": frozen})
    results |= {name: out / name for name in ("taxonomy.json", "dataset.json")}
    if parameters.plots:
        distributions.plot(figures, out / "plots.png")
        results["plots.png"] = out / "plots.png"
    return stage.finish(_summary(figures), results)


def wanted(parameters: DatasetParameters) -> list[Set]:
    """What is to be drawn."""
    p = parameters
    return [
        Set("train", "train", "uniform", p.training_offers, p.floor, p.cap),
        Set("validation", "validation", "production", p.validation_offers, 0, 0),
        Set("test", "test", "production", p.test_offers, p.test_floor, 0),
        *(
            Set(name, "train", "uniform", offers, 1, p.cap)
            for name, offers in p.experiment_offers.items()
        ),
        Set("transfer", "transfer", "uniform", p.transfer_offers, 0, p.transfer_offers),
    ]


def _put_inputs(
    runner: engines.SqlEngine,
    remap: taxonomy.Remap,
    sets: list[Set],
    production: Production | None,
) -> None:
    import pyarrow as pa

    rows = remap.rows()
    text = pa.string()
    runner.put(
        "routes",
        pa.table(
            {
                "label": pa.array([row.label for row in rows], text),
                "subcategory": pa.array([row.subcategory for row in rows], text),
                "new_label": pa.array([row.new_label for row in rows], text),
            }
        ),
    )
    runner.put(
        "sets",
        pa.table(
            {name: [getattr(each, name) for each in sets] for name in Set.__dataclass_fields__}
        ),
    )
    if production is not None:
        runner.put(
            "production",
            pa.table(
                {
                    "label": pa.array(list(production.counts), text),
                    "offers": pa.array(list(production.counts.values()), pa.int64()),
                }
            ),
        )


def _run(
    runner: engines.SqlEngine,
    parameters: DatasetParameters,
    production: Production | None,
    say: Callable[[str], None],
) -> None:
    values = {
        "seed": str(parameters.seed),
        "salt": sampling.SALT,
        **sampling.bounds(parameters.validation_share, parameters.test_share),
    }
    runner.show(sampling.VIEW, sampling.statement(sampling.VIEW, values, runner.dialect))
    for number, step in enumerate(STEPS, start=1):
        if not runner.has(step):
            say(f"{step}: {number} of {len(STEPS)}")
            started = time.monotonic()
            runner.make(step, sampling.statement(step, values, runner.dialect))
            if (seconds := time.monotonic() - started) >= SLOW:
                say(f"{step}: {seconds:.1f} s")
        if step == "available" and not runner.rows(
            "SELECT offers FROM available WHERE pool = 'train' LIMIT 1"
        ):
            raise StageError(
                "no labelled offer is left to train on: are the labels this taxonomy's?"
            )
        if step == "offers" and production is None:
            runner.make("production", distributions.BY_LABEL)


def _write(runner: engines.SqlEngine, each: Set, path: Path) -> tuple[int, str]:
    """Writes a set, and gives its rows and a hash of its content."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = schema()
    columns = [f"s.{name}" for name in COLUMNS]
    if each.rule == "production":
        fields = fields.append(pa.field("weight", pa.float64()))
        columns.append("c.weight")
    select = (
        f"SELECT {', '.join(columns)} FROM chosen AS c JOIN selected AS s ON s.row_id = c.row_id"  # noqa: S608
        f" WHERE c.name = '{each.name}' ORDER BY c.draw, c.row_id"
    )
    digest = hashlib.sha256(msgspec.json.encode(fields.names))
    rows = 0
    with appearing(path) as file, pq.ParquetWriter(file, fields, compression="zstd") as writer:
        for table in _groups(runner.batches(select, fields.names), fields):
            for column in table.columns:
                digest.update(msgspec.json.encode(column.to_pylist()))
            writer.write_table(table, row_group_size=ROW_GROUP)
            rows += table.num_rows
    return rows, digest.hexdigest()


def _groups(batches: Iterable[pa.RecordBatch], fields: pa.Schema) -> Iterator[pa.Table]:
    """The batches as tables of ROW_GROUP rows each, so that their sizes leave no trace."""
    import pyarrow as pa

    held: list[pa.Table] = []
    rows = 0
    for batch in batches:
        held.append(pa.table(batch.columns, names=fields.names).cast(fields))
        rows += batch.num_rows
        if rows >= ROW_GROUP:
            whole = pa.concat_tables(held).combine_chunks()
            while whole.num_rows >= ROW_GROUP:
                yield whole.slice(0, ROW_GROUP)
                whole = whole.slice(ROW_GROUP)
            held, rows = [whole], whole.num_rows
    if rows:
        yield pa.concat_tables(held).combine_chunks()


def _left_out(figures: Mapping[str, Any], edition: str) -> Iterator[str]:
    """What of the lake cannot be used, where that is more than nothing."""
    of = figures["lake"]
    if of["labels_lost"]:
        most = sorted(figures["lost_labels"].items(), key=lambda item: (-item[1], item[0]))[:3]
        examples = ", ".join(f"{label!r} {count:,}" for label, count in most)
        yield (
            f"{of['labels_lost']:,} labelled offers have no label in edition {edition}, most of"
            f" {examples}; are the lake's labels of another edition?"
        )
    if of["without_text"]:
        yield f"{of['without_text']:,} offers without a usable text are left out"
    if of["without_id"]:
        yield f"{of['without_id']:,} rows without an offer_id are left out"
    if figures["needs_labels"]:
        yield f"{len(figures['needs_labels']):,} categories need labels: see dataset.json"


def _summary(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "lake_offers": figures["lake"]["offers"],
        "labels_lost": figures["lake"]["labels_lost"],
        **{f"{name}_offers": each["drawn"] for name, each in figures["sets"].items()},
        "test_effective_sample_size": round(figures["test"]["effective_sample_size"], 1),
        "test_uncovered_mass": round(figures["test"]["uncovered_mass"], 6),
        "categories_that_need_labels": len(figures["needs_labels"]),
    }


def _check(production: Production, sets: list[Set]) -> None:
    total = sum(production.counts.values())
    if total <= 0:
        raise StageError("production: no offers of any category of this taxonomy are counted")
    if total * max(each.offers for each in sets) >= MOST_COUNTED:
        raise StageError(f"production: {total} offers are too many to count with")


def _hash(production: Production | None) -> str:
    encoded = msgspec.json.encode(production and [production.counts, production.lost])
    return hashlib.sha256(encoded).hexdigest()
