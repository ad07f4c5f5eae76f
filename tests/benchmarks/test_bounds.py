"""A figure that falls short is named, after all of them were measured, and is exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Callable

import psutil
import pytest

from benchmarks import __main__ as everything
from benchmarks import (
    bounds,
    encoder,
    linear,
    memory,
    sample_difficulty,
    sample_speed,
    service,
    stages,
    worker,
)


def measuring(order: list[str], name: str, *short: str) -> Callable[[], list[str]]:
    def measure() -> list[str]:
        order.append(name)
        return list(short)

    return measure


def test_what_falls_short_is_named_after_all_were_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    monkeypatch.setattr(stages, "measure", measuring(order, "stages"))
    monkeypatch.setattr(worker, "measure", measuring(order, "worker", "too slow", "too small"))
    monkeypatch.setattr(encoder, "measure", measuring(order, "encoder"))
    monkeypatch.setattr(memory, "measure", measuring(order, "memory", "too large"))
    monkeypatch.setattr(linear, "measure", measuring(order, "linear"))
    monkeypatch.setattr(sample_speed, "measure", measuring(order, "sample"))
    with pytest.raises(SystemExit) as ended:
        everything.main()
    assert ended.value.code == 1
    assert order == ["stages", "worker", "encoder", "memory", "linear", "sample"]
    assert capsys.readouterr().err.splitlines() == [
        "falls short: The worker without the encoder: too slow",
        "falls short: The worker without the encoder: too small",
        "falls short: Memory: too large",
    ]


def test_nothing_that_falls_short_is_a_plain_end(capsys: pytest.CaptureFixture[str]) -> None:
    bounds.end([])
    assert capsys.readouterr().err == ""


def test_a_command_takes_its_arguments_as_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(offers: int = 10) -> list[str]:
        return [f"{offers} offers"]

    monkeypatch.setattr(sys, "argv", ["bench", "--offers", "7"])
    with pytest.raises(SystemExit) as ended:
        bounds.command(measure)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "falls short: 7 offers\n"


def test_a_slow_sample_catalogue_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_speed, "LEAST_RATE", 1)
    assert sample_speed.measure(count=100) == []
    monkeypatch.setattr(sample_speed, "LEAST_RATE", 10**12)
    (line,) = sample_speed.measure(count=100)
    assert line.endswith("events a CPU second, not 1,000,000,000,000")


@pytest.mark.parametrize(
    ("accuracy", "short"), [(0.799, 1), (0.8, 0), (0.87, 0), (0.92, 0), (0.921, 1)]
)
def test_a_sample_catalogue_too_hard_or_too_easy_falls_short(accuracy: float, short: int) -> None:
    assert len(sample_difficulty.outside(accuracy)) == short


def test_the_difficulty_that_is_measured_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_difficulty, "BOUNDS", (1.1, 1.2))
    (line,) = sample_difficulty.measure(train=400, test=30, cost=1.0)
    assert line.endswith(", not 1.10 to 1.20")


def test_the_peak_of_a_process_is_what_it_once_held() -> None:
    code = "x = bytearray(200_000_000); del x; print('done', flush=True); input()"
    with psutil.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout.readline() == b"done\n"
        now, peak = process.memory_info().rss, service._peak(process)
        process.stdin.write(b"\n")
    assert now < 150_000_000
    if sys.platform == "linux":
        assert 200_000_000 < peak < 300_000_000
