"""Tables, sentences and counts as a terminal shows them: within its width, tables with a heading.

Into a pipe a table is as wide as what is in it, without escapes: nothing is cut off there. The only
attribute is bold, which can be read on any background.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, TextIO

from bitnet.base import settings
from bitnet.base.invocation import NO_BREAK, harmless, unbroken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NARROWEST = 8  # characters that a cell keeps
SENTENCE = 12  # and one of words, which goes on in the next line
DIGITS = 12  # of a digest, which tell files of one cache apart
_GAP = "  "
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_KEY = re.compile(r" +\S+(?: \S+)* {2,}")  # of a line that says what its value is


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
    wrap: int | None = None,
    stream: TextIO | None = None,
) -> Iterator[str]:
    """Lines of a table, the heading first; the cells of the columns *right* end in one line.

    Where the terminal *stream*, by default stdout, is too narrow, the cells of the column *wrap* go
    on in the next line; then those of the columns *shrink* lose their middle, the widest first. The
    column *whole* has names that are typed again: it is never cut. If need be, each has a line of
    its own, above the rest of its row.
    """
    stream = stream or sys.stdout
    rows = [[harmless(cell) for cell in row] for row in rows]
    if stream.isatty():
        rows = [
            [cell if at == whole else short(cell) for at, cell in enumerate(row)] for row in rows
        ]
    widths = [max(map(_width, column)) for column in zip(head, *rows, strict=True)]
    if stream.isatty():
        room = shutil.get_terminal_size().columns - len(_GAP) * (len(head) - 1)
        if wrap is not None:
            left = room - sum(widths) + widths[wrap]
            widths[wrap] = min(widths[wrap], max(left, SENTENCE))
        while sum(widths) > room and any(widths[column] > NARROWEST for column in shrink):
            widths[max(shrink, key=widths.__getitem__)] -= 1
    takes_bold = stream.isatty() and not settings.no_color() and not settings.dumb_terminal()
    bold, plain = (_BOLD, _PLAIN) if takes_bold else ("", "")
    if whole is not None and stream.isatty() and sum(widths) > room:
        name = head[whole]
        yield f"{bold}{name}{plain}"
        rest = [at for at in range(len(head)) if at != whole]
        narrow = [
            *table(
                ["", *(head[at] for at in rest)],
                [["", *(row[at] for at in rest)] for row in rows],
                shrink=[rest.index(at) + 1 for at in shrink],
                right=[rest.index(at) + 1 for at in right],
                stream=stream,
            )
        ]
        yield narrow[0]
        for row, line in zip(rows, narrow[1:], strict=True):
            yield row[whole]
            yield line
        return
    yield f"{bold}{_line(head, widths, right)}{plain}"
    for row in rows:
        yield from _lines(row, widths, right, wrap)


def wrap_lines(lines: Iterable[str], stream: TextIO | None = None) -> Iterator[str]:
    """*lines* broken between words where they are wider than the terminal *stream*.

    They go on below the value of a key, or two columns to the right. A long word such as a path
    stays whole, as does a command: they are there to be copied. So does the heading of a table.
    """
    stream = stream or sys.stdout
    columns = shutil.get_terminal_size().columns if stream.isatty() else 0
    for line in (each for text in lines for each in text.split("\n")):
        if not columns or _width(line) <= columns or "\x1b" in line:
            yield line
            continue
        key = _KEY.match(line)
        margin = key.end() if key else len(line) - len(line.lstrip()) + len(_GAP)
        indent = " " * min(margin, columns * 2 // 3)
        for part in _broken(unbroken(line), columns, indent, words=False):
            yield part.replace(NO_BREAK, " ")


def brief(text: str) -> str:
    """*text* as stdout shows it: with short digests on a terminal, where they are only read."""
    return short(text) if sys.stdout.isatty() else text


def show(*lines: str, stream: TextIO | None = None) -> None:
    """Print *lines*, :func:`wrap_lines`, at once."""
    stream = stream or sys.stdout
    for line in wrap_lines(lines, stream):
        stream.write(f"{line}\n")
    stream.flush()


def of_markdown(text: str, stream: TextIO | None = None) -> Iterator[str]:
    """Lines of *text*, which is Markdown; on a terminal without its signs, and with tables."""
    stream = stream or sys.stdout
    if not stream.isatty():
        yield from text.splitlines()
        return
    plain = text.replace("**", "").replace("`", "").replace("&lt;", "<")
    for is_table, lines in groupby(plain.splitlines(), lambda line: line.startswith("|")):
        if is_table:
            head, _, *rows = (
                [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
                for line in lines
            )
            others = range(len(head) - 1)
            yield from table(head, rows, wrap=len(head) - 1, shrink=others, stream=stream)
        else:
            yield from wrap_lines((short(line.lstrip("# ")) for line in lines), stream)


def _broken(text: str, width: int, margin: str = "", *, words: bool = True) -> list[str]:
    """*text* in lines of *width* columns; *words*: one that is longer is broken, too."""
    wide = _width(text) - len(text)
    return textwrap.wrap(
        text,
        max(1, width // 2, width - wide),
        subsequent_indent=margin,
        break_long_words=words,
        break_on_hyphens=False,
    )


def _lines(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[int], wrap: int | None
) -> Iterator[str]:
    """The lines of a row: one, or as many as the cell of the column *wrap* takes."""
    if wrap is None:
        yield _line(cells, widths, right)
        return
    for number, part in enumerate(_broken(cells[wrap], widths[wrap]) or [""]):
        row = [""] * len(cells) if number else list(cells)
        row[wrap] = part
        yield _line(row, widths, right)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    padded = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        text = _cut(cell, width)
        blanks = " " * (width - _width(text))
        padded.append(blanks + text if at in right else text + blanks)
    return _GAP.join(padded).rstrip()


def _width(text: str) -> int:
    """Columns that *text* takes: two for a wide character, as those of Chinese and emoji."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return len(text) + sum(east_asian_width(character) in "WF" for character in text)


def _cut(text: str, width: int) -> str:
    """*text* without its middle where it is too long."""
    if _width(text) <= width:
        return text
    kept, cut = width, text
    while _width(cut) > width:
        kept -= 1
        tail = kept * 2 // 3
        cut = f"{text[: kept - tail]}…{text[len(text) - tail :]}"
    return cut


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
