"""Known vocabularies: facts missing from their GGUF files, found by a hash of the token list.

Many files lack ``tokenizer.ggml.pre``, or say ``default``; some conversions name a wrong one. The
token list itself tells which tokenizer it is, since two different tokenizers never share one.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitnet.tokenizer.spec import TokenizerSpec


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
    key: str = ""
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


def _read_known() -> tuple[KnownVocabulary, ...]:
    rows = json.loads(Path(__file__).with_name("known_vocabularies.json").read_text("utf-8"))
    return tuple(KnownVocabulary(**row | {"also": frozenset(row.get("also", ()))}) for row in rows)


KNOWN = _read_known()
# Fields of a specification whose values are not hashed: they are long, or have no effect.
_LONG = frozenset({"tokens", "merges", "scores", "token_types", "charsmap"})
_ASIDE = frozenset({"source", "document", "fingerprint"})
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
