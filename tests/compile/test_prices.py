"""What a million offers cost, by hand; and price files that people edit, read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from compile.prices import Instance, PriceError, load_prices, load_published

GOOD = """\
currency: EUR
region: eu-central-1
date: 2026-03-01
source: our contract
instances:
  ours.large: {price: 0.36, vcpus: 2, verified: false}
  theirs.xlarge: {price: 1.0, vcpus: 4, gpus: 1, neuron_cores: 2}
"""
FIGURE = """\
figures:
  - instance: theirs.xlarge
    target: torch-cuda
    device: a GPU
    model: BERT
    precision: fp16
    batch: 8
    length: 128
    offers_per_second: 1000
    version: "1"
    source: https://example.org
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_million_offers_cost_the_hours_that_they_take() -> None:
    # Two workers of 50 offers a second do 360,000 an hour, which costs 0.36.
    assert Instance(price=0.36, vcpus=2).million(50.0, 2) == pytest.approx(1.0)
    # AWS's own sum for BERT on inf1.xlarge: 1,056 a second at 0.228 an hour are 0.060 a million.
    assert round(Instance(price=0.228, vcpus=4).million(1056 / 4, 4), 3) == 0.060


def test_workers_are_cores_gpus_or_neuron_cores(tmp_path: Path) -> None:
    prices = load_prices(written(tmp_path, GOOD))
    workers = {
        target: prices.instance("theirs.xlarge", target)[1]
        for target in ("onnx-cpu", "torch-cpu", "linear-cpu", "torch-cuda", "neuron-inf2")
    }
    assert workers == {
        "onnx-cpu": 4, "torch-cpu": 4, "linear-cpu": 4, "torch-cuda": 1, "neuron-inf2": 2
    }  # fmt: skip
    with pytest.raises(PriceError, match=r"ours\.large has no device for target torch-cuda"):
        prices.instance("ours.large", "torch-cuda")
    with pytest.raises(PriceError, match=r"no price of an instance 'x'; there are ours\.large, th"):
        prices.instance("x", "onnx-cpu")


def test_shipped_prices_are_dated_and_cover_what_is_published() -> None:
    prices = load_prices()
    assert {name.partition(".")[0] for name in prices.instances} >= {
        "c7g", "c7i", "g5", "g6", "inf1", "inf2"
    }  # fmt: skip
    assert prices.region == "us-east-1"
    figures = load_published()
    assert {figure.target for figure in figures} >= {"neuron-inf1", "neuron-inf2", "torch-cuda"}
    for figure in figures:
        assert prices.instance(figure.instance, figure.target)[1] >= 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("price: 0.36", "price: -0.36", "price of ours.large is -0.36, must be positive"),
        ("price: 0.36", "price: 0", "price of ours.large is 0.0, must be positive"),
        ("price: 0.36", "price: .nan", "price of ours.large is nan, must be positive"),
        ("price: 0.36", "price: .inf", "price of ours.large is inf, must be positive"),
        ("price: 0.36", "price: cheap", "Expected `float`, got `str`"),
        ("price: 0.36, ", "", "missing required field `price`"),
        ("vcpus: 2", "vcpus: 0", "vcpus of ours.large is 0, must be at least 1"),
        ("gpus: 1", "gpus: -1", "gpus of theirs.xlarge is -1, must not be negative"),
        ("vcpus: 2", "cores: 2, vcpus: 2", "unknown field `cores`"),
        ("region:", "zone: a\nregion:", "unknown field `zone`"),
        ("date: 2026-03-01\n", "", "missing required field `date`"),
        ("date: 2026-03-01", "date: March", "Invalid RFC3339"),
        ("region: eu-central-1", "region: ' '", "region is empty"),
        ("theirs.xlarge", "ours.large", "'ours.large' stands there twice"),
        ("instances:", "instances: {}\nx:", "unknown field `x`"),
        ("currency: EUR", "currency: [", "is not YAML (line"),
        (GOOD, "", "Expected `object`, got `null`"),
    ],
)
def test_bad_price_file_is_refused_in_one_line(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(PriceError) as refusal:
        load_prices(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_missing_price_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r"none\.yaml: cannot be read: No such file"):
        load_prices(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("offers_per_second: 1000", "offers_per_second: 0", "figure 1: offers_per_second is 0"),
        ("length: 128", "length: 0", "figure 1: batch and length must be at least 1"),
        ("source: https://example.org", "source: hearsay", "figure 1: its source is no https"),
        ("    source: https://example.org\n", "", "missing required field `source`"),
        ("device: a GPU", "device: a GPU\n    speed: 3", "unknown field `speed`"),
    ],
)
def test_published_figure_without_a_source_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert len(load_published(written(tmp_path, FIGURE))) == 1
    with pytest.raises(PriceError) as refusal:
        load_published(written(tmp_path, FIGURE.replace(old, new)))
    assert said in str(refusal.value)
