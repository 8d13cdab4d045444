"""Highest rate of multiply-adds of an x86 processor, for the benchmarks of kernels.

    python benchmarks/limits.py

Loops of multiply-adds of registers, without loads, compiled when they are run. Each adds to twelve
registers in turn, so that none waits for its last result. GMAC/s of one core: the best of several
short runs, by processor time.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from functools import cache, lru_cache
from pathlib import Path

SUMS = 12  # registers that are added to in turn
# Inline assembly escapes "%", "{" and "}". "$" stands for operand 0, the counter of the loop.
ESCAPED = str.maketrans({"%": "%%", "{": "%{", "}": "%}", "$": "%0"})
LOOPS = 1_000_000
# Instructions that add a product of registers 13 and 14 to register {0}, and the number of
# multiply-adds that they do; register 15 holds an intermediate product.
PRODUCTS = {
    "vpdpbusd of 512 bits": ("vpdpbusd %zmm13, %zmm14, %zmm{0}", 64),
    "vpdpwssd of 512 bits": ("vpdpwssd %zmm13, %zmm14, %zmm{0}", 32),
    "vpdpbusd of 256 bits": ("{{vex}} vpdpbusd %ymm13, %ymm14, %ymm{0}", 32),
    "vpdpbusd of 256 bits, EVEX": ("{{evex}} vpdpbusd %ymm13, %ymm14, %ymm{0}", 32),
    "vpmaddubsw, vpaddw": (
        "vpmaddubsw %ymm13, %ymm14, %ymm15; vpaddw %ymm15, %ymm{0}, %ymm{0}",
        32,
    ),
    "vpmaddwd, vpaddd": ("vpmaddwd %ymm13, %ymm14, %ymm15; vpaddd %ymm15, %ymm{0}, %ymm{0}", 16),
}
# What the processor must have, as Linux names it, where that is not "avx2".
NEEDS = {"vpdpbusd of 512 bits": "avx512_vnni", "vpdpwssd of 512 bits": "avx512_vnni"} | {
    "vpdpbusd of 256 bits": "avx_vnni",
    "vpdpbusd of 256 bits, EVEX": "avx512_vnni",
}
# The products with which a level multiplies bytes; the first one that the processor has counts.
OF_BYTES = {
    "avx2": ("vpmaddubsw, vpaddw",),
    "avx_vnni": ("vpdpbusd of 256 bits", "vpdpbusd of 256 bits, EVEX"),
    "avx512_vnni": ("vpdpbusd of 512 bits",),
}
OF_WORDS = {  # the same for 16-bit codes
    "avx2": ("vpmaddwd, vpaddd",),
    "avx_vnni": ("vpmaddwd, vpaddd",),
    "avx512_vnni": ("vpdpwssd of 512 bits",),
}


def source():
    """C source of a function for each of PRODUCTS: ``run0``, ``run1`` and so on.

    Each takes the number of times that its loop runs.
    """
    xmms = ", ".join(f'"xmm{i}"' for i in range(16))
    functions = []
    for number, (product, _) in enumerate(PRODUCTS.values()):
        lines = ["1:", *(product.format(i) for i in range(SUMS)), "dec $", "jnz 1b", "vzeroupper"]
        text = "".join(f'"{line.translate(ESCAPED)}\\n"\n' for line in lines)
        functions.append(
            f'void run{number}(long n) {{ __asm__ volatile({text} : "+r"(n) : : {xmms}, "cc"); }}'
        )
    return "\n".join(functions)


@lru_cache(maxsize=1)
def library():
    """The functions of :func:`source`, compiled and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "limits.c")
        built = Path(folder, "limits.so")
        code.write_text(source())
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", code, "-o", built], check=True)
        return ctypes.CDLL(str(built))


@lru_cache(maxsize=1)
def processor_flags():
    """Names of the instruction sets that Linux reports."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


@cache
def gmac_s(name):
    """Billions of multiply-adds per second of the product *name* on one core; None if missing."""
    if NEEDS.get(name, "avx2") not in processor_flags():
        return None
    run = getattr(library(), f"run{list(PRODUCTS).index(name)}")
    seconds = []
    for _ in range(15):
        start = time.process_time()
        run(ctypes.c_long(LOOPS))
        seconds.append(time.process_time() - start)
    return LOOPS * SUMS * PRODUCTS[name][1] / min(seconds) / 1e9


def limit(level, table):
    """GMAC/s of one core for *level*; NaN where it cannot be measured.

    *table* is OF_BYTES or OF_WORDS.
    """
    rates = (gmac_s(name) for name in table.get(level, ()))
    return next((rate for rate in rates if rate), float("nan"))


def main():
    """Print the rate of every product."""
    for name in PRODUCTS:
        rate = gmac_s(name)
        print(f"{name:28} {f'{rate:6.1f} GMAC/s' if rate else 'not here'}")


if __name__ == "__main__":
    main()
