"""Columns of a terminal that a text takes, and texts cut to them.

A wide letter, such as a Chinese one, takes two columns; a combining mark takes none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TextIO

from bitnet.base import settings

DEFAULT_COLUMNS = 80  # if the terminal does not report its width
_ELLIPSIS = "…"
_ASCII_ELLIPSIS = "..."


def columns_of(stream: TextIO) -> int:
    """Columns of the terminal that *stream* writes to, unless COLUMNS names another number."""
    return settings.terminal_columns() or terminal_width(stream) or DEFAULT_COLUMNS


def terminal_width(stream: TextIO | None) -> int:
    """Columns of the terminal that *stream* writes to; 0: not a terminal, or unknown."""
    if stream is None:
        return 0
    with suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(stream.fileno()).columns
    return 0


def ellipsis_for(stream: TextIO | None) -> str:
    """The mark for omitted text: ``…``, or ASCII if the encoding of *stream* lacks it."""
    try:
        _ELLIPSIS.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return _ASCII_ELLIPSIS
    return _ELLIPSIS


def as_shown(text: str, stream: TextIO | None) -> str:
    """*text* as *stream* writes it: characters that its encoding lacks are escaped already."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    errors = getattr(stream, "errors", None) or "strict"
    try:
        return text.encode(encoding, errors).decode(encoding, "surrogateescape")
    except UnicodeError:
        return text


def width_of(text: str) -> int:
    """Columns that *text* takes."""
    return len(text) if text.isascii() else sum(map(_width_of_character, text))


def _width_of_character(character: str) -> int:
    import unicodedata  # here: it takes a megabyte, and most texts are ASCII

    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clip(text: str, width: int) -> str:
    """The beginning of *text* that fits into *width* columns."""
    if width_of(text) <= width:
        return text
    columns = 0
    for at, character in enumerate(text):
        columns += _width_of_character(character)
        if columns > width:
            return text[:at]
    return text


def cut(text: str, width: int, ellipsis: str = _ELLIPSIS) -> str:
    """*text* in *width* columns at most: a longer one loses its middle, not its end."""
    if width_of(text) <= width:
        return text
    room = width - len(ellipsis)
    tail = room * 2 // 3
    end = clip(text[::-1], tail)[::-1]
    return f"{clip(text, room - tail)}{ellipsis}{end}"


def pad(text: str, width: int, *, right: bool = False) -> str:
    """*text* filled with blanks to *width* columns; *right* aligns it on the right."""
    blanks = " " * (width - width_of(text))
    return blanks + text if right else text + blanks
