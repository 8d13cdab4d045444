"""Speed of attention with each form of keys and values.

    python benchmarks/attention.py [--level avx2] [--threads 1]

Prefill: GMAC/s of one core with 512 queries after positions in a cache; "of" precedes the limit of
the multiply-adds alone (limits.py). Decode: milliseconds of one token's attention after 4,032
positions, and in brackets those of a plain sum over as many bytes. Calls take turns; each time is
the lower decile of their processor times, which other work on the machine affects least.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from limits import OF_BYTES, OF_WORDS, limit

from bitnet.base import native
from bitnet.kernels.kv_codes import PAGE, page_words, store

QUERIES = 512
DEPTH = 4032
FORMS = ("f16", "q8")
# head_dim, heads, kv_heads, positions in the cache
SHAPES = ((64, 9, 3, 3584), (128, 8, 2, 1536), (256, 4, 1, 1536))
# heads, kv_heads, head_dim, layers: SmolLM2 135M, the ternary 2B shape, Gemma 3 270M
MODELS = {"smollm2": (9, 3, 64, 30), "ternary": (20, 5, 128, 30), "gemma3": (4, 1, 256, 18)}


def lower_deciles(works, turns):
    """Lower decile of the processor seconds of each of *works*, which take turns."""
    times = [[] for _ in works]
    for _ in range(turns):
        for work, seconds in zip(works, times, strict=True):
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
    return [sorted(seconds)[len(seconds) // 10] for seconds in times]


def aligned(array):
    """A copy of *array* that begins at a cache line, as keys and values of a model do."""
    memory = np.empty(array.nbytes + 64, dtype=np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def random_pages(rng, count, kv_heads, head_dim, kv_type):
    """*count* pages of one layer with random keys and values in the form *kv_type*."""
    pages = np.zeros((count, 2, kv_heads, page_words(head_dim, kv_type)), dtype=np.int16)
    for page in pages:
        keys, values = rng.standard_normal((2, PAGE, kv_heads, head_dim)).astype(np.float32)
        store(page, slice(0, PAGE), keys, values, kv_type)
    return aligned(pages)


def show_prefill(module, rng):
    """Print GMAC/s of QUERIES queries for each form of keys and values."""
    for head_dim, heads, kv_heads, cached in SHAPES:
        q = rng.standard_normal((QUERIES, heads, head_dim)).astype(np.float32)
        out = np.empty_like(q)
        works = []
        for form in FORMS:
            pages = random_pages(rng, (cached + QUERIES) // PAGE, kv_heads, head_dim, form)
            # 0 and 0.0: without a window and without a soft cap, also in decode below.
            arguments = (q, pages, cached, head_dim**-0.5, 0, 0.0, out)
            works.append(lambda arguments=arguments: module.attention(*arguments))
        # Keys and values: query i attends to the cached positions and to i + 1 new ones.
        products = 2 * QUERIES * heads * head_dim * (cached + (QUERIES + 1) / 2)
        rates = [products / seconds / 1e9 for seconds in lower_deciles(works, 11)]
        limits = [limit(module.kernel_level(), table) for table in (OF_WORDS, OF_BYTES)]
        f16, q8 = (f"{rate:6.1f} of {most:.0f}" for rate, most in zip(rates, limits, strict=True))
        print(f"heads of {head_dim:3}: {f16} GMAC/s, q8 {q8}")


def show_decode(module, rng, name):
    """Print a token's attention in all layers for each form, and a sum over the same bytes."""
    heads, kv_heads, head_dim, layers = MODELS[name]
    q = rng.standard_normal((1, heads, head_dim)).astype(np.float32)
    out = np.empty_like(q)
    works = []
    for form in FORMS:
        layer = random_pages(rng, DEPTH // PAGE, kv_heads, head_dim, form)
        # Pages of their own for each layer, so that decode reads them from memory.
        all_pages = aligned(np.broadcast_to(layer, (layers, *layer.shape)))

        def decode(all_pages=all_pages):
            for pages in all_pages:
                module.attention(q, pages, DEPTH - 1, head_dim**-0.5, 0, 0.0, out)

        works += [
            decode,
            lambda all_pages=all_pages: module.sum_bytes(all_pages.view(np.uint8).reshape(-1)),
        ]
    ms = [seconds * 1e3 for seconds in lower_deciles(works, 15)]
    print(
        f"{name}, a token behind {DEPTH:,}: {ms[0]:.2f} ms (bytes alone {ms[1]:.2f}), "
        f"q8 {ms[2]:.2f} ms ({ms[3]:.2f}): {ms[0] / ms[2]:.2f} times as fast"
    )


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    module = native.module()
    if module is None:
        raise SystemExit("the compiled module is not installed")
    if options.level and not module.set_kernel_level(options.level):
        raise SystemExit(f"--level: one of {', '.join(module.kernel_levels())}")
    module.set_threads(options.threads)
    rng = np.random.default_rng(1)
    print(f"{module.kernel_level()}, {options.threads} threads")
    show_prefill(module, rng)
    for name in MODELS:
        show_decode(module, rng, name)


if __name__ == "__main__":
    main()
