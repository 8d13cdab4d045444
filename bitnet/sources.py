"""Registry of downloads with a name: where a file is, what it must be, and under which licence.

A source pins what can be known in advance. The commit, the SHA-256 and the size of a branch's file
are found on first use and recorded in :mod:`bitnet.hub.lockfile`.
"""

from __future__ import annotations

from dataclasses import dataclass

from bitnet import settings
from bitnet.errors import TokenMissing

__all__ = [
    "MODELS",
    "TOKENIZERS",
    "Source",
    "TokenizerDownloadInfo",
    "for_model",
    "model_source",
    "require_token",
]


@dataclass(frozen=True)
class TokenizerDownloadInfo:
    """A tokenizer that can be fetched.

    Attributes:
        repo: repository on the hub.
        files: files of it that make up the tokenizer.
        cache_key: folder below ``tokenizers/`` in the cache.
        expected_vocab: number of ids it must have.
    """

    repo: str
    files: tuple[str, ...]
    cache_key: str
    expected_vocab: int


@dataclass(frozen=True)
class Source:
    """One file on the hub.

    Attributes:
        name: what the command line calls it.
        repo: ``organisation/repository``.
        file: path inside the repository.
        revision: branch, tag or commit.
        sha256: digest of the file where it is pinned for good; else the lock file holds it.
        size: bytes, where pinned.
        vocab_size: ids of the tokenizer, added tokens included; 0 for a model file.
        cache_key: folder of a tokenizer below ``<cache>/tokenizers``.
        licence: name of the terms as their owner calls them.
        licence_url: where the terms are.
        gated: the hub wants a token of an account that accepted the terms.
        family: architecture of a model, as GGUF files name it; empty if unknown.
    """

    name: str
    repo: str
    file: str = "tokenizer.json"
    revision: str = "main"
    sha256: str | None = None
    size: int | None = None
    vocab_size: int = 0
    cache_key: str = ""
    licence: str = ""
    licence_url: str = ""
    gated: bool = False
    family: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Files to fetch."""
        return (self.file,)

    @property
    def page(self) -> str:
        """Its owner's page about it."""
        return f"https://huggingface.co/{self.repo}"

    @property
    def licence_line(self) -> str:
        """Text to read before using the file, without a judgement about what it allows."""
        if not self.licence:
            return f"Licence: see {self.page}"
        return f"Licence: {self.licence}, {self.licence_url} (you decide whether it fits your use)"


_LLAMA3 = ("Meta Llama 3 Community License", "https://www.llama.com/llama3/license/")

TOKENIZERS = {
    source.name: source
    for source in (
        Source(
            "mirror",
            "baseten/Meta-Llama-3-tokenizer",
            vocab_size=128_256,
            cache_key="llama3-128k",
            licence=_LLAMA3[0],
            licence_url=_LLAMA3[1],
        ),
        Source(
            "official",
            "meta-llama/Meta-Llama-3-8B",
            vocab_size=128_256,
            cache_key="llama3-128k",
            licence=_LLAMA3[0],
            licence_url=_LLAMA3[1],
            gated=True,
        ),
        Source(
            "llama2-32k",
            "meta-llama/Llama-2-7b-hf",
            vocab_size=32_000,
            cache_key="llama2-32k",
            licence="Llama 2 Community License",
            licence_url="https://ai.meta.com/llama/license/",
            gated=True,
        ),
        Source(
            "gpt2-50k",
            "openai-community/gpt2",
            vocab_size=50_257,
            cache_key="gpt2-50k",
            licence="MIT",
            licence_url="https://huggingface.co/openai-community/gpt2",
        ),
    )
}

MODELS = {
    source.name: source
    for source in (
        Source(
            "bitnet-2b-4t",
            "microsoft/bitnet-b1.58-2B-4T-gguf",
            "ggml-model-i2_s.gguf",
            licence="MIT",
            licence_url="https://huggingface.co/microsoft/bitnet-b1.58-2B-4T-gguf",
            family="bitnet-b1.58",
        ),
    )
}


def for_model(architecture: str, vocab_size: int) -> Source | None:
    """The tokenizer with exactly *vocab_size* ids for *architecture*, if one is registered.

    Two sources can hold one vocabulary; the one that needs no token is preferred. Nothing is
    inferred from a size that merely comes close.

    Args:
        architecture: ``general.architecture`` or ``model_type``, such as ``bitnet-b1.58``.
        vocab_size: ids of the tokenizer.
    """
    if vocab_size not in _FAMILIES or not architecture.lower().startswith(_FAMILIES[vocab_size]):
        return None
    fitting = [source for source in TOKENIZERS.values() if source.vocab_size == vocab_size]
    return min(fitting, key=lambda source: source.gated)


# Vocabularies of these sizes exist in other families too (Mistral and Phi-3 have about 32,000).
_FAMILIES: dict[int, tuple[str, ...]] = {
    128_256: ("llama", "bitnet"),
    32_000: ("llama",),
    50_257: ("gpt2", "gpt-2"),
}


def model_source(name: str) -> Source | None:
    """The registered model called *name*, or whose repository it is."""
    if name in MODELS:
        return MODELS[name]
    return next((source for source in MODELS.values() if source.repo == name), None)


def require_token(source: Source) -> None:
    """Stop before any connection when *source* is gated and there is no access token.

    Raises:
        TokenMissing: with the steps that lead to a token.
    """
    if not source.gated or settings.access_token():
        return
    which = "official source" if source.name == "official" else f"source {source.name}"
    open_copy = (
        " Without an account: bitnet tokenizer --source mirror"
        if source.cache_key == "llama3-128k"
        else ""
    )
    raise TokenMissing(
        f"HF_TOKEN environment variable required for {which} ({source.repo})\n"
        f"  1. Accept the licence: {source.page}\n"
        "  2. Create a token with read access: https://huggingface.co/settings/tokens\n"
        "  3. Set it: export HF_TOKEN=hf_...",
        hint=f"set HF_TOKEN and run the command again.{open_copy}",
    )
