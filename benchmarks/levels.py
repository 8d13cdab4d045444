"""Prefill of two instruction sets in turns: GMAC/s of one thread per encoding, and their ratio.

    python benchmarks/levels.py avx2 avx_vnni [--module build/evex] [--tokens 128] [--columns 1536]

Times are processor times, the best of several rounds in which both levels take turns, so that other
load affects both alike. `--module` is the folder of another build of the module, such as one whose
AVX-VNNI kernels use the instruction in its AVX-512 encoding (`cmake -DBITNET_AVX_VNNI=evex`), to
measure these kernels on a processor that has only this form.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import numpy as np

from bitnet.base import native

ROUNDS = 15


def load(folder):
    """The module built in *folder*; the installed one without a folder."""
    if not folder:
        return native.module()
    (path,) = Path(folder).glob("_native*")
    spec = importlib.util.spec_from_file_location("bitnet._native", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gmac_s(module, levels, name, rows, columns, tokens):
    """Billions of multiply-adds per processor second of the encoding *name* at each of *levels*."""
    kind = module.kernel_types().index(name)
    columns -= columns % (20 if name == "TERNARY_DENSE" else 256)  # whole blocks
    # Interleaved layouts have whole tiles of 16 rows.
    size = (rows + 15) // 16 * 16 * module.row_bytes(kind, columns)
    matrix = np.full(size, 0x11, dtype=np.uint8)
    x = np.random.default_rng(0).standard_normal((tokens, columns)).astype(np.float32)
    out = np.empty((tokens, rows), dtype=np.float32)
    best = dict.fromkeys(levels, float("inf"))
    for _ in range(ROUNDS):
        for level in levels:
            module.set_kernel_level(level)
            start = time.process_time()
            module.linear(kind, matrix, rows, columns, 1.0, x, out)
            best[level] = min(best[level], time.process_time() - start)
    return [rows * columns * tokens / best[level] / 1e9 for level in levels]


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("levels", nargs=2)
    parser.add_argument("--module", default="")
    parser.add_argument("--rows", type=int, default=1536, help="a multiple of 16")
    parser.add_argument("--columns", type=int, default=1536)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    module = load(options.module)
    if module is None:
        raise SystemExit("the compiled module is not installed")
    for level in options.levels:
        if level not in module.kernel_levels():
            raise SystemExit(f"{level}: not one of {', '.join(module.kernel_levels())}")
    module.set_threads(1)
    first, second = options.levels
    print(f"| {options.tokens} tokens | {first} | {second} | ratio |\n|---|---|---|---|")
    types = module.kernel_types()
    for name in (name for name in types if f"{name}_R16" not in types):
        rates = gmac_s(module, options.levels, name, options.rows, options.columns, options.tokens)
        print(f"| {name} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[1] / rates[0]:.2f} |")


if __name__ == "__main__":
    main()
