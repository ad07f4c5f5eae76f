"""What devices cost by the hour, and what others published about their speed.

Two files that people edit, both read strictly: compile/prices.yaml and compile/published.yaml.
"""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import yaml

from compile import strict_yaml

PRICES: Final = Path(__file__).with_name("prices.yaml")
PUBLISHED: Final = Path(__file__).with_name("published.yaml")

_SECONDS_PER_HOUR = 3_600

T = TypeVar("T")


class PriceError(Exception):
    """A price cannot be had. The message is one line: what is wrong, in which file."""


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One instance type."""

    price: float  # of an hour
    vcpus: int
    gpus: int = 0
    neuron_cores: int = 0
    verified: bool = True

    def workers(self, target: str) -> int:
        """How many workers for an artefact's target it has room for; 0 without such a device."""
        if target.startswith("neuron-"):
            return self.neuron_cores
        return self.gpus if target.endswith("-cuda") else self.vcpus

    def million(self, each: float, workers: int) -> float:
        """The price of a million offers when each of so many workers does `each` a second."""
        return self.price / (each * workers * _SECONDS_PER_HOUR) * 1e6


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """prices.yaml."""

    currency: str
    region: str
    date: date  # of the prices
    source: str
    instances: dict[str, Instance]

    def instance(self, name: str, target: str) -> tuple[Instance, int]:
        """The instance type of that name and its number of workers for a target.

        Raises PriceError when it is unknown or has no device for the target.
        """
        if name not in self.instances:
            known = ", ".join(sorted(self.instances))
            raise PriceError(f"no price of an instance {name!r}; there are {known}")
        found = self.instances[name]
        workers = found.workers(target)
        if not workers:
            raise PriceError(f"instance {name} has no device for target {target}")
        return found, workers


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published figure: a whole instance, all of its devices at work on one encoder."""

    instance: str  # a name in prices.yaml
    target: str
    device: str
    model: str
    precision: str
    what: str = "engine"  # what the figure includes
    batch: int
    length: int | None  # tokens a text; null where texts came as they were
    offers_per_second: float
    version: str  # of the software that it was measured with
    source: str


class _Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """published.yaml."""

    figures: tuple[Published, ...]


def load_prices(path: Path = PRICES) -> Prices:
    """Reads a price file. Raises PriceError."""
    prices = _read(path, Prices)
    for field in ("currency", "region", "source"):
        if not getattr(prices, field).strip():
            raise PriceError(f"{path}: {field} is empty")
    if not prices.instances:
        raise PriceError(f"{path}: holds no instances")
    for name, instance in prices.instances.items():
        if not (math.isfinite(instance.price) and instance.price > 0):
            raise PriceError(f"{path}: price of {name} is {instance.price}, must be positive")
        if instance.vcpus < 1:
            raise PriceError(f"{path}: vcpus of {name} is {instance.vcpus}, must be at least 1")
        for field in ("gpus", "neuron_cores"):
            if (count := getattr(instance, field)) < 0:
                raise PriceError(f"{path}: {field} of {name} is {count}, must not be negative")
    return prices


def load_published(path: Path = PUBLISHED) -> tuple[Published, ...]:
    """Reads a file of published figures. Raises PriceError."""
    figures = _read(path, _Figures).figures
    for number, figure in enumerate(figures, 1):
        where = f"{path}: figure {number}"
        if not (math.isfinite(figure.offers_per_second) and figure.offers_per_second > 0):
            raise PriceError(f"{where}: offers_per_second is {figure.offers_per_second}")
        if figure.batch < 1 or (figure.length is not None and figure.length < 1):
            raise PriceError(f"{where}: batch and length must be at least 1")
        if not figure.source.startswith("https://"):
            raise PriceError(f"{where}: its source is no https address")
    return figures


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.convert(strict_yaml.load(path.read_bytes()), kind)
    except OSError as error:
        raise PriceError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        problem = getattr(error, "problem", None)
        raise PriceError(f"{path}: is not YAML{line}{f': {problem}' if problem else ''}") from None
    except msgspec.ValidationError as error:
        raise PriceError(f"{path}: {error}") from None
