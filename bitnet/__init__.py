"""Local language models that just work, and prove it.

Public names load on first use, so that ``import bitnet`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitnet.errors import BitnetError
    from bitnet.provision import SmartTokenizerDownload
    from bitnet.runtime.language_model import LanguageModel, load
    from bitnet.sources import TokenizerDownloadInfo
    from bitnet.tokenizer import (
        Tokenizer,
        TokenizerDiscovery,
        TokenizerStrategy,
        load_tokenizer,
        resolve_tokenizer,
    )

__version__ = "0.1.0"

_EXPORTS: dict[str, str] = {
    "BitnetError": "bitnet.errors",
    "LanguageModel": "bitnet.runtime.language_model",
    "SmartTokenizerDownload": "bitnet.provision",
    "Tokenizer": "bitnet.tokenizer",
    "TokenizerDiscovery": "bitnet.tokenizer",
    "TokenizerDownloadInfo": "bitnet.sources",
    "TokenizerStrategy": "bitnet.tokenizer",
    "load": "bitnet.runtime.language_model",
    "load_tokenizer": "bitnet.tokenizer",
    "resolve_tokenizer": "bitnet.tokenizer",
}

__all__ = [
    "BitnetError",
    "LanguageModel",
    "SmartTokenizerDownload",
    "Tokenizer",
    "TokenizerDiscovery",
    "TokenizerDownloadInfo",
    "TokenizerStrategy",
    "__version__",
    "load",
    "load_tokenizer",
    "resolve_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'bitnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
