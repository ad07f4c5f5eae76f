"""A stand-in for torch-neuronx, which can be installed nowhere but from its vendor's own index.

It enforces what the vendor documents and computes by TorchScript on the CPU:

- `trace` takes its options by keyword, and `--target` with `cpu_backend`; it compiles for fixed
  shapes and data types, and any other input of the result is an error
  (frameworks/torch/torch-neuronx/api-reference-guide/inference/api-torch-neuronx-trace)
- CPU tensors in, CPU tensors out
- `lazy_load` and `async_load` come after `trace` and before `torch.jit.save` (.../api-torch-
  neuronx-async-lazy-load)
- a core belongs to one process until that ends; without NEURON_RT_VISIBLE_CORES or
  NEURON_RT_NUM_CORES a process takes them all (neuron-runtime/nrt-configurable-parameters)
- the runtime refuses what a compiler of another major version made (.../nrt-troubleshoot)
- a runtime that was started before a fork does not work after it
- a run that meets a value that is no number fails (.../nrt-troubleshoot)
- weights are compiled in, so that a later change of the model's own changes nothing
- a saved model is loaded by `torch.jit.load`, and only where this package has been imported
- matrix products of matmult and bf16: rounded operands, sums in fp32 (about-neuron/appnotes/
  neuronx-cc/neuronx-cc-training-mixed-precision)

What the machine is like is said by the environment: NEURON_DOUBLE_CORES, how many cores (0: no
device at all); NEURON_DOUBLE_LOCKS, a directory that stands for the driver: processes that name the
same one share its cores; NEURON_DOUBLE_RUNTIME, the runtime's version.

A device's failures leave one sentence in the exception and the reason on standard error, as the
real ones do. Models of two inputs alone can be traced.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import importlib.metadata
import json
import os
import shlex
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

RUNTIME = "2.33.10.0"
TARGETS = ("inf2", "trn1", "trn1n", "trn2")
VALUES: Mapping[str, tuple[str, ...]] = {
    "--target": TARGETS,
    "--model-type": ("generic", "transformer", "unet-inference"),
    "--auto-cast": ("none", "matmult", "all"),
    "--auto-cast-type": ("bf16", "fp16", "tf32", "fp8_e4m3"),
    "--optlevel": ("1", "2", "3"),
}
INTEGERS = {"torch.int32": torch.int32, "torch.int64": torch.int64}


# The machine


def _cores() -> int:
    return int(os.environ.get("NEURON_DOUBLE_CORES", "2"))


_listdir = os.listdir


def _with_device_files(path: Any = ".") -> list[Any]:
    names = _listdir(path)
    return [*names, "neuron0"] if path == "/dev" and _cores() else names


os.listdir = _with_device_files


def _not_started(reason: str) -> RuntimeError:
    print(f"ERROR  {reason}", file=sys.stderr, flush=True)
    return RuntimeError(
        "The PyTorch Neuron Runtime could not be initialized. Neuron Driver issues are logged\n"
        "to your system logs. See the Neuron Runtime's troubleshooting guide for help on this topic"
    )


class _Runtime:
    """What a process has of the device: cores, from the first load to its end."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], int] = {}  # open files of the locks
        self.process: int | None = None

    def start(self) -> None:
        if self.process not in (None, os.getpid()):
            raise _not_started("NRT:nrt_init  not usable after a fork")
        self.process = os.getpid()
        if not _cores():
            raise _not_started("TDRV:tdrv_get_dev_info  No neuron device available")
        directory = os.environ["NEURON_DOUBLE_LOCKS"]
        for core in _wanted(_cores()):
            if (directory, core) not in self.held:
                self.held[directory, core] = _reserve(directory, core)


def _wanted(cores: int) -> list[int]:
    visible = os.environ.get("NEURON_RT_VISIBLE_CORES")
    if not visible:
        return list(range(int(os.environ.get("NEURON_RT_NUM_CORES") or 0) or cores))
    wanted: list[int] = []
    for part in visible.split(","):
        first, _, last = part.partition("-")
        wanted += range(int(first), int(last or first) + 1)
    return wanted


def _reserve(directory: str, core: int) -> int:
    refusal = (
        "NRT:nrt_allocate_neuron_cores  Logical Neuron Core(s) not available"
        f" - Requested:lnc{core}-lnc{core} Available:0"
    )
    if core >= _cores():
        raise _not_started(refusal)
    file = os.open(Path(directory) / f"core{core}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise _not_started(refusal) from None
    return file


_runtime = _Runtime()


# A compiled model

_fresh: set[str] = set()  # traced here and not saved yet


def _load(record: str, lazy: bool, asynchronous: bool) -> str:
    if not lazy:
        _place(json.loads(record))
    return record


def _place(made: dict[str, Any]) -> None:
    _runtime.start()
    runtime = os.environ.get("NEURON_DOUBLE_RUNTIME", RUNTIME)
    compiler = made["compiler"]
    if runtime.partition(".")[0] != compiler.partition(".")[0]:
        raise RuntimeError(f"NEFF version mismatch supported: {runtime} received: {compiler}")


def _save(record: str) -> str:
    _fresh.discard(json.loads(record)["id"])
    return record


def _enter(inputs: list[Tensor], record: str) -> list[Tensor]:
    made = json.loads(record)
    _place(made)
    for number, (given, (shape, kind)) in enumerate(zip(inputs, made["inputs"], strict=True)):
        if given.device.type != "cpu":
            raise RuntimeError(f"input {number} is on {given.device}; CPU tensors are expected")
        if list(given.shape) != shape or str(given.dtype) != kind:
            raise RuntimeError(
                f"Incorrect input tensor at position {number}: received {list(given.shape)}"
                f" {given.dtype}, expected {shape} {kind}"
            )
    return [given.clone() for given in inputs]


def _leave(result: Tensor) -> Tensor:
    if result.isnan().any():
        raise RuntimeError("Error notifications found on NC 0: INFER_ERROR_SUBTYPE_NUMERICAL")
    return result.clone()


# Saved models ask for these by name, so that none can be loaded where they are not defined.
_library: Any = torch.library.Library("neuron", "FRAGMENT")  # type: ignore[no-untyped-call]
if not hasattr(torch.ops.neuron, "enter"):
    _library.define("enter(Tensor[] inputs, str record) -> Tensor[]")
    _library.define("leave(Tensor result) -> Tensor")
    _library.define("load(str record, bool lazy, bool asynchronous) -> str")
    _library.define("save(str record) -> str")
    _library.impl("enter", _enter, "CompositeExplicitAutograd")
    _library.impl("leave", _leave, "CompositeExplicitAutograd")
    _library.impl("load", _load, "CompositeExplicitAutograd")
    _library.impl("save", _save, "CompositeExplicitAutograd")


class _Neff(nn.Module):
    """The compiled graph's own record, checked wherever it is loaded and run."""

    def __init__(self, record: str) -> None:
        super().__init__()
        self.record = record
        self.lazy = False
        self.asynchronous = False

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        entered: list[Tensor] = torch.ops.neuron.enter(inputs, self.record)
        return entered

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool, bool, bool]:
        record: str = torch.ops.neuron.save(self.record)
        return record, self.lazy, self.asynchronous, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool, bool, bool]) -> None:
        self.lazy = state[1]
        self.asynchronous = state[2]
        self.training = state[3]
        record: str = torch.ops.neuron.load(state[0], state[1], state[2])
        self.record = record


class _Model(nn.Module):
    def __init__(self, neff: _Neff, graph: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.neff = neff
        self.graph = graph

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        inputs = self.neff([first, second])
        result: Tensor = torch.ops.neuron.leave(self.graph(inputs[0], inputs[1]))
        return result


# The compiler


class _Rounding(TorchFunctionMode):
    """Matrix products of bfloat16 operands, which are summed in fp32."""

    PRODUCTS = frozenset(
        {
            torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.mm,
            nn.functional.linear, torch._C._nn.linear,
        }
    )  # fmt: skip
    OPAQUE = frozenset({nn.functional.scaled_dot_product_attention, torch.baddbmm, torch.addmm})

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in self.OPAQUE:
            raise NotImplementedError(f"{func.__name__}: its products cannot be rounded here")
        if func in self.PRODUCTS:
            args = (*(_rounded(each) for each in args[:2]), *args[2:])
        return func(*args, **(kwargs or {}))


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16).to(torch.float32)


def _options(given: str | Sequence[str] | None) -> dict[str, str]:
    words = shlex.split(given) if isinstance(given, str) else list(given or ())
    words = [part for word in words for part in word.split("=", 1)]
    options: dict[str, str] = {}
    while words:
        name = words.pop(0)
        value = words.pop(0) if words else ""
        if value not in VALUES.get(name, ()):
            raise RuntimeError(f"neuronx-cc: error: unrecognized arguments: {name} {value}")
        options[name] = value
    return options


def trace(
    func: Callable[..., Tensor],
    example_inputs: Any,
    *positional: Any,
    input_output_aliases: Mapping[Any, Any] | None = None,
    compiler_workdir: str | None = None,
    compiler_args: str | Sequence[str] | None = None,
    partitioner_config: Any = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool = False,
) -> torch.jit.ScriptModule:
    if positional:
        raise TypeError("torch_neuronx.trace() takes its options by keyword")
    options = _options(compiler_args)
    if cpu_backend and "--target" not in options:
        raise ValueError("cpu_backend needs --target in compiler_args")
    if not cpu_backend:
        _runtime.start()
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    if any(each.device.type != "cpu" for each in inputs):
        raise RuntimeError("example inputs must be CPU tensors")
    if isinstance(func, nn.Module):
        func = copy.deepcopy(func)  # the weights are part of what is compiled
    number = uuid.uuid4().hex
    record = {
        "id": number,
        "target": options.get("--target", TARGETS[0]),
        "compiler": importlib.metadata.version("neuronx-cc"),
        "inputs": [(list(each.shape), str(each.dtype)) for each in inputs],
        "options": options,
    }
    # The compiler's own default is to cast matrix products to bf16.
    cast = options.get("--auto-cast", "matmult"), options.get("--auto-cast-type", "bf16")
    if cast[0] != "none" and cast != ("matmult", "bf16"):
        raise NotImplementedError(f"{cast} is not imitated here")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch would rather that nobody used TorchScript
        with _Rounding() if cast[0] != "none" else contextlib.nullcontext():
            graph: Any = torch.jit.trace(func, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        made: torch.jit.ScriptModule = torch.jit.script(_Model(_Neff(json.dumps(record)), graph))
    _fresh.add(number)
    return made.eval()


def lazy_load(trace: torch.jit.ScriptModule, enable_lazy_load: bool = True) -> None:
    _unsaved(trace, "lazy_load").lazy = enable_lazy_load


def async_load(trace: torch.jit.ScriptModule, enable_async_load: bool = True) -> None:
    _unsaved(trace, "async_load").asynchronous = enable_async_load


def _unsaved(trace: torch.jit.ScriptModule, what: str) -> Any:
    neff: Any = trace.neff
    if json.loads(neff.record)["id"] not in _fresh:
        raise RuntimeError(f"torch_neuronx.{what} must be called after trace and before saving")
    return neff
