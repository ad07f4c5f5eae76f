"""A machine with NeuronCores, as tests/neuron_double imitates it, in this process or in others."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

DOUBLE = Path(__file__).parent / "neuron_double"


def environment(drivers: Path, **more: str) -> dict[str, str]:
    """What a process needs for it to find torch_neuronx and the cores of `drivers`.

    Processes with the same directory `drivers` are on the same machine, and share its two cores.
    """
    path = os.pathsep.join(filter(None, [str(DOUBLE), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "NEURON_DOUBLE_LOCKS": str(drivers)} | more


@contextlib.contextmanager
def machine(drivers: Path, **more: str) -> Iterator[None]:
    """Lets this process be on it; its cores stay with the process, as real ones do."""
    wanted = environment(drivers, **more)
    with mock.patch.dict(os.environ, wanted), mock.patch.object(sys, "path", [*sys.path]):
        for name in ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"):
            os.environ.pop(name, None)  # what the engine pins, it pins for this machine
        sys.path.insert(0, str(DOUBLE))
        yield
