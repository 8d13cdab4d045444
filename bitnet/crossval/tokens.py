"""Tokenizer parity: selection of the texts to compare and to judge, and the comparison.

Four things that engines do differently on purpose are compared and counted apart, but not judged:

- U+2581 stands for a space inside SentencePiece vocabularies, and engines split a literal one
  differently;
- a text that spells BOS itself may get another BOS, or not;
- decomposed characters, if our tokenizer composes them as the model's own does (NFC; Qwen2's):
  the C++ engines do not;
- text that looks like a special token but is an ordinary one in the vocabulary (Qwen2's ``</s>``):
  the C++ engines make it special.

Where both give the same ids, their decoded texts are compared too, except for three kinds: the C++
engines remove a space before some punctuation, join WordPiece in their own way, and spell the
unknown token by its name, for which SentencePiece has U+2047.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.tokenizer.comparison import agreement
from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.crossval.references import Reference
    from bitnet.crossval.trace import Trace
    from bitnet.tokenizer import Tokenizer

__all__ = ["TokenizerParity", "texts_for", "tokenizer_parity"]

_LOOKS_SPECIAL = re.compile(r"</?s>|<\|?\w+\|?>")
_CLEANED_UP = re.compile(r" [?!.,]| ' | n't| '(?:m|s|ve|re)| \u2047 ")


@dataclass(frozen=True)
class TokenizerParity:
    """Two tokenizers compared on the same texts, and on the ids that both gave for them.

    Attributes:
        total: texts that are judged.
        equal: of these, texts with equal ids.
        apart: texts that are compared but not judged.
        apart_equal: of these, texts with equal ids.
        text: the first judged text with different ids, ``None`` if there is none.
        ours: our ids of it.
        theirs: the reference's.
        decoded: lists of ids that were decoded and are judged; 0: the reference decoded none.
        decoded_equal: of these, lists with equal texts.
        ids: the first of them with different texts, empty if there is none.
    """

    total: int
    equal: int
    apart: int = 0
    apart_equal: int = 0
    text: str | None = None
    ours: tuple[int, ...] = ()
    theirs: tuple[int, ...] = ()
    decoded: int = 0
    decoded_equal: int = 0
    ids: tuple[int, ...] = ()


def texts_for(reference: Reference, texts: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """Texts to tokenize, each with true if special tokens are added.

    Args:
        reference: a recording brings its own texts; our own code is not asked.
        texts: the prompts.
    """
    recorded = reference.recording
    if recorded is not None:
        return tuple((one.prompt, True) for one in recorded.prompts)
    if not reference.independent:
        return ()
    probes = probe_texts()
    return (
        *((text, True) for text in texts),
        *((text, False) for text in probes),
        *((text, True) for text in probes),
    )


def tokenizer_parity(
    tokenizer: Tokenizer, theirs: Trace, texts: Sequence[tuple[str, bool]]
) -> TokenizerParity | None:
    """*tokenizer* compared with the reference's on *texts*, ``None`` if the reference has none.

    Texts that the reference left out count as read differently.
    """
    if theirs.tokenized is None or not texts:
        return None
    made = theirs.decoded or (None,) * len(texts)
    if not len(theirs.tokenized) == len(made) == len(texts):
        return TokenizerParity(len(texts), 0)
    judged: list[tuple[str, list[int], tuple[int, ...]]] = []
    apart: list[tuple[str, list[int], tuple[int, ...]]] = []
    decoded = []
    for (text, special), their_ids, made_of_it in zip(texts, theirs.tokenized, made, strict=True):
        ids = tokenizer.encode(text, add_special=special)
        is_apart = _is_apart(tokenizer, text, special)
        (apart if is_apart else judged).append((text, ids, their_ids))
        if (
            made_of_it is None
            or is_apart
            or tuple(ids) != their_ids
            or tokenizer.model == "wordpiece"
        ):
            continue
        own = tokenizer.decode(ids)
        if not _CLEANED_UP.search(own):
            decoded.append((their_ids, own, made_of_it))
    judged_agreement, besides = agreement(judged, decoded), agreement(apart)
    different = next(
        ((ids, their_ids) for _, ids, their_ids in judged if tuple(ids) != their_ids), ((), ())
    )
    return TokenizerParity(
        total=judged_agreement.total,
        equal=judged_agreement.equal,
        apart=besides.total,
        apart_equal=besides.equal,
        text=judged_agreement.first_difference,
        ours=tuple(different[0]),
        theirs=different[1],
        decoded=judged_agreement.decoded,
        decoded_equal=judged_agreement.decoded_equal,
        ids=tuple(judged_agreement.first_ids or ()),
    )


def _is_apart(tokenizer: Tokenizer, text: str, special: bool) -> bool:
    """True if correct engines read *text* differently."""
    if SPACE_SYMBOL in text:
        return True
    composed = unicodedata.normalize("NFC", text)
    if composed != text:
        ids = [tokenizer.encode(one, add_special=False) for one in (text, composed)]
        if ids[0] == ids[1]:
            return True
    for name in _LOOKS_SPECIAL.findall(text):
        id = tokenizer.id_of(name)
        if id is not None and tokenizer.encode(name, add_special=False) != [id]:
            return True
    plain = tokenizer.encode(text, add_special=False) if special else []
    return bool(plain) and plain[0] == tokenizer.bos_id
