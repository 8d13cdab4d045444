"""The ways a model can come by its tokenizer, as values to match on.

Each variant says in words what will be done::

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
        """What will be done, for people."""
        return f"user-specified tokenizer: {self.path}"


@dataclass(frozen=True)
class Discovered:
    """A file beside the model, above it, or in a cache."""

    path: Path

    def description(self) -> str:
        """What will be done, for people."""
        return f"auto-discovered tokenizer: {self.path}"


@dataclass(frozen=True)
class NeedsDownload:
    """Nothing on disk; *info* says what to fetch."""

    info: TokenizerDownloadInfo

    def description(self) -> str:
        """What will be done, for people."""
        return f"smart download required: {self.info.repo}"


@dataclass(frozen=True)
class EmbeddedGguf:
    """The tokenizer inside the GGUF file."""

    tokenizer: Tokenizer

    def description(self) -> str:
        """What will be done, for people."""
        return f"GGUF-embedded tokenizer: {self.tokenizer.vocab_size} tokens"


@dataclass(frozen=True)
class Mock:
    """Bytes instead of tokens, only when explicitly allowed; its ids mean nothing to the model."""

    def description(self) -> str:
        """What will be done, for people."""
        return "MOCK tokenizer: the ids mean nothing to the model"


Strategy: TypeAlias = Exact | Discovered | NeedsDownload | EmbeddedGguf | Mock


class TokenizerStrategy:
    """The variants under one name."""

    Exact = Exact
    Discovered = Discovered
    NeedsDownload = NeedsDownload
    EmbeddedGguf = EmbeddedGguf
    Mock = Mock
