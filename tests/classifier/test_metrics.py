"""Totals are exact, never go back, and cost next to nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import prometheus_client
import pytest
from prometheus_client import values as prometheus_values

from classifier import metrics
from classifier.metrics import Metrics
from tests.classifier.exposition import samples

ROOT = Path(__file__).parents[2]


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
