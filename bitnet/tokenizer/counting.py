"""Count the ids of a text without holding the text or its ids in memory."""

from __future__ import annotations

import codecs
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from bitnet.errors import UsageError, from_os_error
from bitnet.tokenizer.cuts import last_cut, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.tokenizer.engines import Engine

__all__ = ["count_ids", "read_text"]

_BLOCK = 1 << 20  # bytes read at once, and characters of a part


def count_ids(
    engine: Engine,
    source: str | os.PathLike[str] | BinaryIO,
    *,
    parse_special: bool,
    affixes: tuple[Sequence[int], Sequence[int]],
) -> int:
    """Length of what ``Tokenizer.encode`` would return for all of *source*.

    Args:
        engine: encodes the parts.
        source: a text, the path of a UTF-8 file, or one open for reading bytes.
        parse_special: as in ``Tokenizer.encode``.
        affixes: ids put before and after the text unless it begins or ends with them.

    Raises:
        UsageError: the file is not UTF-8; says where.
        NotFound: the file does not exist.
    """
    before, after = map(list, affixes)
    total = 0
    head: list[int] = []
    tail: list[int] = []
    for i, part in enumerate(_parts(engine, source)):
        if after or len(head) < len(before):
            ids = engine.encode(part, parse_special=parse_special, goes_on=i > 0)
            total += len(ids)
            head = (head + ids)[: len(before)]
            tail = (tail + ids)[-len(after) :] if after else []
        else:
            total += engine.count(part, parse_special=parse_special, goes_on=i > 0)
    if head != before:
        total += len(before)
        tail = (before + tail)[-len(after) :] if after else []
    return total + (len(after) if tail != after else 0)


def _parts(engine: Engine, source: str | os.PathLike[str] | BinaryIO) -> Iterator[str]:
    """The text, split where that does not change ids; in one part if there is no such place."""
    if isinstance(source, str):
        yield from parts_of(source, engine.cut, _BLOCK)
        return
    waiting: list[str] = []
    with _reading(source) as (file, name):
        for block in _decoded(file, name):
            # A cut depends on two characters on either side of it.
            overlap = waiting[-1][-2:] if waiting else ""
            at = last_cut(engine.cut, overlap + block) if engine.cut is not None else 0
            if at <= len(overlap):
                waiting.append(block)
                continue
            at -= len(overlap)
            yield "".join([*waiting, block[:at]])
            waiting = [block[at:]]
    yield "".join(waiting)


def read_text(source: os.PathLike[str] | BinaryIO) -> str:
    """Content of a UTF-8 file, given by path or open for reading bytes.

    Raises:
        UsageError: it is not UTF-8; says where.
        NotFound: the file does not exist.
    """
    with _reading(source) as (file, name):
        return "".join(_decoded(file, name))


@contextmanager
def _reading(source: os.PathLike[str] | BinaryIO) -> Iterator[tuple[BinaryIO, str]]:
    if not isinstance(source, os.PathLike):
        yield source, str(getattr(source, "name", "the stream"))
        return
    path = Path(source)
    try:
        file = path.open("rb")
    except OSError as error:
        raise from_os_error(error, path) from error
    with file:
        yield file, str(path)


def _decoded(file: BinaryIO, name: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    read = 0
    while True:
        try:
            block = file.read(_BLOCK)
        except OSError as error:
            raise from_os_error(error, name) from error
        kept = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{name} is not UTF-8: byte {read - kept + error.start:,} is "
                f"0x{error.object[error.start]:02X} ({error.reason})",
                hint="convert it first, for example with iconv -t UTF-8",
            ) from None
        read += len(block)
        if text:
            yield text
        if not block:
            return
