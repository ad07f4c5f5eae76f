"""Totals are exact, never go back, and cost next to nothing."""

from __future__ import annotations

import math
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import values as prometheus_values
from prometheus_client.parser import text_string_to_metric_families

from classifier import metrics
from classifier.metrics import Metrics

ROOT = Path(__file__).parents[2]


def samples(exposition: bytes) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition.decode())
        for sample in family.samples
    }


def batch(counted: Metrics, categories: list[str], scores: np.ndarray) -> None:
    """What a worker records of one batch of 1,000 offers."""
    counted.offers.inc("classified", 900)
    counted.offers.inc("uncertain", 95)
    counted.offers.inc("dead_letter", 5)
    counted.writes.inc("inserted", 500)
    counted.writes.inc("updated", 450)
    for stage in metrics.STAGES:
        counted.stage_seconds.observe(stage, 0.012)
    for _ in range(8):
        counted.batch_offers.observe(120)
        counted.batch_tokens.observe(3_500)
    counted.tokens.inc("real", 20_000)
    counted.tokens.inc("padding", 800)
    counted.cache.inc("hit", 700)
    counted.cache.inc("miss", 300)
    counted.score.observe_many(scores)
    counted.offer_age_seconds.observe_many(scores)
    counted.predictions.inc_many(categories)
    counted.truncated.inc("characters", 3)


# What is shown


def test_every_series_has_its_name_and_expected_ones_start_at_zero(tmp_path: Path) -> None:
    metrics.for_worker(0, tmp_path)
    shown = samples(metrics.scrape(tmp_path))
    zero: dict[tuple[str, ...], float] = {
        ("classifier_offers_total", outcome): 0
        for outcome in (
            "classified",
            "uncertain",
            "removed",
            "superseded",
            "skipped",
            "dead_letter",
        )
    }
    zero |= {("classifier_writes_total", r): 0 for r in ("inserted", "updated", "unchanged")}
    zero |= {("classifier_tokens_total", kind): 0 for kind in ("real", "padding")}
    zero |= {("classifier_cache_total", result): 0 for result in ("hit", "miss")}
    zero |= {("classifier_retries_total", t): 0 for t in ("mongodb", "kafka", "dead_letters")}
    zero |= {("classifier_truncated_total", limit): 0 for limit in ("characters", "tokens")}
    zero[("classifier_rebalances_total",)] = 0
    zero |= {
        ("classifier_stage_seconds_count", stage): 0
        for stage in ("fetch", "decode", "tokenise", "queue", "infer", "write", "commit")
    }
    zero |= {
        (f"classifier_{name}_count",): 0
        for name in ("batch_offers", "batch_tokens", "score", "offer_age_seconds")
    }
    assert shown.items() >= zero.items()
    # Those whose labels nobody knows beforehand have no series yet.
    assert not [key for key in shown if key[0].startswith("classifier_predictions")]


def test_slots_are_summed(tmp_path: Path) -> None:
    for slot in range(3):
        counted = metrics.for_worker(slot, tmp_path)
        counted.offers.inc("classified", 10)
        counted.rebalances.inc()
        counted.predictions.inc_many(["kettles", "sofas", "kettles"])
        counted.score.observe_many([0.25, 0.5])
        counted.stage_seconds.observe("infer", 0.02)
    shown = samples(metrics.scrape(tmp_path))
    assert shown["classifier_offers_total", "classified"] == 30
    assert shown[("classifier_rebalances_total",)] == 3
    assert shown["classifier_predictions_total", "kettles"] == 6
    assert shown[("classifier_score_sum",)] == 2.25
    assert shown["classifier_score_bucket", "0.3"] == 3
    assert shown["classifier_score_bucket", "+Inf"] == 6
    assert shown["classifier_stage_seconds_count", "infer"] == 3


def test_collectors_are_shown_beside_the_slots(tmp_path: Path) -> None:
    registry = prometheus_client.CollectorRegistry()
    gauge = prometheus_client.Gauge("classifier_x", "x", registry=registry)
    gauge.set(4)
    assert samples(metrics.scrape(tmp_path, gauge)) == {("classifier_x",): 4}


# Restarts


def test_a_restarted_worker_counts_on(tmp_path: Path) -> None:
    for life in range(1, 201):
        counted = metrics.for_worker(0, tmp_path)
        assert counted.offers.value("classified") == 50 * (life - 1)
        counted.offers.inc("classified", 50)
        counted.predictions.inc("kettles", 50)
        counted.score.observe_many([0.5] * 50)
        counted.rebalances.inc()
    shown = samples(metrics.scrape(tmp_path))
    assert shown["classifier_offers_total", "classified"] == 10_000
    assert shown["classifier_predictions_total", "kettles"] == 10_000
    assert shown[("classifier_score_count",)] == 10_000
    assert counted.score.count == 10_000
    assert counted.score.sum == 5_000
    assert counted.rebalances.value == 200
    assert len(list(tmp_path.iterdir())) == 2
    began = time.perf_counter()
    metrics.scrape(tmp_path)
    assert time.perf_counter() - began < 1


def test_what_was_counted_before_a_kill_stays_counted(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from classifier import metrics\n"
        "counted = metrics.for_worker(0, Path(sys.argv[1]))\n"
        "for _ in range(1_000):\n"
        "    counted.offers.inc('classified', 3)\n"
        "    counted.score.observe_many([0.5, 0.7])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL
    shown = samples(metrics.scrape(tmp_path))
    assert shown["classifier_offers_total", "classified"] == 6_000
    assert shown[("classifier_score_count",)] == 4_000


def spoil(path: Path, place: int, bytes_: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes_)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, 500, 4_096, 70_001])
@pytest.mark.parametrize("kind", ["counter", "histogram"])
def test_a_file_that_was_cut_stops_no_start(tmp_path: Path, kind: str, size: int) -> None:
    metrics.for_worker(0, tmp_path).offers.inc("classified", 7)
    os.truncate(tmp_path / f"{kind}_0.db", size)
    counted = metrics.for_worker(0, tmp_path)
    kept = counted.offers.value("classified")
    # The first series of the file outlives a cut behind it.
    assert kept == 7 if kind == "histogram" or size >= 500 else kept in (0, 7)
    counted.offers.inc("classified", 1)
    counted.score.observe(0.5)
    shown = samples(metrics.scrape(tmp_path))
    assert shown["classifier_offers_total", "classified"] == kept + 1


@given(
    spoils=st.lists(
        st.tuples(st.integers(0, 3_000), st.binary(min_size=1, max_size=64)), max_size=8
    ),
    size=st.none() | st.integers(0, 5_000),
)
def test_no_bytes_in_the_files_stop_a_start_or_spoil_a_scrape(
    tmp_path_factory: pytest.TempPathFactory,
    spoils: list[tuple[int, bytes]],
    size: int | None,
) -> None:
    directory = tmp_path_factory.mktemp("run")
    counted = metrics.for_worker(0, directory)
    counted.offers.inc("classified", 7)
    for kind in ("counter", "histogram"):
        for place, bytes_ in spoils:
            spoil(directory / f"{kind}_0.db", place, bytes_)
        if size is not None:
            os.truncate(directory / f"{kind}_0.db", size)
    counted = metrics.for_worker(0, directory)
    before = counted.offers.value("removed")
    counted.offers.inc("removed", 5)
    counted.score.observe_many([0.5])
    assert 0 <= before < math.inf
    assert counted.offers.value("removed") == before + 5
    for value in samples(metrics.scrape(directory)).values():
        assert 0 <= value < math.inf


def test_a_value_that_is_no_count_starts_over_and_its_neighbours_stay(tmp_path: Path) -> None:
    counted = metrics.for_worker(0, tmp_path)
    counted.offers.inc("classified", 7)
    counted.offers.inc("removed", 3)
    data = (tmp_path / "counter_0.db").read_bytes()
    spoil(tmp_path / "counter_0.db", data.index(struct.pack("d", 7)), struct.pack("d", math.nan))
    counted = metrics.for_worker(0, tmp_path)
    assert counted.offers.value("classified") == 0
    assert counted.offers.value("removed") == 3


def test_a_full_disk_is_an_error_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        metrics.for_worker(0, tmp_path)


def test_the_files_have_their_room_from_the_start(tmp_path: Path) -> None:
    counted = metrics.for_worker(0, tmp_path)
    sizes = {path.name: path.stat() for path in tmp_path.iterdir()}
    assert all(stat.st_blocks * 512 >= stat.st_size for stat in sizes.values())
    counted.predictions.inc_many(f"category-{number}" for number in range(2_500))
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        name: stat.st_size for name, stat in sizes.items()
    }


# Labels


def test_the_number_of_series_is_bounded_over_restarts(tmp_path: Path) -> None:
    values = [f'shop "{number}"\n\\ é {"x" * 300}' for number in range(50_000)]
    for part in range(2):
        counted = metrics.for_worker(0, tmp_path)
        counted.predictions.inc_many(values[part::2])
        for number in range(0, 50_000, 100):
            counted.dead_letters.inc(values[number])
            counted.offers.inc(values[number])
    shown = samples(metrics.scrape(tmp_path))
    predictions = {k: v for k, v in shown.items() if k[0] == "classifier_predictions_total"}
    assert len(predictions) == metrics.MOST_CATEGORIES + 1
    assert sum(predictions.values()) == 50_000
    assert predictions["classifier_predictions_total", "other"] == 50_000 - metrics.MOST_CATEGORIES
    assert max(len(key[1]) for key in predictions) == 120
    dead_letters = [key for key in shown if key[0] == "classifier_dead_letters_total"]
    assert len(dead_letters) == metrics.MOST_REASONS + 1
    assert shown["classifier_offers_total", "other"] == 1_000
    began = time.perf_counter()
    metrics.scrape(tmp_path)
    assert time.perf_counter() - began < 1


@given(st.lists(st.text(max_size=200), max_size=20))
def test_any_text_makes_a_valid_exposition(values: list[str]) -> None:
    counted = metrics.in_process()
    counted.predictions.inc_many(values)
    predictions = {
        key: value
        for key, value in samples(prometheus_client.generate_latest(counted.registry)).items()
        if key[0] == "classifier_predictions_total"
    }
    assert sum(predictions.values()) == len(values)


def test_a_lone_surrogate_is_a_label_like_any_other(tmp_path: Path) -> None:
    counted = metrics.for_worker(0, tmp_path)
    counted.predictions.inc("half \ud83d")
    assert samples(metrics.scrape(tmp_path))["classifier_predictions_total", "half ?"] == 1


# Arrays


@given(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True, width=32)
        | st.sampled_from([0.0, 0.05, 0.1, 0.5, 0.99, 1.0, -1.0]),
        max_size=50,
    )
)
def test_an_array_counts_as_its_values_one_by_one_would(values: list[float]) -> None:
    usual = prometheus_client.Histogram(
        "usual", "x", buckets=metrics._SCORES, registry=prometheus_client.CollectorRegistry()
    )
    whole, single = metrics.in_process().score, metrics.in_process().score
    whole.observe_many(np.array(values, dtype=np.float64))
    for value in values:
        single.observe(value)
        if math.isfinite(value):
            usual.observe(value)
    expected = [bucket.get() for bucket in usual._buckets]
    assert [bucket.get() for bucket in whole._buckets] == expected
    assert [bucket.get() for bucket in single._buckets] == expected
    assert whole.count == sum(expected)
    assert whole.sum == pytest.approx(usual._sum.get(), rel=1e-9, abs=1e-30)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_arrays_of_any_kind_and_shape_are_taken(kind: type) -> None:
    counted = metrics.in_process()
    counted.score.observe_many(np.ones((2, 3), dtype=kind))
    assert (counted.score.count, counted.score.sum) == (6, 6)


def test_an_empty_array_is_nothing(tmp_path: Path) -> None:
    counted = metrics.in_process()
    counted.score.observe_many(np.array([]))
    counted.score.observe_many([math.nan])
    counted.predictions.inc_many([])
    counted.offers.inc("classified", 0)
    assert counted.score.count == 0


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf])
def test_a_count_never_falls_and_never_spoils(amount: float) -> None:
    counted = metrics.in_process()
    with pytest.raises(ValueError, match="grows by a finite amount"):
        counted.offers.inc("classified", amount)
    with pytest.raises(ValueError, match="grows by a finite amount"):
        counted.rebalances.inc(amount)
    assert counted.offers.value("classified") == 0


def test_a_stage_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        metrics.in_process().stage_seconds.observe("guess", 1)


# One process, many metrics


def test_metrics_of_one_process_do_not_mix(tmp_path: Path) -> None:
    first, second = metrics.in_process(), metrics.in_process()
    shared = metrics.for_worker(0, tmp_path)
    first.predictions.inc("a", 1)
    shared.predictions.inc("a", 10)
    second.predictions.inc("a", 100)
    shared.predictions.inc("b", 10)
    first.predictions.inc("b", 1)
    assert [counted.predictions.value("a") for counted in (first, second, shared)] == [1, 100, 10]
    assert samples(metrics.scrape(tmp_path))["classifier_predictions_total", "b"] == 10
    assert (
        samples(prometheus_client.generate_latest(first.registry))[
            "classifier_predictions_total", "b"
        ]
        == 1
    )


def test_prometheus_and_the_environment_are_left_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prometheus_values.ValueClass
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    metrics.for_worker(0, tmp_path).predictions.inc("a")
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/elsewhere")
    metrics.for_worker(1, tmp_path).predictions.inc("a")
    assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == "/elsewhere"
    assert prometheus_values.ValueClass is before


# The price


def test_a_batch_of_a_thousand_offers_costs_under_a_millisecond(tmp_path: Path) -> None:
    counted = metrics.for_worker(0, tmp_path)
    random = np.random.default_rng(1)
    categories = [f"category-{number}" for number in random.integers(0, 150, 1_000)]
    scores = random.random(1_000, dtype=np.float32)
    batch(counted, categories, scores)
    took = []
    for _ in range(50):
        began = time.thread_time()
        batch(counted, categories, scores)
        took.append(time.thread_time() - began)
    assert sorted(took)[25] < 1e-3
