"""The ways in which a model gets its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from bitnet.sources import TokenizerDownloadInfo
    from bitnet.tokenizer.tokenizer import Tokenizer


class Strategy:
    """A way in which a model gets its tokenizer, with the path or value that belongs to it."""

    _text: ClassVar[str]

    def description(self) -> str:
        """This way in words, for messages."""
        return self._text.format(self)


class TokenizerStrategy:
    """The ways in which a model gets its tokenizer: classes for the patterns of a ``match``."""

    @dataclass(frozen=True)
    class Exact(Strategy):
        """The tokenizer the user named."""

        path: Path
        _text = "user-specified tokenizer: {0.path}"

    @dataclass(frozen=True)
    class Discovered(Strategy):
        """A file beside the model, in the folder above, or in a cache."""

        path: Path
        _text = "auto-discovered tokenizer: {0.path}"

    @dataclass(frozen=True)
    class NeedsDownload(Strategy):
        """Not on disk; *info* describes the download."""

        info: TokenizerDownloadInfo
        _text = "smart download required: {0.info.repo}"

    @dataclass(frozen=True)
    class EmbeddedGguf(Strategy):
        """The tokenizer inside the GGUF file."""

        tokenizer: Tokenizer
        _text = "GGUF-embedded tokenizer: {0.tokenizer.vocab_size} tokens"

    @dataclass(frozen=True)
    class Mock(Strategy):
        """Bytes instead of tokens, only if explicitly allowed."""

        _text = "MOCK tokenizer: the ids mean nothing to the model"
