"""Screens of output heads in the cache folder."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from bitnet import native
from bitnet.cache import entries, verify
from bitnet.cache.screens import problem_of, read_screen, screen_path, write_screen
from bitnet.kernels import screened_head
from bitnet.kernels.native import NativeOps
from bitnet.kernels.packing import prepare_matrix
from bitnet.kernels.screened_head import ScreenedHead, Wanted
from bitnet.quants import types
from bitnet.quants.weight import Weight

pytestmark = pytest.mark.skipif(native.module() is None, reason="the module is not built")

CONTENT = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype=np.uint8)
ROWS, COLUMNS = 200, 128


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "bitnet"))
    return tmp_path / "bitnet"


def written():
    path = screen_path("ab" * 16)
    write_screen(path, CONTENT)
    return path


def test_what_was_written_is_read(cache):
    path = written()
    out = np.zeros_like(CONTENT)
    assert read_screen(path, out)
    assert np.array_equal(out, CONTENT)
    assert [entry.path for entry in entries(cache)] == [path]
    assert verify(entries(cache)[0]).intact


@pytest.mark.parametrize("at", [0, 8, 20, 64, 7_000_000, -1])
def test_a_changed_bit_anywhere_is_noticed(cache, at):
    path = written()
    data = bytearray(path.read_bytes())
    data[at] ^= 0x80
    path.write_bytes(data)
    assert not read_screen(path, np.zeros_like(CONTENT))
    assert problem_of(path)
    assert not verify(entries(cache)[0]).intact


@pytest.mark.parametrize("size", [0, 10, 64, 1000])
def test_a_cut_file_is_noticed(size):
    path = written()
    path.write_bytes(path.read_bytes()[:size])
    assert not read_screen(path, np.zeros_like(CONTENT))
    assert problem_of(path)


def test_a_screen_of_another_size_is_not_used():
    assert not read_screen(written(), np.zeros(100, dtype=np.uint8))


def test_a_missing_file_is_no_error():
    assert not read_screen(screen_path("none"), np.zeros(100, dtype=np.uint8))


def test_a_full_disk_leaves_nothing_and_fails_nothing(cache, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    written()
    assert not list(cache.rglob("*.*"))


def test_a_folder_that_cannot_be_made_fails_nothing(cache):
    cache.write_bytes(b"a file")
    written()
    assert cache.read_bytes() == b"a file"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, (1 << 20) + 1])
def test_content_hashes_tell_every_byte_and_the_length_apart(size):
    data = CONTENT[:size].copy()
    hash_of = native.module().content_hash
    seen = {hash_of(data), hash_of(np.append(data, np.uint8(0)))}
    for at in {0, size // 2, size - 1} if size else ():
        data[at] ^= 0x80
        seen.add(hash_of(data))
    assert len(seen) == (2 + len({0, size // 2, size - 1}) if size else 2)


def test_signs_that_change_together_change_a_content_hash():
    data = CONTENT[:4096].copy()
    before = native.module().content_hash(data)
    data[7::64] ^= 0x80
    assert native.module().content_hash(data) != before


def head(seed):
    values = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float16)
    data = values.view(np.uint8).reshape(-1)
    ops = NativeOps(threads=2)
    weight = Weight("output.weight", (ROWS, COLUMNS), types.by_name("F16"), data)
    return ops, prepare_matrix(ops.module, weight, in_rows=True)


@pytest.fixture
def small_heads_too(monkeypatch):
    monkeypatch.setattr(screened_head, "SMALLEST", 0)


@pytest.mark.usefixtures("small_heads_too")
def test_a_screen_from_the_cache_is_the_one_that_was_built(cache, monkeypatch):
    ops, matrix = head(0)
    built = ScreenedHead.build(ops, matrix)
    assert len(list(cache.rglob("*.screen"))) == 1
    monkeypatch.setattr(screened_head, "_build", lambda *_: pytest.fail("it is built again"))
    found = ScreenedHead.build(ops, matrix)
    assert built.arrays.keys() == found.arrays.keys()
    for name, array in built.arrays.items():
        assert np.array_equal(array, found.arrays[name]), name
    x = np.ones((1, COLUMNS), dtype=np.float32)
    (one,), (other,) = (each.candidates(x, [Wanted()]) for each in (built, found))
    assert one.ids.tolist() == other.ids.tolist()
    assert one.logits.tolist() == other.logits.tolist()


@pytest.mark.usefixtures("small_heads_too")
@pytest.mark.parametrize("change", ["weight", "importance", "damage"])
def test_a_screen_that_does_not_belong_to_the_head_is_made_again(cache, change):
    ops, matrix = head(0)
    ScreenedHead.build(ops, matrix)
    (path,) = cache.rglob("*.screen")
    importance = None
    if change == "weight":
        matrix.data[-1] ^= 1
    elif change == "importance":
        importance = np.linspace(1, 2, COLUMNS).astype(np.float32)
    else:
        data = bytearray(path.read_bytes())
        data[1000] ^= 1
        path.write_bytes(data)
    ScreenedHead.build(ops, matrix, importance=importance)
    assert len(list(cache.rglob("*.screen"))) == (1 if change == "damage" else 2)
    assert not any(problem_of(each) for each in cache.rglob("*.screen"))


def test_small_heads_are_not_kept(cache):
    ops, matrix = head(0)
    ScreenedHead.build(ops, matrix)
    assert not list(cache.rglob("*.screen"))
