"""Exact tokenizers: found, rebuilt or refused, never approximated.

    from bitnet.tokenizer import resolve_tokenizer

    tokenizer = resolve_tokenizer("models/model.gguf")
    ids = tokenizer.encode("Hello")
    tokenizer.decode(ids)

Names are imported on first use, so that importing the package stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitnet.tokenizer.discover import TokenizerDiscovery, resolve_tokenizer
    from bitnet.tokenizer.load import (
        detect_architecture_from_gguf,
        extract_merges,
        extract_scores,
        extract_tokenizer_from_gguf,
        extract_tokens,
        load_tokenizer,
    )
    from bitnet.tokenizer.strategy import TokenizerStrategy
    from bitnet.tokenizer.tokenizer import Tokenizer, TokenSpan, TokenStream

__all__ = [
    "TokenSpan",
    "TokenStream",
    "Tokenizer",
    "TokenizerDiscovery",
    "TokenizerStrategy",
    "detect_architecture_from_gguf",
    "extract_merges",
    "extract_scores",
    "extract_tokenizer_from_gguf",
    "extract_tokens",
    "load_tokenizer",
    "resolve_tokenizer",
]

# Submodule that defines each name.
_HOME = dict.fromkeys(__all__, "load") | {
    **dict.fromkeys(("TokenSpan", "TokenStream", "Tokenizer"), "tokenizer"),
    **dict.fromkeys(("TokenizerDiscovery", "resolve_tokenizer"), "discover"),
    "TokenizerStrategy": "strategy",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
