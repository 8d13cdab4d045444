"""Copies of output heads in the cache folder."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import numpy as np
import pytest
from kernel_levels import at_level, kernel_levels

from bitnet.base import native
from bitnet.cache.entries import entries
from bitnet.kernels.native import NativeOps
from bitnet.kernels.packing import prepare_matrix
from bitnet.models.exact_head import Needed
from bitnet.models.exact_head import copy as head_copy
from bitnet.models.exact_head.copy import TILE_ROWS, HeadCopy, broken_premise, sample_tiles
from bitnet.models.exact_head.kept_copies import (
    PIECE_BYTES,
    content_digest,
    copy_path,
    problem_of,
    read_copy,
    write_copy,
)
from bitnet.quants import types
from bitnet.quants.weight import Weight

pytestmark = pytest.mark.skipif(native.module() is None, reason="the module is not built")

# Bytes of a copy, of three pieces.
CONTENT = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype=np.uint8)
ROWS = 200
COLUMNS = 128


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of its own."""
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "bitnet"))
    return tmp_path / "bitnet"


def write_content():
    """The path of a kept copy with the bytes CONTENT."""
    path = copy_path("ab" * 16)
    write_copy(path, CONTENT)
    return path


def test_a_kept_copy_is_read_as_it_was_written(cache):
    path = write_content()
    out = np.zeros_like(CONTENT)
    assert read_copy(path, out)
    assert np.array_equal(out, CONTENT)
    assert [entry.path for entry in entries(cache)] == [path]


# Places in the magic, the version, the digest, and the bytes of the copy, from 64 on.
@pytest.mark.parametrize("at", [0, 8, 20, 64, 7_000_000, -1])
def test_a_changed_bit_anywhere_is_noticed(at):
    path = write_content()
    data = bytearray(path.read_bytes())
    data[at] ^= 0x80
    path.write_bytes(data)
    assert not read_copy(path, np.zeros_like(CONTENT))
    assert problem_of(path)


@pytest.mark.parametrize("size", [0, 10, 64, 1000])
def test_a_cut_file_is_noticed(size):
    path = write_content()
    path.write_bytes(path.read_bytes()[:size])
    assert not read_copy(path, np.zeros_like(CONTENT))
    assert problem_of(path)


def test_a_copy_of_another_size_is_not_used():
    assert not read_copy(write_content(), np.zeros(100, dtype=np.uint8))


def test_a_missing_file_is_not_an_error():
    assert not read_copy(copy_path("none"), np.zeros(100, dtype=np.uint8))


def test_a_full_disk_leaves_no_file_and_raises_no_error(cache, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    write_content()
    assert {path.name for path in cache.rglob("*.*")} <= {"CACHEDIR.TAG"}


def test_a_cache_folder_that_cannot_be_made_raises_no_error(cache):
    cache.write_bytes(b"a file")
    write_content()
    assert cache.read_bytes() == b"a file"


@pytest.mark.parametrize("size", [0, 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1])
def test_digests_differ_by_every_byte_the_order_of_pieces_and_the_length(size):
    data = np.resize(CONTENT, size)
    digests = [content_digest(data), content_digest(np.append(data, np.uint8(0)))]
    changed = {0, size // 2, size - 1} if size else set()
    for at in changed:
        data[at] ^= 0x80
        digests.append(content_digest(data))
    if size >= 2 * PIECE_BYTES:
        digests.append(content_digest(np.roll(data, PIECE_BYTES)))
    assert len(set(digests)) == len(digests)


def test_a_digest_is_that_of_the_digests_of_pieces():
    data = np.resize(CONTENT, PIECE_BYTES + 5)
    parts = b"".join(
        hashlib.sha256(data[at : at + PIECE_BYTES]).digest() for at in (0, PIECE_BYTES)
    )
    expected = hashlib.sha256(len(data).to_bytes(8, "little") + parts).digest()
    assert content_digest(data) == expected


def head(seed, size=1.0):
    """A backend, and a random head of the usual size of weights times *size*, prepared by it."""
    normal = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS))
    values = np.clip(normal * size, -65504, 65504).astype(np.float16)
    data = values.view(np.uint8).reshape(-1)
    ops = NativeOps(threads=2)
    weight = Weight("output.weight", (ROWS, COLUMNS), types.by_name("F16"), data)
    return ops, prepare_matrix(ops.module, weight, in_rows=True)


@pytest.fixture
def small_heads_too(monkeypatch):
    """Copies of small heads are kept, too."""
    monkeypatch.setattr(head_copy, "SMALLEST", 0)


@pytest.mark.usefixtures("small_heads_too")
def test_a_copy_from_the_cache_is_the_one_that_was_built(cache, monkeypatch):
    ops, matrix = head(0)
    built = HeadCopy.build(ops, matrix)
    assert len(list(cache.rglob("*.copy"))) == 1
    monkeypatch.setattr(head_copy, "write_copy", lambda *_: pytest.fail("it is built again"))
    kept = HeadCopy.build(ops, matrix)
    assert built.arrays.keys() == kept.arrays.keys()
    for name, array in built.arrays.items():
        assert np.array_equal(array, kept.arrays[name]), name
    x = np.ones((1, COLUMNS), dtype=np.float32)
    (expected,) = built.find(x, [Needed()])
    (logits,) = kept.find(x, [Needed()])
    assert logits.ids.tolist() == expected.ids.tolist()
    assert logits.logits.tolist() == expected.logits.tolist()


@pytest.mark.usefixtures("small_heads_too")
@pytest.mark.parametrize("change", ["weight", "importance", "damage"])
def test_a_copy_that_does_not_belong_to_the_head_is_made_again(cache, change):
    ops, matrix = head(0)
    HeadCopy.build(ops, matrix)
    (path,) = cache.rglob("*.copy")
    importance = None
    if change == "weight":
        matrix.data[-1] ^= 1
    elif change == "importance":
        importance = np.linspace(1, 2, COLUMNS).astype(np.float32)
    else:
        data = bytearray(path.read_bytes())
        data[1000] ^= 1
        path.write_bytes(data)
    HeadCopy.build(ops, matrix, importance=importance)
    # A damaged copy is replaced; another head or importance has a copy of its own.
    assert len(list(cache.rglob("*.copy"))) == (1 if change == "damage" else 2)
    assert not any(problem_of(each) for each in cache.rglob("*.copy"))


def test_small_heads_are_not_kept(cache):
    ops, matrix = head(0)
    HeadCopy.build(ops, matrix)
    assert not list(cache.rglob("*.copy"))


def break_premise(arrays, name):
    """Change *arrays* of a copy so that the premise *name* of its bounds no longer holds.

    A *name* such as ``norm nan`` sets an entry of that array; ``lower`` halves all of them.
    """
    units = arrays["sixth"].reshape(len(arrays["step"]), -1)[:, :4]
    if name == "order":
        arrays["order"][1] = arrays["order"][0]
    elif name == "factors":
        arrays["factors"][3] *= np.float32(1.5)
    elif name == "huge factor":
        arrays["factors"][3] = np.float32(2.0**40)
    elif name == "doubled factors":
        arrays["factors"][:] = 2 * arrays["factors"]
    elif name == "codes":
        arrays["tiles"].reshape(-1, TILE_ROWS)[20::64] ^= 0xFF
    elif name == "negative unit of six bits":
        units[5] = np.array([-1.0], dtype=np.float32).view(np.uint8)
    elif name == "lower unit of six bits":
        units[:] = (units.copy().view(np.float32) * np.float32(0.5)).view(np.uint8)
    else:
        array, value = name.split()
        if value == "lower":
            arrays[array][:] *= np.float32(0.5)
        else:
            arrays[array][7] = np.float32(value)


@pytest.mark.usefixtures("small_heads_too")
@pytest.mark.parametrize(
    "name",
    ["order", "factors", "huge factor", "doubled factors", "codes"]
    + ["negative unit of six bits", "lower unit of six bits"]
    + [f"step {value}" for value in ("nan", "inf", "-1", "lower")]
    + [f"residual {value}" for value in ("nan", "inf", "-1", "lower")]
    + [f"norm {value}" for value in ("nan", "inf", "-1", "0", "1e30", "lower")],
)
def test_a_kept_copy_without_a_premise_of_its_bounds_is_made_again(cache, caplog, name):
    ops, matrix = head(0)
    built = HeadCopy.build(ops, matrix).arrays
    (path,) = cache.rglob("*.copy")
    memory, arrays = head_copy._memory(ops.module, matrix)
    assert read_copy(path, memory)
    break_premise(arrays, name)
    write_copy(path, memory)  # with the digest of what it now has
    assert not problem_of(path)
    rebuilt = HeadCopy.build(ops, matrix).arrays
    assert "cannot be used, made again" in caplog.text
    for array_name, array in built.items():
        assert np.array_equal(array, rebuilt[array_name]), array_name


@pytest.mark.parametrize("level", kernel_levels())
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-6, 1.0, 2e4])
def test_a_copy_that_was_just_made_breaks_no_premise(level, size):
    ops, matrix = head(1, size)
    with at_level(level):
        arrays = HeadCopy.build(ops, matrix).arrays
    tiles = range(len(arrays["norm"]) // TILE_ROWS)
    assert broken_premise(ops, matrix, arrays, tiles) == ""


def test_the_tiles_to_compare_are_drawn_each_time():
    assert len({tuple(sample_tiles(1 << 20)) for _ in range(20)}) == 20
    assert sorted(sample_tiles(33)) == [0, 1, 2]  # all tiles of 16 rows, if they are few
