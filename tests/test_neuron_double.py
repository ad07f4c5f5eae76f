"""The stand-in for Neuron refuses what the vendor's documents refuse, or it would prove nothing."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.neuron import machine

EXAMPLE = (torch.ones((2, 4), dtype=torch.int64), torch.ones((2, 4), dtype=torch.int64))
OPTIONS: dict[str, Any] = {"compiler_args": ["--target", "inf2"], "cpu_backend": True}


class Product(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.layer(ids.float() / 3 * mask.float())
        return product


@pytest.fixture(autouse=True)
def neuronx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with machine(tmp_path_factory.mktemp("drivers")), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own of TorchScript
        import torch_neuronx  # type: ignore[import-not-found]

        yield torch_neuronx


@pytest.fixture
def saved(neuronx: Any, tmp_path: Path) -> Path:
    torch.jit.save(neuronx.trace(Product(), EXAMPLE, **OPTIONS), tmp_path / "saved.pt")
    return tmp_path / "saved.pt"


def load(file: Path) -> Any:
    return torch.jit.load(file)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n: n.trace(Product(), EXAMPLE, {}), "options by keyword"),
        (lambda n: n.trace(Product(), EXAMPLE, cpu_backend=True), "cpu_backend needs --target"),
        (
            lambda n: n.trace(Product(), EXAMPLE, compiler_args="--target inf9", cpu_backend=True),
            "unrecognized arguments: --target inf9",
        ),
        (
            lambda n: n.trace(Product(), EXAMPLE, compiler_args=["--fast", "1"], cpu_backend=True),
            "unrecognized arguments: --fast 1",
        ),
    ],
)
def test_the_compiler_is_asked_as_documented(
    neuronx: Any, call: Callable[[Any], object], message: str
) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        call(neuronx)


def test_a_graph_takes_its_one_shape_and_type(saved: Path) -> None:
    graph = load(saved)
    ids, mask = EXAMPLE
    graph(ids, mask)
    for wrong in (ids[:1], ids[:, :3], ids.to(torch.int32)):
        with pytest.raises(RuntimeError, match="Incorrect input tensor at position 0"):
            graph(wrong, mask)
    with pytest.raises(RuntimeError, match="Incorrect input tensor at position 1"):
        graph(ids, mask.to(torch.int32))


def test_a_run_that_meets_no_number_fails(neuronx: Any) -> None:
    model = Product()
    model.layer.bias.data[0] = float("nan")
    with pytest.raises(RuntimeError, match="INFER_ERROR_SUBTYPE_NUMERICAL"):
        neuronx.trace(model, EXAMPLE, **OPTIONS)(*EXAMPLE)


def test_load_flags_come_before_saving(neuronx: Any, tmp_path: Path, saved: Path) -> None:
    traced = neuronx.trace(Product(), EXAMPLE, **OPTIONS)
    neuronx.async_load(traced)
    neuronx.lazy_load(traced)
    torch.jit.save(traced, tmp_path / "flagged.pt")
    for late in (traced, load(saved)):
        for flag in (neuronx.async_load, neuronx.lazy_load):
            with pytest.raises(RuntimeError, match="after trace and before saving"):
                flag(late)


def test_a_lazy_graph_takes_its_core_at_its_first_run(
    neuronx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = neuronx.trace(Product(), EXAMPLE, **OPTIONS)
    neuronx.lazy_load(traced)
    torch.jit.save(traced, tmp_path / "lazy.pt")
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "0")
    graph = load(tmp_path / "lazy.pt")
    with pytest.raises(RuntimeError, match="could not be initialized"):
        graph(*EXAMPLE)


def test_products_are_of_rounded_operands_and_nothing_else_is(neuronx: Any, tmp_path: Path) -> None:
    model = Product()
    exact = model(*EXAMPLE)
    whole = {"compiler_args": ["--target", "inf2", "--auto-cast", "none"], "cpu_backend": True}
    assert torch.equal(neuronx.trace(model, EXAMPLE, **whole)(*EXAMPLE), exact)
    weight, bias = model.layer.weight, model.layer.bias
    operands = (EXAMPLE[0].float() / 3).bfloat16().float(), weight.bfloat16().float()
    rounded = neuronx.trace(model, EXAMPLE, **OPTIONS)(*EXAMPLE)
    torch.testing.assert_close(rounded, operands[0] @ operands[1].T + bias)
    assert not torch.equal(rounded, exact)


def test_weights_are_compiled_in(neuronx: Any) -> None:
    model = Product()
    traced = neuronx.trace(model, EXAMPLE, **OPTIONS)
    before = traced(*EXAMPLE)
    model.layer.bias.data += 1
    assert torch.equal(traced(*EXAMPLE), before)


def test_a_graph_is_loaded_only_where_the_package_was_imported(saved: Path) -> None:
    code = f"import torch; torch.jit.load({str(saved)!r})"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "Unknown builtin op: neuron::" in ended.stderr
