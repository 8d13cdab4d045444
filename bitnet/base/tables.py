"""Tables and counts as a terminal shows them: within its width, with a heading.

In a pipe or a file nothing is shortened or broken, and there are no escapes. On a terminal the only
attribute is bold, which can be read on any background, and sentences are broken at spaces, but not
inside a command or a path: both can be copied.
"""

from __future__ import annotations

import re
import sys
import textwrap
from typing import TYPE_CHECKING, TextIO

from bitnet.base import settings
from bitnet.base.bars import BARS
from bitnet.base.columns import as_shown, clip, columns_of, cut, ellipsis_for, pad, width_of
from bitnet.base.invocation import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NARROWEST = 8  # width to which a column may shrink
DIGITS = 12  # of a digest, enough to distinguish the files of a cache
_GAP = "  "
# A command in backticks, or a path up to the next comma or the end, since it may have spaces.
_UNBROKEN = re.compile(r"`[^`]*`|(?<![^ ,])~?/[^,]*(?=,|$)")
_GLUE = "\x00"  # stands for a space at which no line is broken
_BOLD = "\x1b[1m"
_PLAIN = "\x1b[0m"
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def quantity(number: int, noun: str) -> str:
    """*number* with *noun*: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(text: str) -> str:
    """*text* with each SHA-256 digest in it cut to its first digits."""
    return _DIGEST.sub(lambda match: f"{match[0][:DIGITS]}…", text)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    shrink: Sequence[int] = (),
    whole: int | None = None,
    right: Sequence[int] = (),
    below: Sequence[int] = (),
    stream: TextIO | None = None,
) -> Iterator[str]:
    """Lines of a table, the heading first.

    Args:
        head: headings of the columns.
        rows: cells of each row.
        shrink: columns whose cells lose their middle, the widest first, if the terminal is too
            narrow.
        whole: the column of names that users type again. They are never cut: one that is too long
            moves the rest of its row to the right.
        right: columns that are aligned on the right.
        below: columns that are written below each row, with their headings, if shrinking the others
            is not enough; paths in them are not broken.
        stream: where the table is written, by default stdout.
    """
    stream = stream or sys.stdout
    rows = [[_in_one_line(cell) for cell in row] for row in rows]
    if below and stream.isatty() and _least_width(head, rows, shrink, whole) > columns_of(stream):
        yield from _stack(head, rows, shrink, whole, right, below, stream)
        return
    widths = [max(map(width_of, column)) for column in zip(head, *rows, strict=True)]
    ellipsis = ellipsis_for(stream)
    bold = ""
    plain = ""
    if stream.isatty():
        room = columns_of(stream) - len(_GAP) * (len(head) - 1)
        # Names get at most half of the line, before other columns shrink, and at last what is left.
        if whole is not None and sum(widths) > room:
            widths[whole] = min(widths[whole], room // 2)
        while sum(widths) > room and any(widths[column] > NARROWEST for column in shrink):
            widths[max(shrink, key=widths.__getitem__)] -= 1
        if whole is not None:
            widths[whole] = max(NARROWEST, widths[whole] - max(0, sum(widths) - room))
        if not settings.no_color() and not settings.dumb_terminal():
            bold = _BOLD
            plain = _PLAIN

    def line(cells: Sequence[str]) -> str:
        padded = []
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            text = cell if at == whole else cut(cell, width, ellipsis)
            padded.append(pad(text, width, right=at in right))
        return _GAP.join(padded).rstrip()

    yield f"{bold}{line(head)}{plain}"
    yield from map(line, rows)


def _in_one_line(cell: str) -> str:
    """*cell* with control characters, line ends and tabs escaped, so that it keeps its place."""
    return harmless(cell).replace("\n", "\\n").replace("\t", "\\t")


def _least_width(
    head: Sequence[str], rows: Sequence[Sequence[str]], shrink: Sequence[int], whole: int | None
) -> int:
    """Width of the table if its columns shrink as far as they can.

    A long name in the column *whole* does not count.
    """
    widths = [max(map(width_of, column)) for column in zip(head, *rows, strict=True)]
    for at in {*shrink, *([] if whole is None else [whole])}:
        widths[at] = min(widths[at], max(NARROWEST, width_of(head[at])))
    return sum(widths) + len(_GAP) * (len(head) - 1)


def _stack(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    shrink: Sequence[int],
    whole: int | None,
    right: Sequence[int],
    below: Sequence[int],
    stream: TextIO,
) -> Iterator[str]:
    """Lines of a table whose columns *below* are under each row."""
    kept_columns = [at for at in range(len(head)) if at not in below]

    def places(columns: Sequence[int]) -> list[int]:
        """Indices of *columns* in the table without the columns *below*."""
        return [kept_columns.index(at) for at in columns if at in kept_columns]

    lines = table(
        [head[at] for at in kept_columns],
        [[row[at] for at in kept_columns] for row in rows],
        shrink=places(shrink),
        whole=None if whole is None else places([whole])[0],
        right=places(right),
        stream=stream,
    )
    yield next(lines)
    for row, line in zip(rows, lines, strict=True):
        yield line
        cells = [f"{head[at]} {_glue_path(row[at])}" for at in below if row[at]]
        yield from wrap(", ".join(cells), indent="    ", first="    ", stream=stream)


def wrap(
    text: str, *, indent: str = "  ", first: str = "", stream: TextIO | None = None
) -> list[str]:
    """*text* for *stream*, by default stdout: on a terminal, its lines are broken at spaces.

    Paths, and commands in backticks, are not broken, so that they can be copied. The first line
    begins with *first*, the others with *indent*. Outside a terminal the result is *first* and
    *text* as one unbroken string.
    """
    stream = stream or sys.stdout
    if not stream.isatty():
        return [f"{first}{text}"]
    lines: list[str] = []
    for line in text.split("\n") if text else ():
        glued = _UNBROKEN.sub(lambda match: match[0].replace(" ", _GLUE), line)
        broken = textwrap.wrap(
            glued,
            max(20, columns_of(stream)),  # a narrower terminal wraps by itself
            initial_indent=indent if lines else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += broken or [""]
    return [line.replace(_GLUE, " ") for line in lines]


def _glue_path(cell: str) -> str:
    """*cell*, made unbreakable if it is a single path, which may have spaces and commas."""
    is_path = "/" in cell and ", /" not in cell
    return cell.replace(" ", _GLUE) if is_path else cell


def brief(text: str) -> str:
    """*text* for stdout, with short digests on a terminal, where no program reads them."""
    return short(text) if sys.stdout.isatty() else text


def show(*lines: str, stream: TextIO | None = None) -> None:
    """Print *lines* and flush them, above the bars of running operations."""
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
        # Only a text of one line can be overwritten by the next one.
        shown = as_shown(text.replace("\n", " "), sys.stderr)
        line = clip(shown, columns_of(sys.stderr) - 1)
        self._write(f"\r{line}\x1b[K" if self._changes else f"{text}\n")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
