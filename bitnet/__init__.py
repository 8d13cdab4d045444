"""Run, verify and serve BitNet and GGUF models on CPUs.

Public names are imported on first use, so that ``import bitnet`` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitnet.base.errors import (
        AuthError,
        BenchmarkError,
        BitnetError,
        CacheBusy,
        HashMismatch,
        InferenceError,
        IntegrityError,
        Interrupted,
        InvalidFormat,
        LicenceNotAccepted,
        NetworkError,
        NoSpace,
        NotFound,
        Offline,
        PermissionDenied,
        RateLimited,
        ReferenceUnavailable,
        RowsFailed,
        TokenInvalid,
        TokenizerNotFound,
        TokenMissing,
        TooLong,
        Unsupported,
        UpstreamChanged,
        UsageError,
        VerificationFailed,
        VocabMismatch,
        WrongType,
    )
    from bitnet.provision import SmartTokenizerDownload, embed, load
    from bitnet.runtime.answer import Answer
    from bitnet.runtime.answer_options import AnswerOptions
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import TokenLogprob
    from bitnet.server.narration import narrate
    from bitnet.sources import TokenizerDownloadInfo
    from bitnet.tokenizer import (
        Tokenizer,
        TokenizerDiscovery,
        TokenizerStrategy,
        TokenSpan,
        load_tokenizer,
        resolve_tokenizer,
    )

__version__ = "0.1.0"

# Modules of the public names, except the error classes: those are in bitnet.base.errors.
_HOMES = {
    "bitnet.provision": "SmartTokenizerDownload embed load",
    "bitnet.runtime.answer": "Answer",
    "bitnet.runtime.answer_options": "AnswerOptions",
    "bitnet.runtime.language_model": "LanguageModel",
    "bitnet.runtime.piece": "TokenLogprob",
    "bitnet.server.narration": "narrate",
    "bitnet.sources": "TokenizerDownloadInfo",
    "bitnet.tokenizer": "TokenSpan Tokenizer TokenizerDiscovery TokenizerStrategy load_tokenizer"
    " resolve_tokenizer",
}
_EXPORTS = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Answer", "AnswerOptions", "AuthError", "BenchmarkError", "BitnetError", "CacheBusy",
    "HashMismatch", "InferenceError", "IntegrityError", "Interrupted", "InvalidFormat",
    "LanguageModel", "LicenceNotAccepted", "NetworkError", "NoSpace", "NotFound", "Offline",
    "PermissionDenied", "RateLimited", "ReferenceUnavailable", "RowsFailed",
    "SmartTokenizerDownload", "TokenInvalid", "TokenLogprob", "TokenMissing", "TokenSpan",
    "Tokenizer", "TokenizerDiscovery", "TokenizerDownloadInfo", "TokenizerNotFound",
    "TokenizerStrategy", "TooLong", "Unsupported", "UpstreamChanged", "UsageError",
    "VerificationFailed", "VocabMismatch", "WrongType", "__version__", "embed", "load",
    "load_tokenizer", "narrate", "resolve_tokenizer",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_EXPORTS.get(name, "bitnet.base.errors")), name)
    raise AttributeError(f"module 'bitnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
