"""Cores by affinity and by the quotas of control groups, on made-up systems."""

import os

import pytest

from bitnet.base import machine
from bitnet.base.machine import thread_count, usable_cores


@pytest.fixture(autouse=True)
def big_host(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


@pytest.mark.parametrize(
    ("quota", "expected"),
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
    root = system("0::/\n", {"cpu.max": quota})
    assert usable_cores(root) == expected


def test_the_smallest_quota_of_all_groups_above_holds(system):
    files = {
        "cpu.max": "800000 100000\n",
        "jobs.slice/cpu.max": "300000 100000\n",
        "jobs.slice/mine.scope/cpu.max": "max 100000\n",
        "other.slice/cpu.max": "100000 100000\n",
    }
    assert usable_cores(system("0::/jobs.slice/mine.scope\n", files)) == 3


def test_a_container_whose_own_group_is_mounted_has_its_quota(system):
    assert usable_cores(system("0::/docker/abc\n", {"cpu.max": "200000 100000\n"})) == 2


def test_a_system_without_control_groups_has_the_cores_of_its_affinity(tmp_path, monkeypatch):
    assert usable_cores(tmp_path) == 64
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


def test_compute_threads_follow_the_quota(system, monkeypatch):
    root = system("0::/\n", {"cpu.max": "200000 100000\n"})
    monkeypatch.setattr(machine.usable_cores, "__defaults__", (root,))
    monkeypatch.delenv("BITNET_THREADS", raising=False)
    assert thread_count() == 2
