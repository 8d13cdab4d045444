"""Keys and values: stored in order, grown with use, never beyond the capacity."""

import mmap

import numpy as np
import pytest
from tiny_models import tiny

from bitnet.base.errors import InferenceError, UsageError
from bitnet.kernels import kv_pages
from bitnet.kernels.kv_cache import KVCache, begin_together
from bitnet.models.load import config_from

CONFIG = config_from(tiny("llama"))  # 2 layers, 2 key heads of 64


def rows(first, count):
    """Keys of *count* positions that hold their number."""
    positions = np.arange(first, first + count, dtype=np.float32)
    return np.broadcast_to(positions[:, None, None], (count, 2, 64))


def store(cache, count):
    """Append *count* positions to each layer; the keys and values that the last layer then has."""
    new = rows(cache.length, count)
    for layer in range(2):
        seen = cache.append(layer, new, -new)
    cache.advance(count)
    return seen


def assert_holds(vectors, numbers):
    """Check that *vectors* hold the *numbers* of positions, up to the rounding of codes."""
    np.testing.assert_allclose(vectors, numbers, rtol=2e-4)


def test_positions_are_returned_in_order_however_many_are_stored_at_once():
    cache = KVCache(CONFIG, 200)
    for count in (5, 1, 90, 1):
        keys, values = store(cache, count)
    assert keys.shape == (2, 97, 64)
    assert keys.dtype == np.float32
    assert_holds(keys[1, :, 0], np.arange(97))
    assert_holds(values[0, :, 63], -np.arange(97))


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages to ask for")
def test_large_pages_of_the_cache_are_mappings_for_huge_pages_of_the_system(monkeypatch):
    monkeypatch.setattr(kv_pages, "MAPPED_BYTES", 1)
    cache = KVCache(CONFIG, 200)
    keys, values = store(cache, 150)
    addresses = cache._tables[0].addresses
    assert len(addresses) == 3
    assert not (addresses % mmap.PAGESIZE).any()
    assert_holds(keys[1, :, 0], np.arange(150))
    assert_holds(values[0, :, 63], -np.arange(150))


def test_without_mappings_pages_are_ordinary_memory(monkeypatch):
    def refuse(*_args, **_named):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(kv_pages, "MAPPED_BYTES", 1)
    monkeypatch.setattr(mmap, "mmap", refuse)
    cache = KVCache(CONFIG, 200)
    keys, _ = store(cache, 70)
    assert_holds(keys[1, :, 0], np.arange(70))


def test_truncated_positions_are_overwritten():
    cache = KVCache(CONFIG, 20)
    store(cache, 10)
    cache.truncate(4)
    assert cache.length == 4
    for layer in range(2):
        keys, _ = cache.append(layer, -rows(4, 2), rows(4, 2))
    assert_holds(keys[0, :, 0], [0, 1, 2, 3, -4, -5])


def test_truncating_beyond_the_end_keeps_all():
    cache = KVCache(CONFIG, 20)
    store(cache, 3)
    cache.truncate(9)
    assert cache.length == 3


def test_the_capacity_is_a_limit():
    cache = KVCache(CONFIG, 4)
    store(cache, 4)
    with pytest.raises(InferenceError, match="5 positions, the context holds 4"):
        cache.append(0, rows(4, 1), rows(4, 1))


def test_memory_grows_with_use():
    cache = KVCache(CONFIG, 100_000)
    assert cache.size_bytes == 0
    store(cache, 1)
    # Keys and values, two layers, two heads; 64 codes of two bytes and a step of four.
    per_position = 2 * 2 * 2 * (64 * 2 + 4)
    assert cache.size_bytes == 64 * per_position  # a page
    store(cache, 64)
    assert cache.size_bytes == 128 * per_position


def test_a_cache_without_room_for_a_position_is_refused():
    with pytest.raises(UsageError):
        KVCache(CONFIG, 0)


def test_a_copied_prefix_is_independent_of_its_source():
    first = KVCache(CONFIG, 100)
    second = KVCache(CONFIG, 80)
    store(first, 70)
    second.copy_prefix(first, 66)
    assert second.length == 66
    for layer in range(2):
        second.append(layer, -rows(66, 3), rows(66, 3))
    first_keys, _ = store(first, 1)
    assert_holds(first_keys[0, :, 0], np.arange(71))
    keys, values = store(second, 3)
    assert_holds(keys[0, :, 0], np.arange(69))
    assert_holds(values[1, :, 5], -np.arange(69))


@pytest.mark.parametrize("length", [11, 9])
def test_a_prefix_longer_than_the_source_or_the_copy_is_refused(length):
    first = KVCache(CONFIG, 20)
    second = KVCache(CONFIG, 8)
    store(first, 10)
    with pytest.raises(InferenceError, match=f"{length} positions to copy"):
        second.copy_prefix(first, length)


def test_a_shared_page_is_copied_before_either_writes_to_it():
    first = KVCache(CONFIG, 200)
    second = KVCache(CONFIG, 200)
    store(first, 130)
    second.copy_prefix(first, 130)
    first.truncate(70)
    for layer in range(2):
        first.append(layer, -rows(70, 3), rows(70, 3))
    first.advance(3)
    store(second, 1)
    keys, _ = store(second, 1)
    assert_holds(keys[0, :, 0], np.arange(132))
    keys, _ = store(first, 1)
    assert_holds(keys[0, 68:, 9], [68, 69, -70, -71, -72, 73])


def test_addresses_are_those_of_the_pages_that_hold_the_positions():
    cache = KVCache(CONFIG, 200)
    assert len(cache.pages(1)[0]) == 1
    assert len(cache.pages(64)[0]) == 1
    (before,) = cache.pages(65)
    store(cache, 65)
    np.testing.assert_array_equal(cache.pages(1)[0], before)
    cache.truncate(64)
    np.testing.assert_array_equal(cache.pages(0)[0], before[:1])
    # 64 positions are stored, so 137 more are too many.
    with pytest.raises(InferenceError, match="201 positions, the context holds 200"):
        cache.pages(137)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_cache_of_floats_is_exact_and_has_no_pages_for_the_compiled_module(dtype):
    cache = KVCache(CONFIG, 200, dtype=dtype)
    store(cache, 5)
    keys, values = store(cache, 130)
    assert keys.dtype == dtype
    np.testing.assert_array_equal(keys[1, :, 0], np.arange(135))
    np.testing.assert_array_equal(values[0, :, 63], -np.arange(135))
    assert cache.pages(1) is None


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, bool])
def test_other_types_are_refused(dtype):
    with pytest.raises(UsageError, match="int16 codes or floats"):
        KVCache(CONFIG, 200, dtype=dtype)


def test_a_cache_that_refuses_a_pass_leaves_the_others_of_its_batch_as_they_were():
    config = config_from(tiny("mamba"))
    whole, interrupted, last = (KVCache(config, 64) for _ in range(3))
    interrupted.begin()
    with pytest.raises(InferenceError, match="a pass was interrupted"):
        begin_together([whole, interrupted, last])
    assert len(begin_together([whole, last])) == 2


def test_without_memory_for_a_page_no_page_is_given_away_twice():
    class WithoutMemory:
        """A page that cannot be copied."""

        def copy(self):
            raise MemoryError

    pages = kv_pages.Pages(64, (1, 2, 1, 4), np.dtype("<i2"))
    pages.make_room(0, 250, ())
    kv_pages.Pages(64, (1, 2, 1, 4), np.dtype("<i2")).copy(pages, 250, ())
    shared = pages.pages[-1]
    pages.pages[-1] = WithoutMemory()
    with pytest.raises(MemoryError):
        pages.make_room(250, 500, ())
    pages.pages[-1] = shared
    pages.make_room(250, 500, ())
    held = [id(page) for page in pages.pages if page is not None]
    assert len({*held}) == len(held)
