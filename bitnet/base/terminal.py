r"""Standard streams in every locale, even if they are closed, and logging on stderr.

Text is written in the encoding of the locale. Characters that this encoding lacks stay readable:
our own marks become ASCII, the name of a file is written with the bytes it has on the disk, and
other characters are escaped (``\u2713``).
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import re
import sys
from contextlib import suppress
from typing import Any, TextIO

from bitnet.base import settings
from bitnet.base.bars import BARS
from bitnet.base.errors import UsageError
from bitnet.base.invocation import as_started, harmless

# ASCII for our own marks at the start of a line.
_MARKS = {"✓": "ok", "✗": "x", "·": "*", "✅": "ok", "❌": "x"}
_LINE_START = re.compile(r"(?:^|\n) *\Z")
# Python represents the bytes of a name that the locale cannot decode as these surrogates.
_PARTS = re.compile("[\udc80-\udcff]+|[^\udc80-\udcff]")
_BYTES = re.compile("[\udc80-\udcff]+")

_LEVELS = {
    "trace": logging.DEBUG, "debug": logging.DEBUG, "info": logging.INFO,
    "warn": logging.WARNING, "warning": logging.WARNING, "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}  # fmt: skip

# Log areas of the tool that this one replaces, and the corresponding loggers.
_AREAS = {
    "bitnet_tokenizers": ("bitnet.tokenizer", "bitnet.hub"),
    "bitnet_tokenizers::download": ("bitnet.hub",),
    "bitnet_tokenizers::discovery": ("bitnet.tokenizer.discover",),
    "bitnet_cli": ("bitnet.commands",),
    "bitnet_inference": ("bitnet.runtime",),
    "bitnet_models": ("bitnet.models", "bitnet.formats"),
    "bitnet_kernels": ("bitnet.kernels",),
}

_BEGINNINGS = {"DEBUG": "[DEBUG] ", "INFO": "[INFO] ", "WARNING": "Warning: ", "ERROR": "Error: "}


def prepare() -> None:
    """Make the standard streams safe to use.

    A closed one becomes the null device. Characters that an encoding lacks are replaced by
    :func:`_readable`.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    codecs.register_error("bitnet.readable", _readable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="bitnet.readable")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Undecodable bytes become surrogates, as they do in the arguments of the command line.
        sys.stdin.reconfigure(errors="surrogateescape")


def _readable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replacement for characters that *error* could not encode, and the index at which to go on.

    An error handler for :func:`codecs.register_error`. It replaces one character, or a whole run of
    surrogates, which stand for the undecodable bytes of a file name.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    match = _PARTS.match(error.object, error.start)
    assert match is not None
    part = match[0]
    end = match.end()
    if (name := decode_names(part)) != part:
        # A file name in UTF-8: bytes are written as they are, so it appears as it is on the disk.
        return name.encode("utf-8", "surrogateescape"), end
    # Elsewhere in a line, such a character belongs to the text of a user or a model: escape it.
    if part in _MARKS and _LINE_START.search(error.object[: error.start]):
        return _MARKS[part], end
    return part.encode("ascii", "backslashreplace").decode(), end


def decode_names(value: Any) -> Any:
    """*value* with the file names in it decoded as UTF-8 where the locale could not decode them.

    Python turns bytes that the locale cannot decode into surrogates. Runs of them that are UTF-8
    become text, others stay surrogates. Strings inside lists and dicts are decoded, too.
    """
    if isinstance(value, str):
        codec = "utf-8", "surrogateescape"
        return _BYTES.sub(lambda match: match[0].encode(*codec).decode(*codec), value)
    if isinstance(value, dict):
        return {decode_names(key): decode_names(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [decode_names(entry) for entry in value]
    return value


def has_bytes(text: str) -> bool:
    """True if *text* contains bytes that the locale could not decode."""
    return _BYTES.search(text) is not None


def as_json(facts: Any) -> str:
    """*facts* as one line of JSON, in ASCII, with file names decoded by :func:`decode_names`."""
    return json.dumps(decode_names(facts))


def argument(text: str) -> str:
    """*text*, a word of the command line: its bytes as UTF-8, else as the locale decodes them."""
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
    """Print *text* as a line; if *stream* cannot be written, discard its output."""
    try:
        with BARS.above(stream):
            print(text, file=stream, flush=True)
    except OSError:
        discard_output(stream)


def flush_or_discard(stream: TextIO) -> None:
    """Flush *stream*; if that fails, discard its buffer, so that it does not fail again at exit."""
    try:
        stream.flush()
    except OSError:
        discard_output(stream)


def discard_output(stream: TextIO) -> None:
    """Redirect *stream* to the null device: writing its buffer at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def text_of_record(record: logging.LogRecord) -> str:
    """Message of *record*, with the traceback of its exception if ``BITNET_DEBUG`` is set.

    A wrong call of a logger, perhaps by a library, is a text as well: it must not end what runs.
    """
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001 - whatever a value does when it becomes a text
        place = f"{record.filename}:{record.lineno}"
        text = f"{record.msg} (without its values: {type(error).__name__} at {place})"
    with suppress(UsageError):  # BITNET_DEBUG is not valid: a log line reports no other error
        if record.exc_info and settings.debug():
            text += "\n" + logging.Formatter().formatException(record.exc_info)
    return text


class _Stderr(logging.Handler):
    """Writes to what ``sys.stderr`` is at that moment, so that redirection and capture work."""

    def emit(self, record: logging.LogRecord) -> None:
        text = harmless(as_started(text_of_record(record)))
        print_if_possible(_BEGINNINGS.get(record.levelname, "") + text, sys.stderr)


def configure(verbosity: int = 0, *, warnings: bool = True) -> None:
    """Set the levels of the loggers: *verbosity* 0 shows warnings, 1 adds info, 2 adds debug.

    Without *warnings*, *verbosity* 0 shows only errors.

    BITNET_LOG sets the levels of areas, and lowers that of the whole program, but never raises it.
    Areas of the tool that this one replaces still work: ``bitnet_tokenizers::download=info``
    sets the level of :mod:`bitnet.hub`, ``bitnet_tokenizers=debug`` that of all tokenizer code.
    """
    root = logging.getLogger("bitnet")
    if not any(isinstance(handler, _Stderr) for handler in root.handlers):
        root.addHandler(_Stderr())
        root.propagate = False
    base = logging.WARNING if warnings else logging.ERROR
    root.setLevel({0: base, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    for area, threshold in _log_filters():
        names: tuple[str, ...] = ("bitnet",)
        if area:
            names = _AREAS.get(area, (area.replace("::", "."),))
        for name in names:
            logger = logging.getLogger(name)
            logger.setLevel(threshold if logger is not root else min(threshold, root.level))


def _log_filters() -> list[tuple[str, int]]:
    """Area and level of each log filter in the environment; an empty area is the whole program.

    Filters of RUST_LOG that are not valid here are skipped: the variable is set for programs in
    Rust, which know more forms, such as the name of an area alone.
    """
    filters = []
    is_from_rust_log = settings.log.variable() == settings.log.borrowed
    for entry in filter(None, (part.strip() for part in settings.log().split(","))):
        area, _, level = entry.rpartition("=")
        if level.lower() in _LEVELS:
            filters.append((area, _LEVELS[level.lower()]))
        elif not is_from_rust_log:
            raise UsageError(
                f"log filter {entry!r}: {level!r} is not a level",
                hint=f"use one of {', '.join(_LEVELS)}, for example BITNET_LOG=debug",
            )
    return filters
