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

from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.crossval.reference import Reference
    from bitnet.crossval.trace import Trace
    from bitnet.tokenizer import Tokenizer

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
    decoded = theirs.decoded or (None,) * len(texts)
    if not len(theirs.tokenized) == len(decoded) == len(texts):
        return TokenizerParity(len(texts), 0)
    judged, apart, same_text = [], [], []
    for (text, special), reply, their_text in zip(texts, theirs.tokenized, decoded, strict=True):
        ids = tuple(tokenizer.encode(text, add_special=special))
        if _is_apart(tokenizer, text, special):
            apart.append(ids == reply)
            continue
        judged.append((text, ids, reply))
        if their_text is None or ids != reply or tokenizer.model == "wordpiece":
            continue
        own = tokenizer.decode(list(ids))
        if not _CLEANED_UP.search(own):
            same_text.append((ids, own == their_text))
    different = [it for it in judged if it[1] != it[2]]
    first = different[0] if different else (None, (), ())
    wrong = [ids for ids, is_same in same_text if not is_same]
    return TokenizerParity(
        total=len(judged),
        equal=len(judged) - len(different),
        apart=len(apart),
        apart_equal=sum(apart),
        text=first[0],
        ours=first[1],
        theirs=first[2],
        decoded=len(same_text),
        decoded_equal=len(same_text) - len(wrong),
        ids=wrong[0] if wrong else (),
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
