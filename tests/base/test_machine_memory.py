"""Memory and swap that are free here and in a container, page faults, and locked pages."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from bitnet.base.machine import (
    free_memory,
    free_swap,
    lock_pages,
    page_reads,
    total_memory,
)

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


@LINUX
def test_linux_counts_memory_and_swap():
    free = free_memory()
    assert free is not None
    assert free > 1 << 20  # bytes
    assert free_swap() >= 0


# Lines of /proc/self/mountinfo: control groups of version 2 and 1.
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
MEGABYTE = 1 << 20


@pytest.fixture
def container(system):
    """Function that makes a system with 900 MB free, 50 MB of free swap, and one control group.

    Its arguments are the version of control groups and, in MB: the limit of the group, its use, the
    part of that which caches files, and its limit of swap, of which 10 MB are used.
    """

    def make(version, limit, used, files, swap=None):
        # In version 1, keys that begin with total_ include the groups below this one.
        prefix = "" if version == 2 else "total_"
        stat = f"anon 1\n{prefix}active_file {files * MEGABYTE}\n{prefix}inactive_file 0\n"
        if version == 2:
            texts = {"max": limit, "current": used}
            if swap is not None:
                texts |= {"swap.max": swap, "swap.current": 10}
            group = "0::/job\n"
            mounts = V2
            folder = "job"
        else:
            texts = {"limit_in_bytes": limit, "usage_in_bytes": used}
            if swap is not None:
                texts |= {"memsw.limit_in_bytes": limit + swap, "memsw.usage_in_bytes": used + 10}
            group = "4:memory:/job\n0::/\n"
            mounts = V1
            folder = "memory/job"
        files = {
            f"{folder}/memory.{name}": f"{value * MEGABYTE if isinstance(value, int) else value}\n"
            for name, value in texts.items()
        }
        root = system(group, mounts, {f"{folder}/memory.stat": stat, **files})
        (root / "proc/meminfo").write_text("MemAvailable: 921600 kB\nSwapFree: 51200 kB\n")
        return root

    return make


@pytest.mark.parametrize("version", [1, 2])
def test_free_in_a_container_is_what_its_limit_leaves_and_its_cached_files(container, version):
    root = container(version, 400, 300, 120, swap=30)
    assert total_memory(root) == 400 * MEGABYTE
    assert free_memory(root) == 220 * MEGABYTE  # 400 - 300 + 120
    assert free_swap(root) == 20 * MEGABYTE  # 30 - 10


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_with_a_large_limit_has_no_more_than_the_machine(container, version):
    root = container(version, 4_000_000_000, 300, 0)
    assert total_memory(root) == total_memory(root / "nothing")  # as without control groups
    assert free_memory(root) == 900 * MEGABYTE
    assert free_swap(root) == 50 * MEGABYTE


@pytest.mark.parametrize("limit", ["max", "nonsense"])
def test_a_group_without_a_limit_limits_nothing(container, limit):
    assert free_memory(container(2, limit, 300, 0)) == 900 * MEGABYTE


@pytest.mark.parametrize(
    ("version", "file"), [(1, "stat"), (1, "usage_in_bytes"), (2, "stat"), (2, "current")]
)
def test_the_limit_of_a_group_counts_where_its_use_is_unknown(container, version, file):
    root = container(version, 400, 300, 200)
    (unreadable,) = root.rglob(f"memory.{file}")
    unreadable.unlink()
    assert total_memory(root) == 400 * MEGABYTE
    assert free_memory(root) == 400 * MEGABYTE


def test_a_container_may_limit_swap_alone(container):
    root = container(2, "max", 300, 0, swap=30)
    assert total_memory(root) == total_memory(root / "nothing")
    assert free_memory(root) == 900 * MEGABYTE
    assert free_swap(root) == 20 * MEGABYTE


def test_a_full_container_has_nothing_free(container):
    root = container(2, 400, 500, 0, swap=0)
    assert free_memory(root) == 0
    assert free_swap(root) == 0


@LINUX
def test_reading_pages_that_are_not_in_memory_counts_as_page_faults(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # drops its cached pages
        before = page_reads()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert len({mapped[at] for at in range(0, 1 << 20, 4096)}) > 1
    after = page_reads()
    if after == before:
        pytest.skip("the file system keeps its files in memory")
    assert after.faults > before.faults


@LINUX
def test_more_than_the_limit_cannot_be_locked():
    # The limit is 64 KiB. It does not bind root, so the program becomes another user.
    code = """
import os, resource
import numpy as np
from bitnet.base.machine import lock_pages
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.getuid() == 0:
    os.setuid(65534)
print(lock_pages([np.zeros(4096, np.uint8)]))
lock_pages([np.zeros(4096, np.uint8), np.zeros(1 << 20, np.uint8)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "4096\n"
    assert "InferenceError: 1.1 MB of weights cannot be locked in memory" in done.stderr
    assert "ulimit -l" in done.stderr


@LINUX
def test_locking_arrays_returns_the_number_of_their_bytes():
    assert lock_pages([np.zeros(100, np.uint8), np.zeros(28, np.uint8)]) == 128
