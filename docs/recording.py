"""Record commands in a terminal and draw them as pictures (needs ``pyte``; not on Windows).

    python docs/recording.py [FOLDER]

The moving picture replays COMMANDS in a terminal of 80 by 20 characters, with pauses cut to one
second. Two still pictures have the end of the output of a command, in a terminal of 80 by 24 and in
one of 120 by 40. All are light or dark as the page that contains them, and load nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import shlex
import shutil
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
FOLDER = ROOT / "docs/images"
COLUMNS = 80
LINES = 20
COMMANDS = (
    'bitnet infer bitnet-tiny --prompt "Elizabeth was" --max-tokens 60 --temperature 0.7 --seed 5',
    'bitnet tokenize "It is a truth universally acknowledged" --model bitnet-tiny',
    "bitnet bench bitnet-tiny --tests pp128,tg64",
    "bitnet models",
)
# By size of the terminal, in columns and lines: a command, whose last lines it shows.
SCREENS = {
    (80, 24): "bitnet verify bitnet-tiny.gguf",
    (120, 40): "bitnet crossval bitnet-tiny.gguf --against float64 --max-positions 64 --greedy 8",
}
KEY_S = 0.03  # between two keys that are typed
PAUSE_S = 1.0  # the longest pause; longer ones are cut
FRAME_S = 0.08  # a screen that follows the last one sooner is left out
END_S = 4.0  # of the last screen, before the picture begins again
# In pixels: size of a character, and space around the text.
WIDTH = 8.4
HEIGHT = 18
MARGIN = 14
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
"""


class Terminal:
    """A screen to which programs write, with its earlier contents.

    Attributes:
        frames: seconds from the beginning, and lines as SVG, of each screen that was kept.
        now: seconds of the picture so far.
    """

    def __init__(self, columns: int = COLUMNS, lines: int = LINES) -> None:
        self.columns = columns
        self.lines = lines
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.frames: list[tuple[float, tuple[str, ...]]] = []
        self.now = 0.0

    def keep(self, seconds: float) -> None:
        """Keep the screen as it is now, and then let *seconds* pass, at most PAUSE_S.

        A screen equal to the last one, or within FRAME_S after it, is not kept.
        """
        lines = self.shown()
        if not self.frames or (
            self.frames[-1][1] != lines and self.now - self.frames[-1][0] >= FRAME_S
        ):
            self.frames.append((self.now, lines))
        self.now += min(seconds, PAUSE_S)

    def shown(self) -> tuple[str, ...]:
        """The lines of the screen, as SVG."""
        return tuple(self._row(line) for line in range(self.lines))

    def _row(self, line: int) -> str:
        """A line as SVG, in which bold characters and a prompt at its beginning are ``tspan``."""
        cells = [self.screen.buffer[line][column] for column in range(self.columns)]
        text = "".join(cell.data for cell in cells).rstrip()
        spans = []
        start = 0
        for end in range(1, len(text) + 1):
            if end == len(text) or cells[end].bold != cells[start].bold:
                part = escape(text[start:end])
                spans.append(f'<tspan class="b">{part}</tspan>' if cells[start].bold else part)
                start = end
        row = "".join(spans)
        return row.replace("$ ", '<tspan class="p">$ </tspan>', 1) if text[:2] == "$ " else row

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
        controller, tty = pty.openpty()
        fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("4H", self.lines, self.columns, 0, 0))
        program = str(Path(sys.executable).with_name("bitnet"))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(self.columns)}
        process = subprocess.Popen(
            [program, *shlex.split(command)[1:]],
            stdin=tty, stdout=tty, stderr=tty, env=environment,
        )  # fmt: skip
        os.close(tty)
        last = time.perf_counter()
        while select.select([controller], [], [], 60)[0]:
            try:
                output = os.read(controller, 65536)
            except OSError:  # Linux raises this once the last writer is gone
                break
            now = time.perf_counter()
            self.keep(now - last)
            last = now
            self.stream.feed(output)
        os.close(controller)
        if process.wait():
            raise SystemExit(f"{command} ended with {process.returncode}")
        self.keep(FRAME_S)
        self.keep(PAUSE_S)


def picture(frames: list[tuple[float, tuple[str, ...]]], whole_s: float) -> str:
    """*frames* as an SVG that lasts *whole_s* seconds and begins again.

    Each frame is visible from its time to that of the next. A line that several frames have is
    stored once.
    """
    rows = {row: f"r{number}" for number, row in enumerate(dict.fromkeys(
        row for _, frame in frames for row in frame if row
    ))}  # fmt: skip
    shared = "".join(f'<text id="{name}">{row}</text>' for row, name in rows.items())
    rules = ["g { visibility: hidden }"]
    groups = []
    ends = [start for start, _ in frames[1:]] + [whole_s]
    for number, ((start, frame), end) in enumerate(zip(frames, ends, strict=True)):
        rules.append(
            f"@keyframes f{number} {{ 0% {{ visibility: hidden }} "
            f"{100 * start / whole_s:.3f}% {{ visibility: visible }} "
            f"{100 * end / whole_s:.3f}% {{ visibility: hidden }} }}\n"
            f"#f{number} {{ animation: f{number} {whole_s:.1f}s step-end infinite }}"
        )
        lines = "".join(
            f'<use href="#{rows[row]}" {_place(line)}/>' for line, row in enumerate(frame) if row
        )
        groups.append(f'<g id="f{number}">{lines}</g>')
    last = f"#f{len(frames) - 1} {{ animation: none; visibility: visible }}"
    rules.append(
        f"@media (prefers-reduced-motion: reduce) {{ g {{ animation: none !important }} {last} }}"
    )
    return _drawn(COLUMNS, LINES, STYLE + "\n".join(rules), [f"<defs>{shared}</defs>", *groups])


def still(terminal: Terminal) -> str:
    """The screen of *terminal* as SVG."""
    rows = enumerate(terminal.shown())
    lines = [f"<text {_place(line)}>{row}</text>" for line, row in rows if row]
    return _drawn(terminal.columns, terminal.lines, STYLE, lines)


def _place(line: int) -> str:
    """Attributes with the position of a line, counted from 0: the left end of its baseline."""
    return f'x="{MARGIN}" y="{MARGIN + HEIGHT * (line + 0.8):.1f}"'


def _drawn(columns: int, lines: int, style: str, parts: list[str]) -> str:
    """An SVG of the window of a terminal, with the elements *parts* in it."""
    width = columns * WIDTH + 2 * MARGIN
    height = lines * HEIGHT + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'role="img" aria-label="A terminal of {columns} by {lines} characters">\n'
        f"<style>{style}</style>\n"
        f'<rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main() -> None:
    """Record, and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=os.path.abspath, default=FOLDER)
    output = Path(parser.parse_args().folder)
    terminal = Terminal()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BITNET_CACHE_DIR"] = folder  # nothing is here but what the package brings
        os.chdir(folder)
        for command in COMMANDS:
            terminal.run(command)
        shutil.copy(ROOT / "bitnet/shipped/bitnet-tiny.gguf", folder)
        for (columns, lines), command in SCREENS.items():
            screen = Terminal(columns, lines)
            screen.run(command)
            screen.type("$ ")
            path = output / f"terminal-{columns}x{lines}.svg"
            path.write_text(still(screen), encoding="utf-8")
            print(path)
        os.chdir(ROOT)
    terminal.type("$ ")
    terminal.keep(FRAME_S)
    whole_s = terminal.now + END_S
    path = output / "terminal.svg"
    path.write_text(picture(terminal.frames, whole_s), encoding="utf-8")
    print(f"{path}: {len(terminal.frames)} frames, {whole_s:.1f} s")


if __name__ == "__main__":
    main()
