"""Threads follow what the process may use, not what the host has."""

from __future__ import annotations

from pathlib import Path

import pytest

from classifier import cpu


@pytest.fixture(autouse=True)
def sixteen_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_affinity", lambda: 16)


def put(root: Path, path: str, content: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content + "\n")


def test_without_a_quota_it_is_the_affinity(tmp_path: Path) -> None:
    assert cpu.quota(tmp_path) == 16


@pytest.mark.parametrize(
    ("limit", "processors"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("100001 100000", 2),
        ("50000 100000", 1),
        ("1000 100000", 1),
        ("max 100000", 16),
        ("3200000 100000", 16),
        ("25000 10000", 3),
        ("", 16),
        ("0 0", 16),
        ("-1 100000", 16),
        ("many few", 16),
    ],
)
def test_the_quota_of_version_2_is_rounded_up(tmp_path: Path, limit: str, processors: int) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", limit)
    assert cpu.quota(tmp_path) == processors


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/pods/pod1/box")
    put(tmp_path, "sys/fs/cgroup/pods/pod1/box/cpu.max", "800000 100000")
    put(tmp_path, "sys/fs/cgroup/pods/pod1/cpu.max", "300000 100000")
    put(tmp_path, "sys/fs/cgroup/pods/cpu.max", "max 100000")
    assert cpu.quota(tmp_path) == 3


def test_a_group_named_from_the_hosts_root_falls_back_on_the_containers_own(
    tmp_path: Path,
) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/../docker/0123abcd")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "400000 100000")
    assert cpu.quota(tmp_path) == 4


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_the_quota_of_version_1_counts(tmp_path: Path, mount: str) -> None:
    put(tmp_path, "proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/box")
    put(tmp_path, f"sys/fs/cgroup/{mount}/box/cpu.cfs_quota_us", "250000")
    put(tmp_path, f"sys/fs/cgroup/{mount}/box/cpu.cfs_period_us", "100000")
    assert cpu.quota(tmp_path) == 3


def test_no_quota_of_version_1_is_minus_one(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cpu.quota(tmp_path) == 16


def test_the_affinity_bounds_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/")
    put(tmp_path, "sys/fs/cgroup/cpu.max", "800000 100000")
    monkeypatch.setattr(cpu, "_affinity", lambda: 2)
    assert cpu.quota(tmp_path) == 2


@pytest.mark.parametrize(("workers", "threads"), [(1, 16), (2, 8), (3, 5), (16, 1), (40, 1)])
def test_workers_share_the_quota_and_none_goes_without(
    tmp_path: Path, workers: int, threads: int
) -> None:
    assert cpu.share(workers, tmp_path) == threads


def test_on_this_machine_it_is_between_one_and_the_processors() -> None:
    assert 1 <= cpu.quota() <= 16


@pytest.mark.parametrize(
    ("machine", "flags", "exact"),
    [
        ("x86_64", "fpu avx2 avx512f avx512_vnni", True),
        ("x86_64", "fpu avx2 avx_vnni", True),
        ("x86_64", "fpu avx2 avx512f", False),
        ("AMD64", None, False),
        ("aarch64", None, True),
    ],
)
def test_which_processors_sum_8_bit_products_without_saturating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, flags: str | None, exact: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    if flags is not None:
        put(tmp_path, "proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: avx_vnni")
    assert cpu.has_vnni(tmp_path) is exact
