"""Idle caches for later prompts: which one is found, copied, taken over or dropped."""

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
    """A pool of *slots* caches, with memory for *pages* pages; None: unlimited."""
    budget = None if pages is None else pages * PAGE_BYTES
    return PrefixCache(lambda: KVCache(CONFIG, 500), slots=slots, budget_bytes=budget)


def run(cache, upto):
    """Store positions of *cache* before *upto*, with the ids themselves as keys and values."""
    new = np.array(cache.ids[cache.length : upto], dtype=np.float32)
    rows = np.broadcast_to(new[:, None, None], (len(new), 2, 64))
    for layer in range(2):
        cache.append(layer, rows, rows)
    cache.advance(len(new))


def ids_stored_in(cache):
    """Ids whose keys are in *cache*; :func:`run` stored the ids themselves as keys."""
    copy = KVCache(CONFIG, 500)
    copy.copy_prefix(cache, cache.length)
    keys = copy.append(0, np.zeros((1, 2, 64), np.float32), np.zeros((1, 2, 64), np.float32))[0]
    return np.rint(keys[0, :-1, 0]).astype(int).tolist()


def add_idle(pool, ids):
    """Add an idle cache of all *ids* but the last one to *pool*; return it."""
    cache = pool.acquire(ids, len(ids))
    run(cache, len(ids) - 1)
    pool.release(cache)
    return cache


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_the_common_prefix_is_the_longest_one(first, second):
    count = common_prefix(first, second)
    assert first[:count] == second[:count]
    assert count in (len(first), len(second)) or first[count] != second[count]


def test_a_cache_begins_with_a_copy_of_the_longest_shared_prefix():
    pool = caches()
    add_idle(pool, [1, 2, 3, 4, 9])
    add_idle(pool, [1, 2, 7, 7, 7, 9])
    cache = pool.acquire([1, 2, 3, 5, 5], 10)
    assert cache.length == 3
    assert ids_stored_in(cache) == [1, 2, 3]


def test_the_last_id_is_always_run():
    pool = caches()
    add_idle(pool, [1, 2, 3, 4])
    # At least one id must be run for logits, so best() counts at most the others.
    assert pool.best([1, 2, 3])[1] == 2
    assert pool.best([1])[1] == 0


def test_a_cache_whose_ids_are_all_continued_is_taken_over():
    pool = caches()
    first = add_idle(pool, [1, 2, 3, 4])
    assert pool.acquire([1, 2, 3, 5, 6], 9) is first
    assert first.busy
    assert first.ids == [1, 2, 3, 5, 6]


def test_a_cache_that_is_longer_than_the_shared_prefix_stays_as_it_is():
    pool = caches()
    first = add_idle(pool, [1, 2, 3, 4, 5])
    branch = pool.acquire([1, 2, 8, 8], 9)
    run(branch, 4)
    assert branch is not first
    assert (ids_stored_in(first), ids_stored_in(branch)) == ([1, 2, 3, 4], [1, 2, 8, 8])


def test_a_sequence_copies_what_another_one_computes_while_that_goes_on():
    pool = caches()
    first = pool.acquire([1, 2, 3, 4, 5], 5)
    late = pool.acquire([1, 2, 3, 6], 4)
    assert late.length == 0
    run(first, 4)
    assert pool.improve(late) == 3
    run(first, 5)
    run(late, 4)
    assert (ids_stored_in(first), ids_stored_in(late)) == ([1, 2, 3, 4, 5], [1, 2, 3, 6])


def test_the_oldest_idle_cache_makes_room():
    pool = caches(slots=2)
    add_idle(pool, [1, 1, 1])
    add_idle(pool, [2, 2, 2])
    pool.acquire([3, 3, 3], 3)
    # Lengths of the prefixes that are found: the cache of the first prompt was dropped.
    assert (pool.best([1, 1, 1])[1], pool.best([2, 2, 2])[1]) == (0, 2)


def test_a_cache_in_use_is_never_dropped():
    pool = caches(slots=2)
    pool.acquire([1, 1], 2)
    pool.acquire([2, 2], 2)
    assert pool.acquire([3, 3], 2) is None
    assert pool.drop_idle() is False


def test_no_idle_cache_is_dropped_if_that_would_not_make_enough_room():
    pool = caches(pages=3)
    busy = pool.acquire([5, 5], 2 * PAGE)  # two of the three pages
    add_idle(pool, [1, 2, 3])
    assert pool.acquire([9, 9], 2 * PAGE) is None
    assert pool.best([1, 2, 3])[1] == 2
    pool.release(busy)
    assert pool.acquire([9, 9], 2 * PAGE) is not None


def test_memory_is_counted_in_pages():
    pool = caches(pages=9)
    cache = pool.acquire([1, 2], PAGE + 1)
    assert pool.size_bytes == 2 * PAGE_BYTES  # reserved for the positions it may reach
    run(cache, 2)
    pool.release(cache)
    assert pool.size_bytes == PAGE_BYTES  # an idle cache has the pages that it fills
    pool.release(pool.acquire([7], 1))
    assert pool.size_bytes == PAGE_BYTES  # an empty cache is of no use
    assert pool.drop_idle() is True
    assert pool.size_bytes == 0
