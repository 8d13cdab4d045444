"""Arrays of mapped files: their file and offset, and pages given back to the system."""

from __future__ import annotations

import mmap
import os
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bitnet.kernels.packing import give_back_pages, open_again

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8)


def mapped(path: Path) -> np.ndarray:
    """CONTENT in the file *path*, mapped to be read."""
    path.write_bytes(CONTENT.tobytes())
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return np.frombuffer(view, dtype=np.uint8)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
@pytest.mark.parametrize("begin", [0, 5, 70_001])
def test_the_file_of_a_mapped_array_is_opened_with_the_offset_of_the_array(
    tmp_path: Path, begin: int
) -> None:
    # Linux lists deleted files with such an ending, which here is part of the name.
    data = mapped(tmp_path / "a file (deleted)")[begin:]
    found = open_again(data)
    assert found is not None
    file, offset = found
    try:
        assert os.pread(file, len(data), offset) == data.tobytes()
    finally:
        os.close(file)


@pytest.mark.parametrize("change", ["replace", "unlink"])
def test_a_file_that_was_replaced_or_deleted_is_not_opened(tmp_path: Path, change: str) -> None:
    path = tmp_path / "file"
    data = mapped(path)
    if change == "replace":
        (tmp_path / "new").write_bytes(bytes(len(CONTENT)))
        (tmp_path / "new").replace(path)
    else:
        path.unlink()
    assert open_again(data) is None
    assert np.array_equal(data, CONTENT)


def test_an_array_that_is_not_mapped_has_no_file() -> None:
    assert open_again(CONTENT) is None
    assert open_again(CONTENT[:0]) is None


def test_pages_that_were_given_back_are_read_again(tmp_path: Path) -> None:
    data = mapped(tmp_path / "file")
    give_back_pages(data)
    give_back_pages(data[10:20])  # less than a page
    give_back_pages(CONTENT)  # not of a file: nothing is given back
    assert np.array_equal(data, CONTENT)
