"""Tables and counts as a terminal shows them: within its width, with a heading.

Into a pipe a table is as wide as what is in it, without colours: nothing is cut off there.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, TextIO

from bitnet import settings
from bitnet.invocation import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LiveLine", "coloured", "counted", "short", "table"]

NARROWEST = 8  # characters that a cell keeps
DIGITS = 12  # of a digest, which tell files of one cache apart
_GAP = "  "
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_HEX = frozenset("0123456789abcdef")


def counted(number: int, noun: str) -> str:
    """*number* with *noun*: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(name: str) -> str:
    """*name*, or the first digits of it if it is a digest."""
    return f"{name[:DIGITS]}…" if len(name) == 64 and set(name) <= _HEX else name


def coloured(stream: TextIO) -> bool:
    """True if *stream* is a terminal that takes colours and they are enabled."""
    return stream.isatty() and not settings.no_color() and not settings.dumb_terminal()


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    shrink: Sequence[int] = (),
    right: Sequence[int] = (),
    stream: TextIO | None = None,
) -> Iterator[str]:
    """Lines of a table, the heading first.

    Args:
        head: a name for each column.
        rows: the cells.
        shrink: columns that lose the middle of their cells, in this order, where the terminal is
            too narrow.
        right: columns whose cells end in one line.
        stream: where it is shown; stdout when not given.
    """
    stream = stream or sys.stdout
    rows = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    if stream.isatty():
        room = shutil.get_terminal_size().columns - len(_GAP) * (len(head) - 1)
        for column in shrink:
            over = max(0, sum(widths) - room)
            widths[column] = min(widths[column], max(NARROWEST, widths[column] - over))
    bold, plain = (_BOLD, _PLAIN) if coloured(stream) else ("", "")
    yield f"{bold}{_line(head, widths, right)}{plain}"
    for row in rows:
        yield _line(row, widths, right)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    shown = (
        _cut(cell, width).rjust(width) if at in right else _cut(cell, width).ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return _GAP.join(shown).rstrip()


def _cut(text: str, width: int) -> str:
    """*text* without its middle where it is too long."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


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
        self._write(f"\r{text}\x1b[K" if self._changes else f"{text}\n")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
