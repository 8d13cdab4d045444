"""Tables and counts as a terminal shows them: within its width, with a heading.

Into a pipe a table is as wide as what is in it, without escapes: nothing is cut off there. The only
attribute is bold, which can be read on any background. The terminal breaks sentences: a command in
one of them can be copied.
"""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING, TextIO

from bitnet.base import settings
from bitnet.base.bars import BARS, cut
from bitnet.base.invocation import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NARROWEST = 8  # characters that a cell keeps
DIGITS = 12  # of a digest, which tell files of one cache apart
_GAP = "  "
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def quantity(number: int, noun: str) -> str:
    """*number* with *noun*: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(text: str) -> str:
    """*text* with the first digits of each digest in it."""
    return _DIGEST.sub(lambda found: f"{found[0][:DIGITS]}…", text)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    shrink: Sequence[int] = (),
    whole: int | None = None,
    right: Sequence[int] = (),
    stream: TextIO | None = None,
) -> Iterator[str]:
    """Lines of a table, the heading first; the cells of the columns *right* end in one line.

    Where the terminal *stream*, by default stdout, is too narrow, the cells of the columns *shrink*
    lose their middle, the widest first. The column *whole* has names that are typed again: one that
    is too long moves the rest of its row.
    """
    stream = stream or sys.stdout
    rows = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    bold, plain = "", ""
    if stream.isatty():
        room = shutil.get_terminal_size().columns - len(_GAP) * (len(head) - 1)
        if whole is not None and sum(widths) > room:
            widths[whole] = min(widths[whole], room // 2)
        while sum(widths) > room and any(widths[column] > NARROWEST for column in shrink):
            widths[max(shrink, key=widths.__getitem__)] -= 1
        if whole is not None:
            widths[whole] = max(NARROWEST, widths[whole] - max(0, sum(widths) - room))
        if not settings.no_color() and not settings.dumb_terminal():
            bold, plain = _BOLD, _PLAIN

    def line(cells: Sequence[str]) -> str:
        padded = []
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            text = cell if at == whole else cut(cell, width)
            padded.append(text.rjust(width) if at in right else text.ljust(width))
        return _GAP.join(padded).rstrip()

    yield f"{bold}{line(head)}{plain}"
    yield from map(line, rows)


def brief(text: str) -> str:
    """*text* as stdout shows it: with short digests on a terminal, where they are only read."""
    return short(text) if sys.stdout.isatty() else text


def show(*lines: str, stream: TextIO | None = None) -> None:
    """Print *lines* at once."""
    stream = stream or sys.stdout
    with BARS.above(stream):
        stream.write("".join(f"{line}\n" for line in lines))
        stream.flush()


class LiveLine:
    """Steps of long work on stderr: one line that changes on a terminal, else a line for each."""

    def __init__(self) -> None:
        self._changes = sys.stderr.isatty() and not settings.dumb_terminal()

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._changes:
            self._write("\r\x1b[K")

    def tell(self, text: str) -> None:
        """Show *text* instead of what was shown before."""
        # The line could not be taken back if it went on below.
        shown = text[: shutil.get_terminal_size().columns - 1]
        self._write(f"\r{shown}\x1b[K" if self._changes else f"{text}\n")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
