"""Logging on stderr: levels from ``-v`` and from ``BITNET_LOG`` or ``RUST_LOG``.

Filters of the tool that this one replaces still work: ``bitnet_tokenizers::download=info`` sets
the level of :mod:`bitnet.hub`, ``bitnet_tokenizers=debug`` that of all tokenizer code.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from bitnet.base import settings
from bitnet.base.errors import UsageError
from bitnet.base.invocation import as_started, harmless

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}

_AREAS = {
    "bitnet_tokenizers": ("bitnet.tokenizer", "bitnet.hub"),
    "bitnet_tokenizers::download": ("bitnet.hub",),
    "bitnet_tokenizers::discovery": ("bitnet.tokenizer.discover",),
    "bitnet_cli": ("bitnet.commands",),
    "bitnet_inference": ("bitnet.runtime",),
    "bitnet_models": ("bitnet.models", "bitnet.formats"),
    "bitnet_kernels": ("bitnet.kernels",),
}

_FORMATS = {logging.DEBUG: "[DEBUG] %s", logging.INFO: "[INFO] %s"}


class _Format(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = harmless(as_started(record.getMessage()))
        if record.levelno >= logging.ERROR:
            return f"Error: {text}"
        if record.levelno >= logging.WARNING:
            return f"Warning: {text}"
        return _FORMATS.get(record.levelno, "%s") % text


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[Any]
else:
    _StreamHandler = logging.StreamHandler  # generic from Python 3.11 on


class _Stderr(_StreamHandler):
    """Writes to the current stderr, so that redirection and capture work."""

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        pass


def configure(verbosity: int = 0, *, warnings: bool = True) -> None:
    """Set the levels: 0 shows warnings, 1 adds info, 2 adds debug; the environment can only add.

    Raises:
        UsageError: the filter in the environment is invalid.
    """
    root = logging.getLogger("bitnet")
    if not any(isinstance(handler, _Stderr) for handler in root.handlers):
        handler = _Stderr()
        handler.setFormatter(_Format())
        root.addHandler(handler)
        root.propagate = False
    base = logging.WARNING if warnings else logging.ERROR
    root.setLevel({0: base, 1: logging.INFO}.get(verbosity, logging.DEBUG))
    for entry in filter(None, (part.strip() for part in settings.log().split(","))):
        area, _, level = entry.rpartition("=")
        if level.lower() not in _LEVELS:
            raise UsageError(
                f"log filter {entry!r}: {level!r} is not a level",
                hint=f"use one of {', '.join(_LEVELS)}, for example BITNET_LOG=debug",
            )
        for name in _AREAS.get(area, (area.replace("::", "."),)) if area else ("bitnet",):
            logger = logging.getLogger(name)
            threshold = _LEVELS[level.lower()]
            logger.setLevel(threshold if logger is not root else min(threshold, root.level))
