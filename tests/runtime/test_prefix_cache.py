"""Caches kept for prompts to come: which one is found, copied, taken over or dropped."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import tiny

from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.kv_codes import PAGE
from bitnet.models.load import config_from
from bitnet.runtime.prefix_cache import PrefixCache, common_prefix

CONFIG = config_from(tiny("llama"))  # 2 layers, 2 key heads of 64
PAGE_BYTES = KVCache(CONFIG, 1).cost(PAGE, 1)


def caches(slots=3, pages=None):
    budget = None if pages is None else pages * PAGE_BYTES
    return PrefixCache(lambda: KVCache(CONFIG, 500), slots=slots, budget_bytes=budget)


def run(cache, upto):
    """Store keys that say which id they belong to."""
    new = np.array(cache.ids[cache.length : upto], dtype=np.float32)
    rows = np.broadcast_to(new[:, None, None], (len(new), 2, 64))
    for layer in range(2):
        cache.append(layer, rows, rows)
    cache.advance(len(new))


def stored(cache):
    """The ids that the keys of *cache* say they belong to."""
    copy = KVCache(CONFIG, 500)
    copy.copy_prefix(cache, cache.length)
    keys = copy.append(0, np.zeros((1, 2, 64), np.float32), np.zeros((1, 2, 64), np.float32))[0]
    return np.rint(keys[0, :-1, 0]).astype(int).tolist()


def kept(pool, ids):
    """A cache that holds all but the last of *ids* and waits."""
    cache = pool.acquire(ids, len(ids))
    run(cache, len(ids) - 1)
    pool.release(cache)
    return cache


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_the_common_prefix_is_the_longest_one(first, second):
    count = common_prefix(first, second)
    assert first[:count] == second[:count]
    assert count in (len(first), len(second)) or first[count] != second[count]


def test_a_cache_starts_with_what_the_best_other_one_holds():
    pool = caches()
    kept(pool, [1, 2, 3, 4, 9])
    kept(pool, [1, 2, 7, 7, 7, 9])
    cache = pool.acquire([1, 2, 3, 5, 5], 10)
    assert cache.length == 3
    assert stored(cache) == [1, 2, 3]


def test_the_last_id_is_always_run():
    pool = caches()
    kept(pool, [1, 2, 3, 4])
    assert pool.best([1, 2, 3])[1] == 2
    assert pool.best([1])[1] == 0


def test_a_cache_that_is_continued_whole_is_taken_over():
    pool = caches()
    first = kept(pool, [1, 2, 3, 4])
    assert pool.acquire([1, 2, 3, 5, 6], 9) is first
    assert first.busy
    assert first.ids == [1, 2, 3, 5, 6]


def test_a_cache_that_holds_more_stays_as_it_is():
    pool = caches()
    first = kept(pool, [1, 2, 3, 4, 5])
    branch = pool.acquire([1, 2, 8, 8], 9)
    run(branch, 4)
    assert branch is not first
    assert (stored(first), stored(branch)) == ([1, 2, 3, 4], [1, 2, 8, 8])


def test_a_running_sequence_gives_what_it_has_and_goes_on():
    pool = caches()
    first = pool.acquire([1, 2, 3, 4, 5], 5)
    late = pool.acquire([1, 2, 3, 6], 4)
    assert late.length == 0
    run(first, 4)
    assert pool.improve(late) == 3
    run(first, 5)
    run(late, 4)
    assert (stored(first), stored(late)) == ([1, 2, 3, 4, 5], [1, 2, 3, 6])


def test_the_oldest_idle_cache_makes_room():
    pool = caches(slots=2)
    kept(pool, [1, 1, 1])
    kept(pool, [2, 2, 2])
    pool.acquire([3, 3, 3], 3)
    assert (pool.best([1, 1, 1])[1], pool.best([2, 2, 2])[1]) == (0, 2)


def test_a_cache_in_use_is_never_dropped():
    pool = caches(slots=2)
    pool.acquire([1, 1], 2)
    pool.acquire([2, 2], 2)
    assert pool.acquire([3, 3], 2) is None
    assert pool.drop_idle() is False


def test_without_room_even_after_dropping_nothing_is_dropped():
    pool = caches(pages=3)
    busy = pool.acquire([5, 5], 2 * PAGE)
    kept(pool, [1, 2, 3])
    assert pool.acquire([9, 9], 2 * PAGE) is None
    assert pool.best([1, 2, 3])[1] == 2
    pool.release(busy)
    assert pool.acquire([9, 9], 2 * PAGE) is not None


def test_memory_is_counted_in_pages():
    pool = caches(pages=9)
    cache = pool.acquire([1, 2], PAGE + 1)
    assert pool.size_bytes == 2 * PAGE_BYTES
    run(cache, 2)
    pool.release(cache)
    assert pool.size_bytes == PAGE_BYTES
    pool.release(pool.acquire([7], 1))
    assert pool.size_bytes == PAGE_BYTES  # an empty cache is of no use
    assert pool.drop_idle() is True
    assert pool.size_bytes == 0
