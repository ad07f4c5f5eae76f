"""How many processors this process may use, by its affinity and by its container's quota; and how
they multiply 8-bit integers.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path


def quota(root: Path = Path("/")) -> int:
    """Give the number of processors this process may keep busy, at least 1.

    It is the smaller of the processors it may be scheduled on (affinity, cpuset) and its control
    group's CPU quota, rounded up: with a quota of 1.5, two threads use it all and three only get
    each other throttled. The host's processor count says nothing in a container. The quotas of
    every group above count too, version 1 and 2. `root` is where /proc and /sys are looked for.
    """
    allowed = [float(_affinity()), *_group_quotas(root)]
    return max(1, math.ceil(min(allowed)))


def share(workers: int, root: Path = Path("/")) -> int:
    """Give each of `workers` processes its whole part of `quota`, at least 1."""
    return max(1, quota(root) // max(1, workers))


def has_vnni(root: Path = Path("/")) -> bool:
    """Whether products of 8-bit integers are summed here without saturating.

    Of x86 processors those with VNNI do, as far as the system tells; all others have no instruction
    that saturates. `root` is where /proc is looked for.
    """
    if platform.machine().lower() not in {"x86_64", "amd64", "i386", "i686"}:
        return True
    flags = set(described(root).get("flags", "").split())
    return not flags.isdisjoint({"avx512_vnni", "avx_vnni"})


def described(root: Path = Path("/")) -> dict[str, str]:
    """What Linux says of the first processor ("model name", "flags", ...); nothing elsewhere."""
    told: dict[str, str] = {}
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())
    return told


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _group_quotas(root: Path) -> Iterator[float]:
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            for folder in _upwards(mounts, group):
                limit, _, period = _read(folder / "cpu.max").partition(" ")
                yield from _ratio(limit, period)
        elif "cpu" in controllers.split(","):
            for mount in (mounts / controllers, mounts / "cpu"):
                for folder in _upwards(mount, group):
                    yield from _ratio(
                        _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
                    )


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """Give the group's folder and those above it, up to the mount.

    In a container the group may be named from the host's root, which the mount does not show;
    the folders that are missing read as no limit and the mount itself is the container's own.
    """
    parts = [part for part in group.split("/") if part and part != ".."]
    for end in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:end])


def _ratio(limit: str, period: str) -> Iterator[float]:
    try:
        microseconds, each = int(limit), int(period)
    except ValueError:  # "max", or no such file: no limit
        return
    if microseconds > 0 and each > 0:
        yield microseconds / each


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
