"""Tokenizer parity: which texts are compared, which of them are judged, and the comparison alone.

Four things engines do differently on purpose are compared and counted apart, never judged:

- U+2581 stands for a space inside SentencePiece vocabularies, and a literal one is cut elsewhere;
- a text that spells BOS itself may get another one, or not;
- decomposed characters, where our tokenizer composes them as the model's own does (NFC; Qwen2's):
  the C++ engines compose none;
- what looks like a special token and is an ordinary one in the vocabulary (Qwen2's ``</s>``): the
  C++ engines make it special.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from bitnet.crossval.compare import TokenizerParity, compare_tokenizers
from bitnet.tokenizer.probes import probe_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.crossval.references import Reference
    from bitnet.crossval.trace import Trace
    from bitnet.tokenizer import Tokenizer

__all__ = ["texts_for", "tokenizer_parity"]

_LOOKS_SPECIAL = re.compile(r"</?s>|<\|?\w+\|?>")


def texts_for(reference: Reference, texts: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """What to tokenize, each with whether special tokens go around it.

    Args:
        reference: a recording brings its own; our own code is not asked.
        texts: the prompts.
    """
    recorded = getattr(reference, "recording", None)
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
    """*tokenizer* beside the reference's on *texts*, ``None`` where the reference has none.

    Texts that the reference left out count as read differently.
    """
    if theirs.tokenized is None or not texts:
        return None
    if len(theirs.tokenized) != len(texts):
        return TokenizerParity(len(texts), 0)
    ours = [tokenizer.encode(text, add_special=special) for text, special in texts]
    apart = [_is_apart(tokenizer, text, special) for text, special in texts]
    return compare_tokenizers([text for text, _ in texts], ours, theirs.tokenized, apart=apart)


def _is_apart(tokenizer: Tokenizer, text: str, special: bool) -> bool:
    """Engines that are all correct read *text* differently."""
    if "\u2581" in text:
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
