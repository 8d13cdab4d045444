"""Compare two traces: pure functions, without engines or files.

*theirs* is the reference, *ours* is under test. KL divergences are in nats and never exceed the
full ones: tokens that were not stored count as one event, and a token that one side did not store
as no more likely than the last one it did.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bitnet.tokenizer.comparison import probe_texts
from bitnet.tokenizer.spec import SPACE_SYMBOL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.crossval.trace import Position, PromptTrace, Reference, Trace
    from bitnet.tokenizer import Tokenizer

_TINY = 1e-12  # smallest remaining probability; anything below is rounding
_ALIKE = 1e-6  # spread of log-probabilities below which no slope is measured
_ROUNDING = 1e-7  # of a remaining probability, from writing down logits


@dataclass(frozen=True)
class Row:
    """One position, teacher-forced: both engines were given the same tokens.

    In a continuation, it is the first step where the engines part, or the last one, and holds
    tokens and the gap alone. A field is ``None`` if one of them has no finite logits there, which
    never passes.
    """

    prompt: int  # index of the prompt
    position: int  # index of the last token given, or of the step
    ours: int | None  # our likeliest next token
    theirs: int | None  # the reference's
    gap: float | None  # logit difference between the reference's best and second token
    kl: float | None = None  # from the reference to ours
    # upper bound of our ``-log p`` of the actual next token; None at the end
    nll: float | None = None
    theirs_nll: float | None = None  # the reference's
    # likeliest next token of the float64 pass, ``None`` without such a pass
    exact: int | None = None
    exact_nll: float | None = None  # its ``-log p`` of the actual next token
    ours_kl: float | None = None  # from the float64 pass to ours
    # slope of our log-probabilities over those of the float64 pass, 1 without scaling; ``None`` if
    # all tokens of the float64 pass are equal
    ours_scale: float | None = None
    theirs_kl: float | None = None  # from the float64 pass to the reference
    theirs_scale: float | None = None  # slope of its log-probabilities
    # KL from a recorded float64 pass to today's; None without a recorded one
    drift: float | None = None
    # ``ours`` and ``theirs``, the engines that choose other experts than the float64 pass there, in
    # a near-tie
    rerouted: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """True if both have the same likeliest token."""
        return self.ours is not None and self.ours == self.theirs


def divergence(p: Position, q: Position) -> float:
    """KL from *p* to *q*, at least 0; the module describes the sum."""
    mine, other = p.log_probabilities(), q.log_probabilities()
    floor = min(other.values())
    common = {token: log_p for token, log_p in mine.items() if token in other}
    return max(_sum(common, other, floor), _sum(mine, other, floor), 0.0)


def _sum(mine: Mapping[int, float], theirs: Mapping[int, float], floor: float) -> float:
    """The divergence over the tokens of *mine*, with all others as one event.

    A token that *theirs* lacks is there at most as likely as *floor*.
    """
    total, mass, other_mass = 0.0, 0.0, 0.0
    for token, log_p in mine.items():
        log_q = theirs.get(token)
        mass += math.exp(log_p)
        other_mass += 0.0 if log_q is None else math.exp(log_q)
        total += math.exp(log_p) * (log_p - (floor if log_q is None else log_q))
    rest, rest_other = max(1 - mass, 0.0), max(1 - other_mass, _TINY)
    if rest > _ROUNDING:
        total += rest * math.log(rest / rest_other)
    return total


def compare(
    ours: Trace, theirs: Trace, *, exact: Trace | None = None, today: Trace | None = None
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """*ours* beside *theirs*: a row for each position, and one for each continuation.

    Prompts are paired by index and only if their tokens are equal; unpaired ones have no row, and
    :mod:`bitnet.crossval.run` has found them. *exact* is the float64 pass over the same
    prompts, *today* another one where it was recorded.
    """
    rows: list[Row] = []
    continuations: list[Row] = []
    pairs = zip(ours.prompts, theirs.prompts, strict=False)
    for number, (answer, reply) in enumerate(pairs):
        if (answer.ids, answer.first) != (reply.ids, reply.first):
            continue
        truth, now = (
            trace.prompts[number] if trace and number < len(trace.prompts) else None
            for trace in (exact, today)
        )
        rows += _rows(number, answer, reply, truth, now)
        if answer.greedy and reply.greedy:
            continuations.append(_continuation(number, answer, reply))
    return tuple(rows), tuple(continuations)


def _rows(
    number: int,
    mine: PromptTrace,
    reply: PromptTrace,
    truth: PromptTrace | None,
    today: PromptTrace | None,
) -> Iterator[Row]:
    following: list[int | None] = [*mine.ids[mine.first + 1 :], None]
    for at, (p, q) in enumerate(zip(mine.positions, reply.positions, strict=False)):
        best, best_of_other = (it.ids[0] if it.is_finite else None for it in (p, q))
        row = Row(number, mine.first + at, best, best_of_other, None)
        if p.is_finite and q.is_finite:
            row = replace(
                row,
                gap=q.gap,
                kl=divergence(q, p),
                nll=_nll(p, following[at]),
                theirs_nll=_nll(q, following[at]),
            )
        right = truth.positions[at] if truth and at < len(truth.positions) else None
        now = today.positions[at] if today and at < len(today.positions) else None
        if right is not None and right.is_finite:
            kl, scale = nearness(right, p)
            kl_of_other, scale_of_other = nearness(right, q)
            row = replace(
                row,
                exact=right.ids[0],
                exact_nll=_nll(right, following[at]),
                ours_kl=kl,
                ours_scale=scale,
                theirs_kl=kl_of_other,
                theirs_scale=scale_of_other,
                drift=divergence(right, now) if now is not None and now.is_finite else None,
            )
        yield row


def nearness(exact: Position, engine: Position) -> tuple[float | None, float | None]:
    """KL from *exact* to *engine*, and the slope of its log-probabilities over the exact ones.

    Both are None if its logits are not finite, the slope also where the exact ones are equal.
    """
    if not engine.is_finite:
        return None, None
    right, theirs = exact.log_probabilities(), engine.log_probabilities()
    common = [token for token in exact.ids if token in theirs]
    x = np.array([right[token] for token in common])
    y = np.array([theirs[token] for token in common])
    scale: float | None = None
    if len(common) > 2 and float(np.std(x)) > _ALIKE:
        x = x - x.mean()
        scale = float(x @ (y - y.mean()) / (x @ x))
    return divergence(exact, engine), scale


def _nll(position: Position, following: int | None) -> float | None:
    """``-log p`` of *following*; a token that is not stored counts as the last stored one."""
    if following is None:
        return None
    known = position.log_probabilities()
    return max(-known.get(following, min(known.values())), 0.0)


def _continuation(number: int, mine: PromptTrace, other: PromptTrace) -> Row:
    pairs = list(zip(mine.greedy, other.greedy, strict=False))
    at = next((at for at, (one, two) in enumerate(pairs) if one != two), len(pairs) - 1)
    return Row(number, at, *pairs[at], other.top2_gaps[at])


_LOOKS_SPECIAL = re.compile(r"</?s>|<\|?\w+\|?>")
_CLEANED_UP = re.compile(r" [?!.,]| ' | n't| '(?:m|s|ve|re)| \u2047 ")


@dataclass(frozen=True)
class TokenizerParity:
    """Two tokenizers compared on the same texts, and on the ids that both gave for them.

    Four things that engines do differently on purpose are compared and counted apart, but not
    judged:

    - U+2581 stands for a space inside SentencePiece vocabularies, and engines split a literal one
      differently;
    - a text that spells BOS itself may get another BOS, or not;
    - decomposed characters, if our tokenizer composes them as the model's own does (NFC; Qwen2's):
      the C++ engines do not;
    - text that looks like a special token but is an ordinary one in the vocabulary (Qwen2's
      ``</s>``): the C++ engines make it special.

    Where both give the same ids, their decoded texts are compared too, except for three kinds: the
    C++ engines remove a space before some punctuation, join WordPiece in their own way, and spell
    the unknown token by its name, for which SentencePiece has U+2047.
    """

    total: int  # texts that are judged
    equal: int  # of these, texts with equal ids
    apart: int = 0  # texts that are compared but not judged
    apart_equal: int = 0  # of these, texts with equal ids
    text: str | None = None  # the first judged text with different ids, ``None`` if there is none
    ours: tuple[int, ...] = ()  # our ids of it
    theirs: tuple[int, ...] = ()  # the reference's
    decoded: int = 0  # lists of ids that were decoded and are judged; 0: the reference decoded none
    decoded_equal: int = 0  # of these, lists with equal texts
    ids: tuple[int, ...] = ()  # the first of them with different texts, empty if there is none


def texts_for(reference: Reference, texts: Sequence[str]) -> tuple[tuple[str, bool], ...]:
    """Texts to tokenize, each with true if special tokens are added.

    A recording brings its own texts; our own code is not asked.
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
