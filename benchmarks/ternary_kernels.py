"""Speed of the ternary kernels by layout and batch size, beside that of memory; as a roofline, too.

    python benchmarks/ternary_kernels.py [--json FILE] [--svg FILE] [--from JSON...]

Every matrix is read from memory: the matrices that are multiplied in turn do not fit into a cache.
Both layouts take turns, so that other load affects both alike. The roofline shows multiply-adds per
second of the layout with two bits by batch size: with n tokens, a byte of packed weights gives 4 n
of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from pathlib import Path

import numpy as np
from limits import OF_BYTES, limit

from bitnet.base import native
from bitnet.bench import describe_machine
from bitnet.kernels.packing import COLUMNS

SHAPES = ((2560, 2560), (640, 2560), (6912, 2560), (2560, 6912))
LAYOUTS = ("TERNARY", "TERNARY_DENSE")
TOKENS = (1, 2, 4, 8, 16, 128, 512)
POOL_BYTES = 256 << 20
# By instruction set, in the roofline.
COLORS = {"avx2": "#c2410c", "avx_vnni": "#15803d", "avx512_vnni": "#1d4ed8", "amx": "#7e22ce"}


def seconds(module, layout, pool, shape, tokens):
    """Seconds of a product with a matrix of the *pool* that is not in a cache.

    The median of up to 48 products with different matrices; the least of 4 for a batch of more than
    16 *tokens*, where reading the matrix hardly counts.
    """
    kind = module.kernel_types().index(layout)
    rows = shape[0]
    columns = -(-shape[1] // COLUMNS[layout]) * COLUMNS[layout]
    size = rows * module.row_bytes(kind, columns)
    x = np.random.default_rng(0).standard_normal((tokens, columns)).astype(np.float32)
    out = np.empty((tokens, rows), dtype=np.float32)
    times = []
    for i in range(min(len(pool) // size, 48) if tokens <= 16 else 4):
        start = time.perf_counter()
        module.linear(kind, pool[i * size : (i + 1) * size], rows, columns, 1.0, x, out)
        times.append(time.perf_counter() - start)
    return float(np.median(times) if tokens <= 16 else min(times))


def read_rate(module, pool):
    """Bytes per second of a plain sum."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        module.sum_bytes(pool)
        times.append(time.perf_counter() - start)
    return len(pool) / min(times)


def measure():
    """The machine and the measurements as JSON values."""
    module = native.module()
    pool = module.allocate_weights(POOL_BYTES)
    pool[:] = 0x91  # any bytes do: speed does not depend on them
    measurements = []
    for threads in (1, 2):
        module.set_threads(threads)
        read = read_rate(module, pool)
        for level in module.kernel_levels()[1:]:
            module.set_kernel_level(level)
            peak = limit(level, OF_BYTES) * threads
            for shape, tokens, layout in itertools.product(SHAPES, TOKENS, LAYOUTS):
                elapsed_s = seconds(module, layout, pool, shape, tokens)
                macs = shape[0] * shape[1] * tokens
                measurements.append(
                    {
                        "threads": threads,
                        "level": level,
                        "layout": layout,
                        "shape": shape,
                        "tokens": tokens,
                        # Four bytes of a row have the codes of COLUMNS[layout] weights.
                        "gb_s": macs / tokens / COLUMNS[layout] * 4 / elapsed_s / 1e9,
                        "gmac_s": macs / elapsed_s / 1e9,
                        "read_gb_s": read / 1e9,
                        "limit_gmac_s": peak,
                    }
                )
    return {"machine": describe_machine(), "measurements": measurements}


def fastest(paths):
    """Several runs as one: the fastest of every measurement, and the highest read rate."""
    runs = [json.loads(path.read_text()) for path in paths]
    measurements = [
        max(same, key=lambda m: m["gmac_s"])
        for same in zip(*(run["measurements"] for run in runs), strict=True)
    ]
    reads = {}
    for m in (m for run in runs for m in run["measurements"]):
        reads[m["threads"]] = max(m["read_gb_s"], reads.get(m["threads"], 0.0))
    measurements = [{**m, "read_gb_s": reads[m["threads"]]} for m in measurements]
    return {"machine": runs[0]["machine"], "measurements": measurements}


def table(facts):
    """A line per level, number of threads, shape and layout, in Markdown."""
    lines = [
        "| threads | level | shape | layout | decode GB/s | of read | GMAC/s with 1 | with 8 | "
        "with 128 | with 512 | of limit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = {}
    for m in facts["measurements"]:
        key = (m["threads"], m["level"], tuple(m["shape"]), m["layout"])
        rows.setdefault(key, {})[m["tokens"]] = m
    for (threads, level, shape, layout), row in rows.items():
        rates = " | ".join(f"{row[n]['gmac_s']:.0f}" for n in (1, 8, 128, 512))
        share = row[1]["gb_s"] / row[1]["read_gb_s"]
        of_limit = row[512]["gmac_s"] / row[512].get("limit_gmac_s", math.nan)
        lines.append(
            f"| {threads} | {level} | {shape[0]} x {shape[1]} | {layout} | {row[1]['gb_s']:.1f} | "
            f"{share:.0%} | {rates} | {of_limit:.0%} |"
        )
    return "\n".join(lines)


def roofline(facts):
    """The picture as SVG, for the shape 6912 x 2560."""
    width = 720
    height = 420
    left = 70
    bottom = 60
    points = [
        m
        for m in facts["measurements"]
        if tuple(m["shape"]) == (6912, 2560) and m["layout"] == "TERNARY"
    ]
    low = 40.0  # GMAC/s at the bottom and at the top of the logarithmic scale
    high = 1000.0

    def x(tokens):
        return left + math.log2(tokens) / 9 * (width - left - 160)  # 2**9: the largest batch

    def y(rate):
        span = math.log(high) - math.log(low)
        return height - bottom - (math.log(rate) - math.log(low)) / span * (height - bottom - 30)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="20">Ternary products, 6912 x 2560: GMAC/s by batch size</text>',
    ]
    parts += [
        f'<line x1="{left}" x2="{width - 160}" y1="{y(rate):.1f}" y2="{y(rate):.1f}" '
        f'stroke="#dddddd"/><text x="{left - 10}" y="{y(rate) + 4:.1f}" '
        f'text-anchor="end">{rate}</text>'
        for rate in (50, 100, 200, 400, 800)
    ]
    parts += [
        f'<text x="{x(tokens):.1f}" y="{height - bottom + 20}" text-anchor="middle">{tokens}</text>'
        for tokens in TOKENS
    ]
    parts.append(f'<text x="{left}" y="{height - 15}">tokens in the batch</text>')
    for threads in (1, 2):
        dash = "" if threads == 2 else ' stroke-dasharray="6 4"'
        read = max(m["read_gb_s"] for m in points if m["threads"] == threads)
        roof = [(n, read * 4 * n) for n in (1, 1.5, 2, 3, 4, 6, 8) if read * 4 * n < high]
        path = " ".join(f"{x(n):.1f},{y(rate):.1f}" for n, rate in roof)
        parts.append(f'<polyline points="{path}" fill="none" stroke="#888888"{dash}/>')
        for level, color in COLORS.items():
            mine = [m for m in points if m["threads"] == threads and m["level"] == level]
            path = " ".join(f"{x(m['tokens']):.1f},{y(m['gmac_s']):.1f}" for m in mine)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>'
            )
            parts += [
                f'<circle cx="{x(m["tokens"]):.1f}" cy="{y(m["gmac_s"]):.1f}" r="3" '
                f'fill="{color}"/>'
                for m in mine
            ]
            if mine:
                last = mine[-1]
                parts.append(
                    f'<text x="{x(512) + 10:.1f}" y="{y(last["gmac_s"]) + 4:.1f}" '
                    f'fill="{color}">{level}, {threads}</text>'
                )
        if roof:  # else one token reads faster than the picture is high
            parts.append(
                f'<text x="{x(roof[-1][0]) + 6:.1f}" y="{y(roof[-1][1]) + 4:.1f}" '
                f'fill="#666666">memory, {threads}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main():
    """Measure or read, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the measurements")
    parser.add_argument("--svg", type=Path, help="write the roofline")
    parser.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        help="runs to draw from instead of a new one: the fastest of each measurement",
    )
    options = parser.parse_args()
    facts = fastest(options.sources) if options.sources else measure()
    print(table(facts))
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(roofline(facts))


if __name__ == "__main__":
    main()
