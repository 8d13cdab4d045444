"""The README's picture of speed, drawn from ``benchmarks/results/machines.json``.

    python benchmarks/speed_plot.py [--check]

It shows the last machine in that file on which every bar was measured. The bars of one model and
one kind have one scale. ``--check`` writes nothing, and fails when the picture is not current.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
MACHINES = json.loads((ROOT / "benchmarks/results/machines.json").read_text(encoding="utf-8"))
PICTURE = ROOT / "docs/images/speed.svg"
THREADS = 2
KINDS = {"pp512": "prefill, a prompt of 512 tokens", "tg128": "decode, 128 tokens"}
OURS = "bitnet"
LLAMA = "llama.cpp"
IK = "ik_llama.cpp"
OPENVINO = "OpenVINO GenAI"


@dataclass(frozen=True)
class Group:
    """The bars of one model.

    Attributes:
        title: name and encoding of the model.
        model: its name in the measurements.
        bars: name of the engine in the measurements, by the label of its bar.
    """

    title: str
    model: str
    bars: dict[str, str]


GROUPS = (
    Group(
        "SmolLM2 135M, Q4_1",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        {name: name for name in (OURS, OPENVINO, IK, LLAMA)},
    ),
    Group(
        "Gemma 3 270M, Q4_K_M",
        "gemma-3-270m-q4_k_m.gguf",
        {name: name for name in (OURS, IK, LLAMA)},
    ),
    Group(
        "Ternary 2B, as BitNet b1.58 2B-4T (synthetic weights)",
        "BitNet b1.58 2B-4T's shape, ternary, f16 head",
        {
            OURS: OURS,
            IK: f"{IK} IQ2_BN_R4",
            "bitnet.cpp": "bitnet.cpp I2_S",
            LLAMA: f"{LLAMA} TQ2_0",
        },
    ),
)
BARS = {(group.model, THREADS, engine) for group in GROUPS for engine in group.bars.values()}
MACHINE = next(  # the last one with all bars
    machine
    for machine in reversed(MACHINES)
    if {(row["model"], row["threads"], row["engine"]) for row in machine["rows"]} >= BARS
)
NOTE = (
    f"Tokens per second, two threads of {MACHINE['machine'].removesuffix(', 2 cores')}, "
    f"{MACHINE['date']}, engines in turns.",
    "Peers are built for this processor, except OpenVINO, which chooses its kernels by it.",
)

# Pixels: width of the picture, of the labels and of a column, height of a bar, from bar to bar.
WIDTH = 920
LEFT = 190
COLUMN = 360
BAR = 15
STEP = 20
STYLE = """
  svg { font: 13px system-ui, sans-serif; }
  .back { fill: #fff; } text { fill: #24292f; } .small { font-size: 11px; fill: #57606a; }
  .ours { fill: #3f51b5; } .peer { fill: #b4bccb; } .title { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117; } text { fill: #e6edf3; } .small { fill: #9198a1; }
    .ours { fill: #8c9eff; } .peer { fill: #4a5361; }
  }"""


def rate(group: Group, engine: str, kind: str) -> float:
    """Tokens per second in the one row of *group* that has *engine*."""
    (row,) = (
        row
        for row in MACHINE["rows"]
        if (row["model"], row["threads"], row["engine"]) == (group.model, THREADS, engine)
    )
    return float(row[kind])


def picture() -> str:
    """Text of the SVG file."""
    parts = []
    y = 24
    for number, heading in enumerate(KINDS.values()):
        parts.append(f'<text class="title" x="{LEFT + number * COLUMN}" y="{y}">{heading}</text>')
    for group in GROUPS:
        y += 30
        parts.append(f'<text class="title" x="12" y="{y}">{escape(group.title)}</text>')
        y += 8
        for label, engine in group.bars.items():
            style = "ours" if label == OURS else "peer"
            parts.append(f'<text x="12" y="{y + 12}">{escape(label)}</text>')
            for number, kind in enumerate(KINDS):
                highest = max(rate(group, name, kind) for name in group.bars.values())
                value = rate(group, engine, kind)
                x = LEFT + number * COLUMN
                width = (COLUMN - 80) * value / highest  # 80: room for the number after the bar
                parts.append(
                    f'<rect class="{style}" x="{x}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
                    f'<text x="{x + width + 6:.1f}" y="{y + 12}">{value:,.0f}</text>'
                )
            y += STEP
    y += 26
    for line in NOTE:
        parts.append(f'<text class="small" x="12" y="{y}">{escape(line)}</text>')
        y += 16
    height = y + 14
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">'
    )
    title = "<title>Tokens per second of bitnet and its peers</title>"
    back = f'<rect class="back" width="{WIDTH}" height="{height}"/>'
    return "\n".join([head, title, f"<style>{STYLE}\n</style>", back, *parts, "</svg>", ""])


def main() -> int:
    """Draw, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    if not parser.parse_args().check:
        PICTURE.write_text(picture(), encoding="utf-8")
    elif PICTURE.read_text(encoding="utf-8") != picture():
        print("not current: docs/images/speed.svg; run: python benchmarks/speed_plot.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
