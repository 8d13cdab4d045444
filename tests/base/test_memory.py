"""Memory as the system counts it, and pages that stay there."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from bitnet.base.memory import PageReads, free_memory, free_swap, lock_pages, page_reads

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


@LINUX
def test_linux_counts_memory_and_swap():
    free = free_memory()
    assert free is not None
    assert free > 1 << 20
    assert free_swap() >= 0


@LINUX
def test_a_page_that_is_not_in_memory_is_a_fault_with_its_bytes(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = page_reads()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert len({mapped[at] for at in range(0, 1 << 20, 4096)}) > 1
    after = page_reads(before)
    if after == before:
        pytest.skip("the file system keeps its files in memory")
    assert after.faults > before.faults


def test_without_a_fault_the_bytes_are_those_of_before():
    now = page_reads()
    assert page_reads(now._replace(read_bytes=-1)) in (PageReads(now.faults, -1), page_reads())


@LINUX
def test_more_than_the_limit_cannot_be_locked():
    code = """
import os, resource
import numpy as np
from bitnet.base.memory import lock_pages
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.getuid() == 0:
    os.setuid(65534)
print(lock_pages([np.zeros(4096, np.uint8)]))
lock_pages([np.zeros(4096, np.uint8), np.zeros(1 << 20, np.uint8)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "4096\n"
    assert "InferenceError: 1.1 MB of weights cannot be locked in memory" in done.stderr
    assert "(limit: 65.5 kB)" in done.stderr


@LINUX
def test_the_bytes_of_all_arrays_are_locked():
    assert lock_pages([np.zeros(100, np.uint8), np.zeros(28, np.uint8)]) == 128
