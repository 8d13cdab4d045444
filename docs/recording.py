"""Record commands in a terminal and draw them as a moving picture (needs ``pyte``; not on Windows).

    python docs/recording.py [PICTURE]

The commands run in a terminal of 80 by 20 characters, whose screens are kept with their times. A
pause counts as one second at most. The picture is light or dark as the page that shows it is, and
loads nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/terminal.svg"
COLUMNS, LINES = 80, 20
COMMANDS = (
    'bitnet infer bitnet-tiny --prompt "Elizabeth was" --max-tokens 60 --temperature 0.7 --seed 5',
    'bitnet tokenize "It is a truth universally acknowledged" --model bitnet-tiny',
    "bitnet bench bitnet-tiny --tests pp128,tg64",
    "bitnet models",
)
KEY_S, PAUSE_S, FRAME_S, END_S = 0.03, 1.0, 0.08, 4.0
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14  # of a character, and around the text, in pixels
STYLE = """
svg { color-scheme: light dark }
rect { fill: #ffffff; stroke: #d0d7de }
text { fill: #1f2328; font: 14px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
.b { font-weight: bold }
.p { fill: #0969da }
@media (prefers-color-scheme: dark) {
  rect { fill: #0d1117; stroke: #30363d }
  text { fill: #e6edf3 }
  .p { fill: #58a6ff }
}
g { visibility: hidden }
"""


class Terminal:
    """A screen that programs write to, and what it showed when."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.frames: list[tuple[float, tuple[str, ...]]] = []
        self.now = 0.0

    def keep(self, seconds: float) -> None:
        """Let the screen stand for *seconds*; one that lasts is kept."""
        shown = tuple(self._row(line) for line in range(LINES))
        if not self.frames or (
            self.frames[-1][1] != shown and self.now - self.frames[-1][0] >= FRAME_S
        ):
            self.frames.append((self.now, shown))
        self.now += min(seconds, PAUSE_S)

    def _row(self, line: int) -> str:
        """The characters of a line as ``tspan`` elements of one kind each."""
        cells = [self.screen.buffer[line][column] for column in range(COLUMNS)]
        text = "".join(cell.data for cell in cells).rstrip()
        spans, start = [], 0
        for end in range(1, len(text) + 1):
            if end == len(text) or cells[end].bold != cells[start].bold:
                part = escape(text[start:end])
                spans.append(f'<tspan class="b">{part}</tspan>' if cells[start].bold else part)
                start = end
        found = "".join(spans)
        return found.replace("$ ", '<tspan class="p">$ </tspan>', 1) if text[:2] == "$ " else found

    def type(self, text: str) -> None:
        """Show *text* key by key."""
        for key in text:
            self.stream.feed(key.encode())
            self.keep(KEY_S)

    def run(self, command: str) -> None:
        """Run *command* in this terminal.

        Raises:
            SystemExit: it fails.
        """
        self.type(f"$ {command}")
        self.stream.feed(b"\r\n")
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", LINES, COLUMNS, 0, 0))
        program = str(Path(sys.executable).with_name("bitnet"))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        process = subprocess.Popen(
            [program, *shlex.split(command)[1:]],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
        )  # fmt: skip
        os.close(theirs)
        last = time.perf_counter()
        while select.select([ours], [], [], 60)[0]:
            try:
                written = os.read(ours, 65536)
            except OSError:  # Linux raises this once the last writer is gone
                break
            now = time.perf_counter()
            self.keep(now - last)
            last = now
            self.stream.feed(written)
        os.close(ours)
        if process.wait():
            raise SystemExit(f"{command} ended with {process.returncode}")
        self.keep(FRAME_S)
        self.keep(PAUSE_S)


def picture(frames: list[tuple[float, tuple[str, ...]]], whole_s: float) -> str:
    """The frames as SVG; each is visible from its time to that of the next."""
    width, height = COLUMNS * WIDTH + 2 * MARGIN, LINES * HEIGHT + 2 * MARGIN
    rows = {row: f"r{number}" for number, row in enumerate(dict.fromkeys(
        row for _, frame in frames for row in frame if row
    ))}  # fmt: skip
    shared = "".join(f'<text id="{name}">{row}</text>' for row, name in rows.items())
    rules, groups = [], []
    ends = [start for start, _ in frames[1:]] + [whole_s]
    for number, ((start, frame), end) in enumerate(zip(frames, ends, strict=True)):
        rules.append(
            f"@keyframes f{number} {{ 0% {{ visibility: hidden }} "
            f"{100 * start / whole_s:.3f}% {{ visibility: visible }} "
            f"{100 * end / whole_s:.3f}% {{ visibility: hidden }} }}\n"
            f"#f{number} {{ animation: f{number} {whole_s:.1f}s step-end infinite }}"
        )
        lines = "".join(
            f'<use href="#{rows[row]}" x="{MARGIN}" y="{MARGIN + HEIGHT * (line + 0.8):.1f}"/>'
            for line, row in enumerate(frame)
            if row
        )
        groups.append(f'<g id="f{number}">{lines}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'role="img" aria-label="A recording of a terminal">\n'
        f"<style>{STYLE}{chr(10).join(rules)}</style>\n<defs>{shared}</defs>\n"
        f'<rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )


def main() -> None:
    """Record, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", type=os.path.abspath, default=PICTURE)
    options = parser.parse_args()
    terminal = Terminal()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BITNET_CACHE_DIR"] = folder  # nothing is here but what the package brings
        os.chdir(folder)
        for command in COMMANDS:
            terminal.run(command)
        os.chdir(ROOT)
    terminal.type("$ ")
    terminal.keep(FRAME_S)
    whole_s = terminal.now + END_S
    Path(options.picture).write_text(picture(terminal.frames, whole_s), encoding="utf-8")
    print(f"{options.picture}: {len(terminal.frames)} frames, {whole_s:.1f} s")


if __name__ == "__main__":
    main()
