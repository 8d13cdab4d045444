"""The ways in which a model can get its tokenizer, as values to match on.

Each variant describes its action in words::

    match TokenizerDiscovery.from_gguf(path).discover_tokenizer_strategy():
        case TokenizerStrategy.EmbeddedGguf(tokenizer): ...
        case TokenizerStrategy.NeedsDownload(info): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.sources import TokenizerDownloadInfo
    from bitnet.tokenizer.tokenizer import Tokenizer

__all__ = ["Strategy", "TokenizerStrategy"]


@dataclass(frozen=True)
class Exact:
    """The tokenizer the user named."""

    path: Path

    def description(self) -> str:
        """Description of the action."""
        return f"user-specified tokenizer: {self.path}"


@dataclass(frozen=True)
class Discovered:
    """A file beside the model, above it, or in a cache."""

    path: Path

    def description(self) -> str:
        """Description of the action."""
        return f"auto-discovered tokenizer: {self.path}"


@dataclass(frozen=True)
class NeedsDownload:
    """Not on disk; *info* describes the download."""

    info: TokenizerDownloadInfo

    def description(self) -> str:
        """Description of the action."""
        return f"smart download required: {self.info.repo}"


@dataclass(frozen=True)
class EmbeddedGguf:
    """The tokenizer inside the GGUF file."""

    tokenizer: Tokenizer

    def description(self) -> str:
        """Description of the action."""
        return f"GGUF-embedded tokenizer: {self.tokenizer.vocab_size} tokens"


@dataclass(frozen=True)
class Mock:
    """Bytes instead of tokens, only if explicitly allowed; its ids mean nothing to the model."""

    def description(self) -> str:
        """Description of the action."""
        return "MOCK tokenizer: the ids mean nothing to the model"


Strategy: TypeAlias = Exact | Discovered | NeedsDownload | EmbeddedGguf | Mock


class TokenizerStrategy:
    """The variants under one name."""

    Exact = Exact
    Discovered = Discovered
    NeedsDownload = NeedsDownload
    EmbeddedGguf = EmbeddedGguf
    Mock = Mock
