"""The cost table: every shape is run, the SVM takes its turns, and what is not measured says so."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from classifier.artifact import Artifact, current
from classifier.engines.onnx import OnnxEngine
from classifier.model import Asked, Model
from classifier.offer import Offer
from compile import bench, neuron
from compile.bench import BenchError, Cell, Measured, Report, Subject
from compile.buckets import Shape
from compile.build import build
from compile.cli import app
from compile.prices import PriceError, load_prices, load_published
from tests.neuron import machine
from training.baseline import make
from training.parameters import BaselineParameters
from training.tiny import tiny_offers

QUICK = BaselineParameters(costs=(1.0,), tuning_offers=60)


@pytest.fixture(scope="module")
def offers() -> list[Offer]:
    return [offer for offer, _ in tiny_offers(each=2)]


@pytest.fixture(scope="module")
def svm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear SVM on the tiny model's categories."""
    directory = tmp_path_factory.mktemp("svm")
    files = {}
    for seed, name in enumerate(("train", "validation")):
        lines = [
            msgspec.json.encode(msgspec.to_builtins(offer) | {"label": label})
            for offer, label in tiny_offers(seed=seed, each=3)
        ]
        files[name] = directory / f"{name}.jsonl"
        files[name].write_bytes(b"\n".join(lines))
    artifacts = directory / "artifacts"
    make(QUICK, files["train"], files["validation"], None, artifacts, lambda _: None)
    return current(artifacts)


@pytest.fixture(autouse=True)
def short_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "VISIT_SECONDS", 0.0)


@pytest.fixture(scope="module")
def subject(artifact: Path) -> Subject:
    return Subject(Artifact.load(artifact))


@pytest.fixture(scope="module")
def report(
    artifact: Path, svm: Path, offers: list[Offer], tmp_path_factory: pytest.TempPathFactory
) -> Report:
    file = tmp_path_factory.mktemp("offers") / "offers.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, offers)))
    return bench.bench(
        [artifact], svm, offers=file, batches=(1, 4), lengths=(8, 24), seconds=0,
        instance="c7g.large",
    )  # fmt: skip


def test_every_shape_of_the_grid_is_run(
    artifact: Path, offers: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[tuple[int, int]] = Counter()
    compute = OnnxEngine.logits

    def logits(
        engine: OnnxEngine, ids: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        if (lengths == ids.shape[1]).all():
            asked[ids.shape[0], ids.shape[1]] += 1
        return compute(engine, ids, lengths)

    monkeypatch.setattr(OnnxEngine, "logits", logits)
    measured = bench.measure(
        [Artifact.load(artifact)], None, offers, batches=(3, 7), lengths=(5, 32), seconds=0
    )
    grid = [cell for cell in measured.cells if cell.what == "grid"]
    assert [(cell.batch, cell.length) for cell in grid] == [(3, 5), (3, 32), (7, 5), (7, 32)]
    # Once to warm up, once in the only round.
    assert measured.rounds == 1
    assert {shape: asked[shape] for shape in ((3, 5), (3, 32), (7, 5), (7, 32))} == {
        (3, 5): 2, (3, 32): 2, (7, 5): 2, (7, 32): 2
    }  # fmt: skip


def test_cells_take_turns_and_the_first_does_not_count(subject: Subject) -> None:
    turns: list[str] = []

    def ask(name: str) -> Cell:
        def asked() -> int:
            turns.append(name)
            return 1

        return Cell(subject, name, 1, 1, asked)

    cells = [ask("a"), ask("b")]
    assert bench.take_turns(cells, time.monotonic() + 0.01) > 1
    assert turns[:6] == ["a", "b"] * 3
    assert len(cells[0].clock) == len(cells[1].processor) == len(turns) // 2 - 1


def test_both_are_measured_whole_and_in_the_engine_alone(report: Report, svm: Path) -> None:
    measured = [row for row in report.rows if row.figure == "measured"]
    whats = Counter((row.target, row.what) for row in measured)
    assert whats == {
        ("onnx-cpu", "whole"): 1, ("onnx-cpu", "engine"): 1, ("onnx-cpu", "grid"): 4,
        ("linear-cpu", "whole"): 1, ("linear-cpu", "engine"): 1,
    }  # fmt: skip
    linear = [row for row in measured if row.target == "linear-cpu"]
    assert {row.model for row in linear} == {svm.name}
    assert [row.times_svm for row in linear] == [1.0, None]
    for row in measured:
        assert row.each > 0
        assert row.clock is not None
    assert {row.what for row in report.rows if row.times_svm is not None} == {"whole"}


def test_encoder_is_held_against_the_svm_on_the_same_offers(report: Report) -> None:
    encoder, linear = (row for row in report.rows if row.what == "whole")
    assert (encoder.target, linear.target) == ("onnx-cpu", "linear-cpu")
    assert encoder.times_svm == pytest.approx(linear.each / encoder.each)


def test_published_figures_are_marked_and_name_their_source(report: Report) -> None:
    published = [row for row in report.rows if row.figure == "published"]
    assert len(published) == len(load_published())
    for row in published:
        assert row.source.startswith("https://")
        assert row.source in bench.table(report)
        assert row.clock is None
        assert row.times_svm is None
    assert {row.figure for row in report.rows} == {"measured", "published"}
    inf2 = next(row for row in published if row.instance == "inf2.xlarge")
    assert inf2.each == inf2.total / 2


def test_price_is_of_the_median_round_and_all_workers(subject: Subject) -> None:
    cell = Cell(subject, "whole", 1, 1, lambda: 1)
    cell.clock, cell.processor = [60.0, 40.0, 50.0], [110.0, 90.0, 100.0]
    (row,) = bench.rows(Measured([cell], 3, None), load_prices(), "c7i.large", ())
    assert (row.each, row.total, row.workers, row.clock) == (100, 200, 2, 50)
    # 200 a second are 720,000 an hour, and an hour is 0.08925.
    assert row.million == pytest.approx(0.08925 / 0.72)


def test_what_waits_costs_the_clock_and_no_processor_time(subject: Subject) -> None:
    def wait() -> int:
        time.sleep(0.05)
        return 10

    cell = Cell(subject, "whole", 1, 1, wait)
    cell.visit(0.0)
    assert cell.clock[0] <= 200
    assert cell.processor[0] > 2 * cell.clock[0]


def test_equal_texts_are_asked_once(
    subject: Subject, offers: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = list({subject.model.recipe.text(offer): offer for offer in offers}.values())[:30]
    asked: list[list[Offer]] = []
    ask = Model.ask

    def heard(model: Model, some: Iterable[Offer]) -> Asked:
        asked.append(list(some))
        return ask(model, asked[-1])

    monkeypatch.setattr(Model, "ask", heard)
    monkeypatch.setattr(bench, "CHUNK", 10)
    whole, _ = subject.on_offers([*first[:15], *first])
    asked.clear()
    assert [whole.ask() for _ in range(4)] == [10] * 4
    assert asked == [first[:10], first[10:20], first[20:], first[:10]]


def test_no_chunk_is_smaller_than_a_worker_would_ask(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, offers: list[Offer]
) -> None:
    monkeypatch.setattr(bench, "CHUNK", 30)
    assert len(offers) % 30
    whole, engine = subject.on_offers(offers)
    assert [cell.ask() for cell in (whole, engine) for _ in range(4)] == [30] * 8


def test_table_is_markdown_with_a_row_for_each(report: Report) -> None:
    said, blank, head, rule, *lines = bench.table(report).splitlines()
    assert "one round" in said
    assert report.prices in said
    assert f"onnxruntime {report.versions['onnxruntime']}" in said
    assert blank == ""
    body = [line for line in lines if line.startswith("|")]
    assert len(body) == len(report.rows)
    assert {line.count("|") for line in (head, rule, *body)} == {head.count("|")}
    assert all(("published" in line) == (i >= 8) for i, line in enumerate(body))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            "model name\t: Intel(R) Xeon(R)\nflags\t: fpu avx512f avx2 amx_int8\nmodel name\t: X\n",
            "Intel(R) Xeon(R) (avx2, avx512f, amx_int8)",
        ),
        ("processor\t: 0\nFeatures\t: fp asimd sve bf16\n", "(asimd, sve, bf16)"),
    ],
)
def test_processor_is_named_with_its_instructions(told: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(told, encoding="utf-8")
    assert bench.machine(tmp_path).endswith(said)
    assert bench.machine(tmp_path / "none")


def test_unverified_price_is_marked(report: Report) -> None:
    row = msgspec.structs.replace(report.rows[0], verified=False)
    table = bench.table(msgspec.structs.replace(report, rows=(row,)))
    assert "c7g.large (unverified price)" in table
    assert "unverified" not in bench.table(report)


def test_busy_machine_is_said(report: Report) -> None:
    row = msgspec.structs.replace(report.rows[0], each=100.0, clock=50.0)
    assert "2.0 times slower" in bench.table(msgspec.structs.replace(report, rows=(row,)))
    row = msgspec.structs.replace(row, clock=99.0)
    assert "slower" not in bench.table(msgspec.structs.replace(report, rows=(row,)))


def test_what_cannot_be_priced_is_refused_before_anything_is_measured(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", pytest.fail)
    with pytest.raises(PriceError, match="no price of an instance 'c99'"):
        bench.bench([artifact], instance="c99")
    with pytest.raises(BenchError, match="is of kind encoder, no linear SVM"):
        bench.bench([artifact], artifact)


def test_text_longer_than_the_model_takes_is_refused(subject: Subject) -> None:
    with pytest.raises(BenchError, match="takes at most 32 tokens, not 33"):
        subject.on_grid((1,), (33,))
    assert {cell.length for cell in subject.on_grid((1,), ())} == {16, 32}


def test_first_offers_are_read_from_both_kinds_of_file(
    tmp_path: Path, offers: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, table = tmp_path / "offers.jsonl", tmp_path / "offers.parquet"
    lines.write_bytes(b"\n".join(map(msgspec.json.encode, offers)))
    columns = [msgspec.to_builtins(offer) | {"label": "x"} for offer in offers]
    pq.write_table(pa.Table.from_pylist(columns), table)
    monkeypatch.setattr(bench, "MOST_OFFERS", 7)
    for file in (lines, table):
        found = bench.offers_of(file)
        assert [offer.offer_id for offer in found] == [offer.offer_id for offer in offers[:7]]
        assert [offer.title for offer in found] == [offer.title for offer in offers[:7]]


def test_file_without_offers_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"\n")
    with pytest.raises(BenchError, match="holds no offers"):
        bench.offers_of(empty)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"title": ["x"]}), other)
    with pytest.raises(BenchError, match=r"row 1: no offer: .*offer_id"):
        bench.offers_of(other)


def test_device_is_paid_by_the_clock(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(subject, "whole", 1, 1, lambda: 1, [50.0], [100.0])
    assert cell.pace == 100.0
    monkeypatch.setattr(Subject, "on_cpu", False)
    assert cell.pace == 50.0


def test_neuron_artefact_is_measured_by_its_engine_and_priced_by_its_cores(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neuron, "shapes", lambda *_, **__: [Shape(8, 32)])
    file = tmp_path / "offers.jsonl"
    file.write_bytes(b"\n".join(msgspec.json.encode(offer) for offer, _ in tiny_offers(each=1)))
    (tmp_path / "drivers").mkdir()
    with machine(tmp_path / "drivers"):
        inf2 = build(artifact.parent / "checkpoint", "neuron-inf2", tmp_path)
        report = bench.bench(
            [inf2], offers=file, batches=(8,), lengths=(32,), seconds=0, instance="inf2.xlarge"
        )
    measured = [row for row in report.rows if row.figure == "measured"]
    assert [row.what for row in measured] == ["whole", "engine", "grid"]
    for row in measured:
        assert (row.target, row.device, row.workers) == ("neuron-inf2", "neuron-inf2", 2)
        assert row.each == row.clock == row.total / 2
        assert row.million == pytest.approx(0.7582 / (row.total * 3600) * 1e6)


def test_sample_catalogue_stands_in_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MOST_OFFERS", 20)
    assert len(bench.offers_of(None)) == 20


def test_command_prints_the_table_and_writes_the_figures(
    artifact: Path, svm: Path, tmp_path: Path, offers: list[Offer]
) -> None:
    file, written = tmp_path / "offers.jsonl", tmp_path / "figures.json"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, offers)))
    done = CliRunner().invoke(
        app,
        ["bench", "--model", str(artifact.parent), "--against", str(svm), "--offers", str(file),
         "--batch", "2", "--length", "9", "--seconds", "0", "--instance", "c7i.large",
         "--json", str(written)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report = msgspec.json.decode(written.read_bytes(), type=Report)
    assert done.stdout == bench.table(report) + "\n"
    grid = [(row.batch, row.length) for row in report.rows if row.what == "grid"]
    assert grid == [(2, 9)]
    assert report.offers == f"{len(offers)} of {file}"


def test_own_mistakes_are_one_line_and_an_exit_code(artifact: Path, tmp_path: Path) -> None:
    def ended(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["bench", *arguments])
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        return done.exit_code, done.stderr

    model = str(artifact)
    prices = tmp_path / "prices.yaml"
    prices.write_text("instances: {}\n", encoding="utf-8")
    for code, said, arguments in (
        (2, "no price of an instance 'c99'", ("--model", model, "--instance", "c99")),
        (2, "missing required field", ("--model", model, "--prices", str(prices))),
        (2, "no linear SVM", ("--model", model, "--against", model)),
        (2, "cannot read", ("--model", model, "--offers", str(tmp_path / "none.jsonl"))),
        (3, "no such directory", ("--model", str(tmp_path / "none"))),
    ):
        ending = ended(*arguments)
        assert ending[0] == code
        assert said in ending[1]
