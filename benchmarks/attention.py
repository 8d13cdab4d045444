"""Speed of attention: GMAC/s of 512 queries behind a cache, and one query's time at depth.

    python benchmarks/attention.py [--level avx2] [--threads 1]

Processor time, best of several runs, so that other work on the machine shows as little as possible.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from kernels import best_s

from bitnet import native
from bitnet.kernels.kv_codes import PAGE, pages_of

QUERIES = 512
SHAPES = ((64, 9, 3, 3584), (128, 8, 2, 1536), (256, 4, 1, 1536))  # head, heads, of keys, cached
LAYERS = 30  # of the decoded token; together more than a cache of the processor holds


def random_pages(rng, count, kv_heads, head_dim):
    """*count* pages of one layer."""
    keys, values = rng.standard_normal((2, kv_heads, count * PAGE, head_dim)).astype(np.float32)
    return pages_of(keys, values)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    module = native.module()
    if module is None:
        raise SystemExit("the compiled module is not installed")
    if chosen.level and not module.set_kernel_level(chosen.level):
        raise SystemExit(f"--level: one of {', '.join(module.kernel_levels())}")
    module.set_threads(chosen.threads)
    rng = np.random.default_rng(1)
    print(f"{module.kernel_level()}, {chosen.threads} threads")
    for head_dim, heads, kv_heads, cached in SHAPES:
        pages = random_pages(rng, (cached + QUERIES) // PAGE, kv_heads, head_dim)
        q = rng.standard_normal((QUERIES, heads, head_dim)).astype(np.float32)
        out = np.empty_like(q)

        def prefill(q=q, pages=pages, cached=cached, head_dim=head_dim, out=out):
            module.attention(q, pages, cached, head_dim**-0.5, 0, 0.0, out)

        products = 2 * QUERIES * heads * head_dim * (cached + (QUERIES + 1) / 2)
        rate = products / best_s(prefill, 5, time.process_time)
        print(f"heads of {head_dim:3}: {rate / 1e9:6.1f} GMAC/s")
    depth, (head_dim, heads, kv_heads, _) = 4096, SHAPES[0]
    layers = [random_pages(rng, depth // PAGE, kv_heads, head_dim) for _ in range(LAYERS)]
    q = rng.standard_normal((1, heads, head_dim)).astype(np.float32)
    out = np.empty_like(q)

    def decode():
        for pages in layers:
            module.attention(q, pages, depth - 1, head_dim**-0.5, 0, 0.0, out)

    seconds = best_s(decode, 9, time.process_time)
    print(f"one token behind {depth:,}, {LAYERS} layers: {seconds * 1e3:5.2f} ms")


if __name__ == "__main__":
    main()
