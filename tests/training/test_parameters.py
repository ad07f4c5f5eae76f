"""pipeline.yaml: what it says is what runs, and what it cannot mean is refused with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from classifier.text import DEFAULT_RECIPE
from training.parameters import ParameterError, load

PROJECT = Path(__file__).parents[2] / "pipeline.yaml"


def test_projects_own_file_says_what_the_baseline_is() -> None:
    parameters = load(PROJECT)
    assert parameters.baseline.recipe() == DEFAULT_RECIPE
    assert parameters.baseline.words == (1, 2)
    assert parameters.baseline.letters == (3, 5)


def test_override_replaces_one_value(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("dataset: {seed: 3, cap: 100, floor: 2}\n")
    parameters = load(file, ["dataset.cap=7", "baseline.costs=[1]", "baseline.fields={title: 600}"])
    assert (parameters.dataset.seed, parameters.dataset.cap) == (3, 7)
    assert parameters.baseline.costs == (1.0,)
    assert [field.name for field in parameters.baseline.recipe().fields] == ["title"]


def test_empty_file_means_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("")
    assert load(file).dataset.training_offers == 60_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("dataset: {sed: 1}", r"dataset.sed: Extra inputs are not permitted"),
        ("datset: {}", r"datset: Extra inputs"),
        ("dataset: {cap: many}", r"dataset.cap: Input should be a valid integer"),
        ("dataset: {cap: 0}", r"dataset.cap: Input should be greater"),
        ("dataset: {floor: 9, cap: 8}", r"dataset: .*floor is above cap"),
        ("dataset: {test_share: 0.9, validation_share: 0.2}", r"leave nothing to train on"),
        ("baseline: {costs: []}", r"baseline.costs: "),
        ("baseline: {costs: [1.0, 0.0]}", r"a cost must be positive"),
        ("baseline: {words: null, letters: null}", r"neither words nor letters"),
        ("baseline: {letters: [5, 3]}", r"n-grams of 5 to 3 are none"),
        ("baseline: {fields: {price: 9}}", r"names 'price'"),
        ("dataset: {seed: 1}\ndataset: {cap: 9}", r"'dataset' stands there twice"),
        ("baseline: {fields: {}}", r"baseline.fields: "),
        ("baseline: {seed: 5000000000}", r"baseline.seed: "),
        ("dataset: {memory: 1GB'; SELECT 1}", r"dataset.memory: "),
        ("dataset: {threads: 100000}", r"dataset.threads: "),
        ("lake: {offers: &a [*a]}", r"must|recursion"),
        ("lake: " + "[" * 3_000, r"is no YAML: "),
        ("- a", r"must be a mapping of stages"),
        ("a: [", r"is no YAML: "),
        ("dataset: 3", r"dataset: "),
    ],
)
def test_what_it_cannot_mean_is_refused_with_one_line(
    tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(content)
    with pytest.raises(ParameterError, match=said) as refused:
        load(file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("override", ["dataset.cap", "cap=1", "=1", "dataset.=1", "dataset.cap=["])
def test_override_that_is_none_is_refused(tmp_path: Path, override: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("")
    with pytest.raises(ParameterError, match="--set"):
        load(file, [override])


def test_override_that_is_wrong_is_blamed_and_not_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("")
    with pytest.raises(ParameterError, match=r"--set dataset.cap=0: Input should be greater"):
        load(file, ["dataset.cap=0"])


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"missing.yaml: cannot be read: No such file"):
        load(tmp_path / "missing.yaml")
