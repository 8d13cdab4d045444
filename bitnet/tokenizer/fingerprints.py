"""Known vocabularies: facts missing from their GGUF files, found by a hash of the token list.

Many files lack ``tokenizer.ggml.pre``, or say ``default``; some conversions name a wrong one. The
token list itself tells which tokenizer it is, since two different tokenizers never share one.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.tokenizer.spec import TokenizerSpec

__all__ = [
    "KNOWN",
    "KnownVocabulary",
    "another_pre",
    "by_tokens",
    "fingerprint",
    "identify",
    "identify_merges",
    "spec_key",
]


@dataclass(frozen=True)
class KnownVocabulary:
    """Facts implied by a known list of tokens.

    Attributes:
        name: for messages.
        pre: its pre-tokenizer, as in ``tokenizer.ggml.pre``; empty if there is none.
        n_tokens: number of tokens.
        n_merges: number of merges of its canonical conversion; 0 if there are none.
        key: SHA-256 of the tokens, see :func:`fingerprint`; empty if only the merges are known.
        merges_key: the same for the merge list; empty if there is none. Fine-tuned models
            with more special tokens keep it.
        also: other pre-tokenizers with which this list of tokens is used.
    """

    name: str
    pre: str
    n_tokens: int
    n_merges: int
    key: str
    merges_key: str = ""
    also: frozenset[str] = frozenset()


def fingerprint(tokens: Sequence[str] | Sequence[bytes] | memoryview) -> str:
    """SHA-256 of a token list: for each token, its length as 64 bits and its UTF-8 bytes.

    That is how GGUF stores the list, so the raw bytes of the array give the same result.
    """
    if isinstance(tokens, memoryview):
        return hashlib.sha256(tokens).hexdigest()
    digest = hashlib.sha256()
    for token in tokens:
        encoded = token.encode() if isinstance(token, str) else token
        digest.update(struct.pack("<Q", len(encoded)))
        digest.update(encoded)
    return digest.hexdigest()


KNOWN: tuple[KnownVocabulary, ...] = (
    KnownVocabulary(
        "BERT base uncased",
        "",
        30_522,
        0,
        "337062c04f1259c68ada52345f444ae8f68897739e90d87fd9b895630e880276",
        "",
    ),
    KnownVocabulary(
        "Baichuan",
        "",
        64_000,
        0,
        "394cc6fabaac66adf9927f5927d38804ec672ea73e138f3a5c873f6dac39a3de",
        "",
    ),
    KnownVocabulary(
        "Command R",
        "command-r",
        256_000,
        253_333,
        "5f06a09ecc8ee13c464079bda0c4ba700a4952edb98702fc8cefbda7d1230a7c",
        "e890c0c2588710c48f1323345dbad79a0218df8793580cd5045047d308fe2d42",
    ),
    KnownVocabulary(
        "DeepSeek Coder",
        "deepseek-coder",
        32_256,
        31_757,
        "658ee39bb2bbfc1aeda1a5b5bb465cf1e06e4ef4da1330304987c4eade7152d0",
        "bba29864f94060b326cdafad1ab85c514959da87457d9795a519ea8d957f3ce4",
    ),
    KnownVocabulary(
        "DeepSeek LLM",
        "deepseek-llm",
        102_400,
        99_757,
        "6bfae886abe8163f6f929565506b6838bd921c01c08dec7ea6e82d6a155050c0",
        "b9cb618623c197992e0d213395d8d86c9485aaa22825e467e9bf4b1faf32d3f7",
    ),
    KnownVocabulary(
        "Falcon",
        "falcon",
        65_024,
        64_784,
        "9bdb42797e075d5a4146a9639aa9c19158e2c3c0c1e492adba080bf91a6d1ab9",
        "3b61792696adbacbbe200be5d3268f040521278c6954f329089235cf2bcfa740",
    ),
    KnownVocabulary(
        "Gemma 4",
        "gemma4",
        262_144,
        514_906,
        "a5a6b2886a2d1ccb33ba3c5ba62b32066be33c29c1d67fea478891721883e808",
        "1fc76734735fa624f5091b768899592b570356e2737a717d4ca32aeda12f8ace",
    ),
    KnownVocabulary(
        "GPT-2",
        "gpt-2",
        50_257,
        50_000,
        "1b0b4d1f2288958613732175557fa89f8db2b619574bc7500c5b8cb8269c16ee",
        "dca569b10de5f0a468dfe0d780bc5db55facb46b3bfbd8c29c9a18d3df1cac41",
    ),
    KnownVocabulary(
        "GPT-NeoX-20B",
        "mpt",
        50_432,
        50_009,
        "8b4c73132a6c7d86c0faf1cf0e9bdfda96421b3d244983218bf6a0e973b0bc0d",
        "bc7902105e960847d1c182de11e5ebd8f69434eb5f1584135d67d1aef13b3868",
        frozenset({"olmo"}),
    ),
    KnownVocabulary(
        "LLaMA-2",
        "",
        32_000,
        0,
        "621e8daacd0e30060399ba04fb9bcdb58f8d185b4992ca43b4f9e2d1a86eebc9",
        "",
    ),
    KnownVocabulary(
        "LLaMA-3",
        "llama-bpe",
        128_256,
        280_147,
        "23983359e84a0ec8ec7cee8224afcc069c587b317e47ade6010e2ca03cbc1d88",
        "44546c8009a5993ff850e2288dbd2b0213643cd224445cd9c8c6bf452112d669",
        frozenset({"smaug-bpe"}),
    ),
    KnownVocabulary(
        "XLM-RoBERTa (Nomic)",
        "",
        250_048,
        0,
        "0d5fba57b2a92ea3775b0379c5bac441cdadaae8a737223425a2d0a8fedcce04",
        "",
    ),
    KnownVocabulary(
        "Phi-3",
        "",
        32_064,
        0,
        "4bfc9f873bc4d9ba10ff1efd8e94f8ca937013c58517a0e4e10b7e159ec954e2",
        "",
    ),
    KnownVocabulary(
        "Qwen2",
        "qwen2",
        151_936,
        151_387,
        "84b39a9554a32ce6bd119691e252f9416845b6a3d3c72ee6f9aa35ae5c058fd4",
        "907981a313a6e78ef2223229042674a39cd4995ee4c4ed40a31b58754e82c26c",
        frozenset({"deepseek-r1-qwen", "qwen35"}),
    ),
    KnownVocabulary(
        "Refact",
        "refact",
        49_216,
        48_891,
        "c186081d90db7abff1711d2a7dd8071ccc8d77431fedc06e02b5af49ff981c1a",
        "8d4f7b0bf9c947a0f6cc09a367ca4c8bf0a6da86518efe5dce0cd2f365619573",
    ),
    KnownVocabulary(
        "StarCoder2",
        "starcoder",
        49_152,
        48_872,
        "c38b21487885c89d2f2210c59c118cdc2d0d59a5cc6ec96d7301f6c91681c613",
        "17a2c3357d047aa2bd31949766b3f6929f3c703c9e73cb6dc962334954fdf63e",
    ),
    KnownVocabulary(
        "DeepSeek-V3",
        "deepseek-v3",
        0,
        127_741,
        "",
        "da09c418aa30eddffbdeace570b17a7e48b789738507ce271a008fc7ec624103",
    ),
    KnownVocabulary(
        "gpt-oss (o200k)",
        "gpt-4o",
        0,
        446_189,
        "",
        "be256e50e9a767b0e39cdc11470003cb2ff4c2a58033c49c7618baed2443b3c2",
    ),
    KnownVocabulary(
        "GPT-4o (o200k)",
        "gpt-4o",
        0,
        199_742,
        "",
        "d302e76e888a6916773eded4c38105580b0bcdcd664fd19525914389e345dce9",
    ),
    KnownVocabulary(
        "LLaMA-4",
        "llama4",
        0,
        439_802,
        "",
        "28adb8618aad53cc0f967d92055c36087fa00b51cf451f489b78fc1dbb51c672",
    ),
    KnownVocabulary(
        "SmolLM2",
        "smollm",
        49_152,
        48_900,
        "e3f79317b457a91937391f6e0ee99d97ba2a3adae02bc26db8f59710ddb27ffe",
        "f21dff0382d448ea564fe1869e6158795a0db82c4b0771f6fb3d5db9818f0166",
    ),
)
# Fields of a specification whose values are not hashed: they are long, or have no effect.
_LONG = frozenset({"tokens", "merges", "scores", "token_types", "charsmap"})
_ASIDE = frozenset({"source", "fingerprint"})
_BY_KEY = {known.key: known for known in KNOWN if known.key}
_BY_MERGES = {(known.n_merges, known.merges_key): known for known in KNOWN if known.merges_key}
_MERGE_COUNTS = {known.n_merges for known in KNOWN if known.merges_key}


def identify(n_tokens: int, n_merges: int, key: str) -> KnownVocabulary | None:
    """The known vocabulary with this fingerprint, if any.

    Args:
        n_tokens: length of the token list.
        n_merges: length of the merge list; a file with fewer is not that vocabulary.
        key: :func:`fingerprint` of the token list.
    """
    known = _BY_KEY.get(key)
    if known is None or known.n_tokens != n_tokens or known.n_merges != n_merges:
        return None
    return known


def by_tokens(key: str) -> KnownVocabulary | None:
    """The known vocabulary whose tokens have the fingerprint *key*, with any merges."""
    return _BY_KEY.get(key)


def another_pre(known: KnownVocabulary, named: object) -> bool:
    """True if *named* splits text differently from the pre-tokenizer of *known*."""
    if not known.pre or named in known.also or named == known.pre:
        return False
    same = PRE_TOKENIZERS.get(named) if isinstance(named, str) else None
    return same is None or same != PRE_TOKENIZERS.get(known.pre)


def identify_merges(n_merges: int, key: Callable[[], str]) -> KnownVocabulary | None:
    """The known vocabulary with these merges, regardless of its special tokens.

    Args:
        n_merges: length of the merge list.
        key: returns :func:`fingerprint` of the merge list; called only if the length is known.
    """
    if n_merges not in _MERGE_COUNTS:
        return None
    return _BY_MERGES.get((n_merges, key()))


def spec_key(spec: TokenizerSpec, *content: bytes) -> str:
    """Hash of everything a specification depends on: key of its compiled form.

    Args:
        spec: hashed except for its long sequences, which *content* stands for.
        content: the bytes it was built from.
    """
    digest = hashlib.sha256()
    for part in content:
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    for field in fields(spec):
        if field.name not in _LONG | _ASIDE:
            value = getattr(spec, field.name)
            shown = sorted(value) if isinstance(value, frozenset) else value
            digest.update(f"{field.name}={shown!r};".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
