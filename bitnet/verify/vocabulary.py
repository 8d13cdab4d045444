"""Plausibility checks of a tokenizer without its original: known vocabularies, consistent parts.

A trained byte-level vocabulary has its tokens in the order of the merges that produce them, and a
merge for each. One with only a few exceptions has lost or exchanged something; one with many was
made in another way, and is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.tokenizer import vocabularies
from bitnet.tokenizer.spec import TokenType
from bitnet.verify.attest import attestations_by_name
from bitnet.verify.content import MERGE_PAIRS, MERGES, VOCAB, key_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bitnet.verify.content import Content, Items

NORMAL, CONTROL = TokenType.NORMAL, TokenType.CONTROL
FEWEST = 16  # merges needed to speak of an order
FEW = 4  # exceptions that indicate damage; more are another way to make a vocabulary
NEAR = 0.9  # share of equal rows at which a list is recognised as a known one
# Tokens that begin a text or a turn and never end one.
BEGINS = frozenset(
    {"<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|im_start|>", "[CLS]"}
)


@dataclass(frozen=True)
class _Vocabulary:
    """Parts of a tokenizer, from any container; missing parts are empty."""

    tokens: list[str]
    merges: list[str]
    types: Mapping[int, int]
    ends: tuple[Any, ...]
    byte_level: bool
    pre: Any


def vocabulary_out_of_range(content: Content) -> list[str] | None:
    """Anomalies of the tokenizer in *content*; ``None`` if there is no tokenizer."""
    if (vocabulary := _vocabulary(content)) is None:
        return None
    near = [*_unlike_known(content, vocabulary), *_unlike_pinned(content)]
    order = [] if near else _out_of_order(vocabulary)
    return [*near, *order, *_special(vocabulary)]


def _vocabulary(content: Content) -> _Vocabulary | None:
    values, lists = content.values, content.lists
    if (tokens := lists.get("tokenizer.ggml.tokens")) is not None:
        types = lists.get("tokenizer.ggml.token_type")
        named = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
        return _Vocabulary(
            _texts(tokens),
            _texts(lists.get("tokenizer.ggml.merges")),
            dict(enumerate(np.frombuffer(types.raw, types.kind).tolist()))
            if types is not None and types.kind != "string"
            else {},
            tuple(values[name] for name in named if name in values),
            values.get("tokenizer.ggml.model") == "gpt2",
            values.get("tokenizer.ggml.pre"),
        )
    if (tokens := lists.get(VOCAB)) is None:
        return None
    added = {
        entry["id"]: entry
        for key, entry in values.items()
        if key.startswith('tokenizer.json["added_tokens",')
        and isinstance(entry, dict)
        and isinstance(entry.get("id"), int)
    }
    special = {
        id: CONTROL if entry.get("special") else TokenType.USER_DEFINED
        for id, entry in added.items()
    }
    texts = _texts(tokens)
    ends = [
        values.get(key_in("tokenizer_config.json", "eos_token", *part))
        for part in ((), ("content",))
    ]
    ids = {text: id for id, text in enumerate(texts)}
    ids |= {str(entry.get("content")): id for id, entry in added.items()}
    return _Vocabulary(
        texts,
        _texts(lists.get(MERGES) or lists.get(MERGE_PAIRS)),
        {id: special.get(id, NORMAL) for id in range(len(texts))} | special,
        tuple(ids[end] for end in ends if isinstance(end, str) and end in ids),
        values.get(key_in("tokenizer.json", "model", "type")) == "BPE"
        and key_in("tokenizer.json", "decoder", "type") in values,
        None,
    )


def _texts(items: Items | None) -> list[str]:
    return items.texts() if items is not None and items.kind == "string" else []


def _special(vocabulary: _Vocabulary) -> Iterator[str]:
    """Stop ids that are ordinary tokens, and control tokens that are ordinary words."""
    for id in vocabulary.ends:
        if not isinstance(id, int) or not 0 <= id < len(vocabulary.tokens):
            continue  # the check of stop ids reports it
        text = vocabulary.tokens[id]
        if vocabulary.types.get(id) == NORMAL:
            yield f"{id} {text!r} ends a text and is an ordinary token"
        if text in BEGINS:
            yield f"{id} {text!r} ends a text and is a token that begins one"
    words = [
        f"{id} {vocabulary.tokens[id]!r}"
        for id, kind in vocabulary.types.items()
        if kind == CONTROL and 0 <= id < len(vocabulary.tokens) and vocabulary.tokens[id].isalpha()
    ]
    if 0 < len(words) <= FEW:
        yield f"control tokens that are words: {', '.join(words)}"


def _unlike_known(content: Content, vocabulary: _Vocabulary) -> Iterator[str]:
    """Tokens of a known vocabulary with different merges or another pre-tokenizer."""
    tokens = content.lists.get("tokenizer.ggml.tokens")
    if tokens is None:
        return
    match = vocabularies.by_tokens(vocabularies.fingerprint(tokens.raw))
    if match is None:
        return
    if match.n_merges != len(vocabulary.merges):
        count = len(vocabulary.merges)
        yield f"{count:,} merges, the vocabulary of {match.name} has {match.n_merges:,}"
    elif match.merges_key:
        merges = content.lists["tokenizer.ggml.merges"]
        if vocabularies.fingerprint(merges.raw) != match.merges_key:
            yield f"the tokens are those of {match.name}, the merges are not"
    if vocabulary.pre and vocabularies.another_pre(match, vocabulary.pre):
        yield f"tokenizer.ggml.pre is {vocabulary.pre!r}, {match.name} has {match.pre!r}"


def _unlike_pinned(content: Content) -> Iterator[str]:
    """Lists of a known model with a few differing items."""
    for name, attestation in attestations_by_name().items():
        for part in ("tokens", "merges"):
            key = f"tokenizer.ggml.{part}"
            items, grid = content.lists.get(key), attestation.lists.get(key)
            if items is None or grid is None or len(items) != grid.length:
                continue
            if NEAR <= grid.overlap(items) < 1:
                where = grid.locate(items)
                if "'<" not in where and "'[" not in where:  # renamed special tokens are usual
                    yield f"{key} is that of {name} but for: {where}"


def _out_of_order(vocabulary: _Vocabulary) -> Iterator[str]:
    """Exceptions from the order of merges and of the tokens they produce."""
    if not vocabulary.byte_level or len(vocabulary.merges) < FEWEST:
        return
    ids = {text: id for id, text in enumerate(vocabulary.tokens)}
    made = [merge.replace(" ", "", 1) if merge[:1] != " " else merge for merge in vocabulary.merges]
    known = [ids[text] for text in made if text in ids]
    back = [(before, now) for before, now in pairwise(known) if now < before]
    if 0 < len(back) <= FEW:
        names = ", ".join(f"{id} {vocabulary.tokens[id]!r}" for pair in back for id in pair)
        yield f"tokens are not in the order of their merges: {names}"
    types, merged = vocabulary.types, set(made)
    alone = [
        f"{id} {text!r}"
        for id, text in enumerate(vocabulary.tokens)
        if len(text) > 1 and text not in merged and types.get(id, NORMAL) == NORMAL
    ]
    if 0 < len(alone) <= FEW:
        yield f"no merge makes the tokens {', '.join(alone)}"
