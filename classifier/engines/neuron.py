"""The Neuron engine, for Inferentia and Trainium: one compiled graph a bucket, on one core.

What it relies on is the vendor's documentation (SDK 2.31); it has run on no device yet, only on a
stand-in that enforces the documentation.

The graphs are TorchScript, which `torch.jit.load` reads; `torch.load`, which would read a pickle,
is never called.
"""

from __future__ import annotations

import copy
import ctypes
import os
import warnings
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from classifier.artifact import Artifact
from classifier.engines import EngineError
from classifier.engines.buckets import Bucket, Run, read_buckets, route
from classifier.exit_codes import BAD_SETTINGS, DEVICE_TAKEN, NO_DEVICE, WRONG_RUNTIME

VISIBLE_CORES: Final = "NEURON_RT_VISIBLE_CORES"
NUM_CORES: Final = "NEURON_RT_NUM_CORES"
SLOT: Final = "CLASSIFIER_SLOT"

_PACKAGES: Final = {"neuron-inf1": "torch_neuron"}
"""What must be imported before a graph is loaded; torch_neuronx for any other target."""

_COMPILERS: Final = {"neuron-inf1": "neuron-cc"}
"""What the manifest calls the compiler; neuronx-cc for any other target."""


class NeuronEngine:
    """The graphs of an artefact on one NeuronCore, loaded and run once before the first call.

    The core is the process's own until it ends: nobody else can have it, and after a fork the
    runtime is of no use, which is why a worker is a process that was started, not forked.
    """

    def __init__(self, artifact: Artifact, threads: int) -> None:
        target = artifact.manifest.target
        self.precision = artifact.manifest.precision
        self.core = pin_core(int(os.environ.get(SLOT) or 0))
        self._torch = _import(_PACKAGES.get(target, "torch_neuronx"))
        self._torch.set_num_threads(threads)
        check_versions(artifact, runtime_version())
        described = read_buckets(artifact)
        self._inputs = described.inputs
        self._integers = np.dtype(described.integers)
        self._pad_id = described.pad_id
        self.buckets = described.buckets
        self._labels = len(artifact.labels)
        try:
            # They were saved to load in the background: the next is read while this one loads.
            self._graphs = {
                bucket: _load(self._torch, str(artifact.path / bucket.file))
                for bucket in self.buckets
            }
            self._warm()
        except RuntimeError as error:
            raise _refusal(artifact, self.core, error) from error

    def logits(self, ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """See Engine."""
        logits = np.empty((len(ids), self._labels), dtype=np.float32)
        for run in route(lengths.tolist(), self.buckets):
            logits[run.rows] = self._run(run, ids, lengths)
        return logits

    def only(self, bucket: Bucket) -> NeuronEngine:
        """The same engine with one of its graphs, for rows that fit into it: to ask each of them.

        What is the cheapest way for a call may never lead to some.
        """
        narrowed = copy.copy(self)
        narrowed.buckets = (bucket,)
        return narrowed

    def close(self) -> None:
        """See Engine. The core itself is given back when the process ends, not before."""
        self._graphs.clear()

    def _run(
        self, run: Run, ids: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """The logits (rows, labels) of one run's rows."""
        bucket, taken = run.bucket, len(run.rows)
        shape = (bucket.batch, bucket.length)
        longest = int(lengths[run.rows].max())
        real = np.zeros(bucket.batch, dtype=np.int32)
        real[:taken] = lengths[run.rows]
        # A row that is only there to fill the bucket has one token: the mean over none is no number
        # in some encoders, and a device that meets one fails the whole run.
        real[taken:] = 1
        padded = np.full(shape, self._pad_id, dtype=self._integers)
        padded[:taken, :longest] = ids[run.rows, :longest]
        arrays = {
            "input_ids": padded,
            "attention_mask": (np.arange(bucket.length) < real[:, None]).astype(self._integers),
        }
        graph = self._graphs[bucket]
        with self._torch.inference_mode():
            given = [self._torch.from_numpy(arrays[name]) for name in self._inputs]
            logits = graph(*given).numpy()
        if logits.shape != (bucket.batch, self._labels):
            raise EngineError(
                f"{bucket.file} gives {list(logits.shape)} for {bucket.batch} texts and"
                f" {self._labels} labels"
            )
        return np.asarray(logits[:taken], dtype=np.float32)

    def _warm(self) -> None:
        """Runs every graph once: ready means that each is on the core and works."""
        for bucket in self.buckets:
            ids = np.full((bucket.batch, bucket.length), self._pad_id, dtype=np.int32)
            lengths = np.full(bucket.batch, bucket.length, dtype=np.int32)
            self._run(Run(bucket, list(range(bucket.batch))), ids, lengths)


def pin_core(slot: int) -> int:
    """Lets this process have one core, and says which; before the runtime starts.

    It is the slot-th core, of those in NEURON_RT_VISIBLE_CORES where that is set, and the only one
    that is visible afterwards. Raises EngineError where there are fewer than slots.
    """
    given = os.environ.get(VISIBLE_CORES, "")
    try:
        cores = _cores(given) if given.strip() else None
    except ValueError:
        raise EngineError(
            f"{VISIBLE_CORES} is {given!r}; it must be like 0, 0-3 or 0,2", code=BAD_SETTINGS
        ) from None
    if cores is not None and slot >= len(cores):
        raise EngineError(
            f"{VISIBLE_CORES} is {given}, {len(cores)} in all, and this is worker {slot + 1}:"
            " each worker needs a core of its own",
            code=NO_DEVICE,
        )
    core = slot if cores is None else cores[slot]
    os.environ[VISIBLE_CORES] = str(core)
    os.environ.pop(NUM_CORES, None)  # says the same less exactly
    return core


def _cores(text: str) -> list[int]:
    """The numbers in a list of cores and ranges of cores. Raises ValueError."""
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        cores += range(int(first), int(last if dash else first) + 1)
    return cores


def check_versions(artifact: Artifact, runtime: str | None) -> None:
    """Refuses what a compiler of another major version than the runtime's made.

    `runtime` is None where it cannot be asked; it then checks for itself when a graph is loaded. So
    it does on Inf1, whose compiler never left major version 1 and is run by runtime 2.
    Raises EngineError.
    """
    manifest = artifact.manifest
    name = _COMPILERS.get(manifest.target, "neuronx-cc")
    compiler = manifest.versions.get(name)
    if compiler is None:
        raise EngineError(f"artefact {manifest.id} does not say which {name} compiled it")
    if manifest.target == "neuron-inf1" or runtime is None:
        return
    if _major(runtime) != _major(compiler):
        raise _wrong_runtime(artifact, f"{name} {compiler}, and the runtime here is {runtime}")


def _major(version: str) -> str:
    return version.partition(".")[0]


class _Version(ctypes.Structure):
    """nrt_version_t of the Neuron Runtime API."""

    _fields_ = (
        ("major", ctypes.c_uint64),
        ("minor", ctypes.c_uint64),
        ("patch", ctypes.c_uint64),
        ("maintenance", ctypes.c_uint64),
        ("detail", ctypes.c_char * 128),
        ("git_hash", ctypes.c_char * 64),
    )


def runtime_version(library: str = "libnrt.so.1") -> str | None:
    """The version of the Neuron Runtime on this machine; None where there is none to ask.

    By nrt_get_version of the Neuron Runtime API, which needs no device and starts nothing.
    """
    version = _Version()
    try:
        status = ctypes.CDLL(library).nrt_get_version(
            ctypes.byref(version), ctypes.c_size_t(ctypes.sizeof(version))
        )
    except (OSError, AttributeError):
        return None
    if status != 0:
        return None
    return f"{version.major}.{version.minor}.{version.patch}.{version.maintenance}"


def _import(package: str) -> Any:
    """PyTorch, with the operators of Neuron's graphs registered by `package`."""
    try:
        __import__(package)
        import torch
    except ImportError as error:
        raise EngineError(
            f"the Neuron engine needs {error.name}: see the constraint file in constraints/",
            code=BAD_SETTINGS,
        ) from error
    return torch


def _load(torch: Any, file: str) -> Any:
    with warnings.catch_warnings():
        # Newer releases of PyTorch than Neuron's own would rather that nobody used TorchScript.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        return torch.jit.load(file)


def _refusal(artifact: Artifact, core: int, error: RuntimeError) -> EngineError:
    """What it means that the runtime could not start or a graph could not be loaded.

    The runtime says the same sentence for a device that is missing and for one that is taken, and
    the reason on standard error alone; the driver's files tell the two apart.
    """
    reason = _reason(str(error))
    if "version mismatch" in reason:
        return _wrong_runtime(artifact, f"another compiler than this runtime takes: {reason}")
    if "could not be initialized" not in reason:
        return EngineError(f"Neuron cannot load artefact {artifact.manifest.id}: {reason}")
    names = os.listdir("/dev")  # noqa: PTH208 names are all that is asked for
    if not any(name.startswith("neuron") for name in names):
        return EngineError(
            f"artefact {artifact.manifest.id} is for {artifact.manifest.target}, and there is no"
            " Neuron device here: no /dev/neuron*",
            code=NO_DEVICE,
        )
    return EngineError(
        f"NeuronCore {core} cannot be had: another process has it, or the machine has fewer"
        f" cores; neuron-ls shows who has which, {VISIBLE_CORES} says which to use",
        code=DEVICE_TAKEN,
    )


def _reason(said: str) -> str:
    """The one line of a RuntimeError that says why; TorchScript puts where it was around it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("RuntimeError: ")]
    return (named or lines or [""])[0].replace("RuntimeError: ", "")


def _wrong_runtime(artifact: Artifact, what: str) -> EngineError:
    return EngineError(
        f"artefact {artifact.manifest.id} was compiled by {what}: compile it again with the SDK"
        " that serves it",
        code=WRONG_RUNTIME,
    )
