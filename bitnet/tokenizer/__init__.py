"""Exact tokenizers: found, rebuilt or refused, never approximated."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitnet.tokenizer.tokenizer import Tokenizer, TokenStream

__all__ = ["TokenStream", "Tokenizer"]

# Loaded on first use: importing the package stays cheap.
_HOME = {
    "TokenStream": "bitnet.tokenizer.tokenizer",
    "Tokenizer": "bitnet.tokenizer.tokenizer",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
