"""Cores by affinity and by the quotas of control groups, on made-up systems."""

import os

import pytest

from bitnet.base import machine
from bitnet.base.machine import thread_count, usable_cores

# Lines of /proc/self/mountinfo for control groups of version 2 and 1; {root} is the mounted group.
V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 25 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V1_CPUSET = "34 25 0:30 {root} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"


@pytest.fixture(autouse=True)
def big_host(monkeypatch):
    """A machine with 64 cores, all of which the process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


@pytest.mark.parametrize(
    ("quota", "expected"),  # microseconds of processor time in a period, as in cpu.max; cores
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("50000 100000\n", 1),
        ("6400000 50000\n", 64),
        ("max 100000\n", 64),
        ("200000 0\n", 64),
        ("nonsense\n", 64),
        ("", 64),
    ],
)
def test_a_container_has_the_cores_of_its_quota(system, quota, expected):
    root = system("0::/\n", V2.format(root="/"), {"cpu.max": quota})
    assert usable_cores(root) == expected


def test_the_smallest_quota_of_a_group_and_those_above_it_counts(system):
    files = {
        "cpu.max": "800000 100000\n",
        "jobs.slice/cpu.max": "300000 100000\n",
        "jobs.slice/mine.scope/cpu.max": "max 100000\n",
        "other.slice/cpu.max": "100000 100000\n",
    }
    assert usable_cores(system("0::/jobs.slice/mine.scope\n", V2.format(root="/"), files)) == 3


@pytest.mark.parametrize(("quota", "expected"), [("250000", 3), ("-1", 64), ("0", 64)])
def test_the_quota_of_control_groups_of_version_1_is_read_from_two_files(system, quota, expected):
    files = {
        "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": quota + "\n",
        "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
        # Not a folder of the controller cpu: this quota of one core does not count.
        "cpuset/docker/abc/cpu.cfs_quota_us": "100000\n",
        "cpuset/docker/abc/cpu.cfs_period_us": "100000\n",
    }
    membership = "5:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x:y\n0::/\n"
    root = system(membership, V1.format(root="/") + V1_CPUSET.format(root="/"), files)
    assert usable_cores(root) == expected


@pytest.mark.parametrize("group_of_mount", ["/docker/abc", "/"])
def test_a_container_of_version_1_finds_its_group_where_it_is_mounted(system, group_of_mount):
    inside = "" if group_of_mount != "/" else "docker/abc/"
    files = {
        f"cpu,cpuacct/{inside}cpu.cfs_quota_us": "200000\n",
        f"cpu,cpuacct/{inside}cpu.cfs_period_us": "100000\n",
    }
    root = system("4:cpu,cpuacct:/docker/abc\n", V1.format(root=group_of_mount), files)
    assert usable_cores(root) == 2


def test_for_a_group_that_is_not_mounted_the_quota_of_the_mounted_group_counts(system):
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    root = system("4:cpu,cpuacct:/elsewhere\n", V1.format(root="/docker/abc"), files)
    assert usable_cores(root) == 2


def test_a_system_without_control_groups_has_the_cores_of_its_affinity(tmp_path, monkeypatch):
    assert usable_cores(tmp_path) == 64
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


def test_compute_threads_follow_the_quota(system, monkeypatch):
    root = system("0::/\n", V2.format(root="/"), {"cpu.max": "200000 100000\n"})
    monkeypatch.setattr(machine.usable_cores, "__defaults__", (root,))
    monkeypatch.delenv("BITNET_THREADS", raising=False)
    assert thread_count() == 2
