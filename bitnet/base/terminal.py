r"""Standard streams that can be written to, whatever the locale, and whether they are open or not.

Text keeps the encoding of the locale, as every program's does. What that encoding lacks is written
so that it can be read: our own marks in ASCII, the name of a file as the bytes it has, and all else
escaped (``\u2713``).
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import sys
from typing import Any, TextIO

_MARKS = {"✓": "ok", "✗": "x", "·": "*", "✅": "ok", "❌": "x"}
_LINE_START = re.compile(r"(?:^|\n) *\Z")
_PARTS = re.compile("[\udc80-\udcff]+|[^\udc80-\udcff]")  # undecodable bytes of a name
_BYTES = re.compile("[\udc80-\udcff]+")


def prepare() -> None:
    """Make the standard streams fit to print on; streams that the caller closed read nothing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    codecs.register_error("bitnet.readable", _readable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="bitnet.readable")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # as arguments have it


def _readable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Error handler: what to write for the characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unwritable = error.object[error.start : error.end]
    at_line_start = _LINE_START.search(error.object[: error.start]) is not None
    parts: list[str | bytes] = []
    for part in _PARTS.findall(unwritable):
        if _BYTES.match(part) and (name := decode_names(part)) != part:
            parts.append(name.encode())
        elif at_line_start and not parts and part in _MARKS:
            parts.append(_MARKS[part])
        else:
            parts.append(part.encode("ascii", "backslashreplace").decode())
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts)), error.end
    raw = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return raw, error.end


def decode_names(value: Any) -> Any:
    """*value* with the names in it as text, where the locale had made bytes of them.

    Python keeps the bytes that the locale cannot read as surrogates; those that are UTF-8 become
    what they say, those that are not stay as they are. Lists and dicts are walked.
    """
    if isinstance(value, str):
        return _BYTES.sub(lambda found: _as_utf8(found[0]), value)
    if isinstance(value, dict):
        return {decode_names(key): decode_names(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [decode_names(entry) for entry in value]
    return value


def _as_utf8(raw: str) -> str:
    return raw.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def has_bytes(text: str) -> bool:
    """True if *text* contains bytes that the locale could not decode."""
    return _BYTES.search(text) is not None


def as_json(facts: Any) -> str:
    """*facts* as one line of JSON, in ASCII; names in it are text, not the locale's bytes."""
    return json.dumps(decode_names(facts))


def argument(text: str) -> str:
    """A word of the command line: UTF-8 if its bytes are, else as the locale reads it."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return decode_names(text)  # type: ignore[no-any-return]


def lacks(text: str, stream: TextIO) -> bool:
    """True if the encoding of *stream* cannot represent *text*."""
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return True
    return False


def print_if_possible(text: str, stream: TextIO) -> None:
    """*text* as a line, unless the stream cannot take it."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        let_go(stream)


def settle(stream: TextIO) -> None:
    """Write what *stream* holds; if that is impossible, nothing of it is written at exit either."""
    try:
        stream.flush()
    except OSError:
        let_go(stream)


def let_go(stream: TextIO) -> None:
    """Point *stream* at nothing, so that what is left in its buffer cannot fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
