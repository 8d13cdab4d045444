"""Plausibility checks of a tokenizer without its original: known vocabularies, consistent parts.

A trained byte-level vocabulary has its tokens in the order of the merges that produce them, and a
merge for each. If a vocabulary has a few exceptions, something was lost or exchanged. One with many
exceptions was made in another way, and is not judged.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from bitnet.base.errors import BitnetError
from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.from_files import spec_from_folder
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer.spec import TokenType
from bitnet.verify.attest import attestations_by_name
from bitnet.verify.content import content_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.tokenizer.spec import TokenizerSpec
    from bitnet.verify.content import Content

NORMAL = TokenType.NORMAL
CONTROL = TokenType.CONTROL
FEWEST = 16  # merges; with fewer, their order is not judged
FEW = 4  # most exceptions that indicate damage; with more, the vocabulary was made in another way
NEAR = 0.9  # share of equal rows at which a list is recognised as a known one
# Tokens that begin a text or a turn and never end one.
BEGINS = frozenset(
    {"<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|im_start|>", "[CLS]"}
)


def vocabulary_anomalies(checkpoint: Checkpoint, pre: str | None = None) -> list[str] | None:
    """Anomalies of the tokenizer in *checkpoint*; ``None`` if it has no tokenizer that can run."""
    content = content_of(checkpoint)
    try:
        if checkpoint.gguf is None:
            spec = spec_from_folder(checkpoint.path, pre=pre, files=checkpoint.inventory)
        else:
            spec = spec_from_gguf(checkpoint.gguf, pre=pre)
    except BitnetError:
        return None
    special = {
        token.id: CONTROL if token.special else TokenType.USER_DEFINED for token in spec.added
    }
    # A damaged file may have types behind its last token.
    types = dict(enumerate(spec.token_types[: len(spec.tokens)])) or special
    near = [*_unlike_known(content), *_unlike_pinned(content)]
    # Such a difference usually breaks the order, too: it is reported once.
    order = [] if near else _out_of_order(spec, types)
    return [*near, *order, *_special(spec, types)]


def _special(spec: TokenizerSpec, types: Mapping[int, int]) -> Iterator[str]:
    """Stop ids that are ordinary tokens, and control tokens that are ordinary words."""
    for id in sorted(spec.stop_ids):
        text = spec.tokens[id]
        if types.get(id, NORMAL) == NORMAL:
            yield f"{id} {text!r} ends a text and is an ordinary token"
        if text in BEGINS:
            yield f"{id} {text!r} ends a text and is a token that begins one"
    words = [
        f"{id} {spec.tokens[id]!r}"
        for id, kind in types.items()
        if kind == CONTROL and spec.tokens[id].isalpha()
    ]
    if 0 < len(words) <= FEW:
        yield f"control tokens that are words: {', '.join(words)}"


def _unlike_known(content: Content) -> Iterator[str]:
    """Messages about other merges or another pre-tokenizer than a known vocabulary has."""
    tokens = content.lists.get("tokenizer.ggml.tokens")
    match = tokens and vocabularies.identify(vocabularies.fingerprint(tokens.raw))
    if not match:
        return
    merges = content.lists.get("tokenizer.ggml.merges")
    pre = content.values.get("tokenizer.ggml.pre")
    count = 0 if merges is None else len(merges)
    if match.n_merges != count:
        yield f"{count:,} merges, the vocabulary of {match.name} has {match.n_merges:,}"
    elif merges and match.merges_key not in ("", vocabularies.fingerprint(merges.raw)):
        yield f"the tokens are those of {match.name}, the merges are not"
    if pre and vocabularies.another_pre(match, pre):
        yield f"tokenizer.ggml.pre is {pre!r}, {match.name} has {match.pre!r}"


def _unlike_pinned(content: Content) -> Iterator[str]:
    """Lists that are those of an attested model except for a few items."""
    for name, attestation in attestations_by_name().items():
        for part in ("tokens", "merges"):
            key = f"tokenizer.ggml.{part}"
            items = content.lists.get(key)
            grid = attestation.lists.get(key)
            if items is None or grid is None or len(items) != grid.length:
                continue
            if NEAR <= grid.overlap(items) < 1:
                where = grid.locate(items)
                if "'<" not in where and "'[" not in where:  # renamed special tokens are usual
                    yield f"{key} is that of {name} but for: {where}"


def _out_of_order(spec: TokenizerSpec, types: Mapping[int, int]) -> Iterator[str]:
    """Exceptions from the order of merges, and tokens without a merge, if there are only a few."""
    if not spec.byte_level or len(spec.merges) < FEWEST:
        return
    tokens = list(spec.tokens)
    ids = {text: id for id, text in enumerate(tokens)}
    prefix = spec.continuing_prefix  # of the right half, which the product does not have
    products = [tokens[left] + tokens[right].removeprefix(prefix) for left, right in spec.merges]
    # Ids of the products of two consecutive merges, where the second id is the smaller one.
    inversions = [(a, b) for a, b in pairwise(map(ids.__getitem__, products)) if b < a]
    if 0 < len(inversions) <= FEW:
        names = ", ".join(f"{id} {tokens[id]!r}" for pair in inversions for id in pair)
        yield f"tokens are not in the order of their merges: {names}"
    merged = set(products)
    without_merge = [
        f"{id} {text!r}"
        for id, text in enumerate(tokens)
        if len(text) > 1 and text not in merged and types.get(id, NORMAL) == NORMAL
    ]
    if 0 < len(without_merge) <= FEW:
        yield f"no merge makes the tokens {', '.join(without_merge)}"
