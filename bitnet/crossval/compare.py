"""Two traces compared: whether both are whole, tokenizers text by text, logits row by row.

*theirs* is the reference, *ours* is under test. KL divergences are in nats and never exceed the
full ones: tokens that were not stored count as one event, and a token that one side did not store
as no more likely than the last one it did. Comparisons pair the answers of both sides. A missing
answer would silently drop out of these pairs, so each side is held to the request first.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from bitnet.crossval.evidence import Row, TokenizerParity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.crossval.trace import Position, Prompt, PromptTrace, Trace
    from bitnet.tokenizer import Tokenizer

_TINY = 1e-12  # smallest remaining probability; anything below is rounding
_ALIKE = 1e-6  # spread of log-probabilities below which no slope is measured
_ROUNDING = 1e-7  # of a remaining probability, from writing down logits
_LEAST = 10  # tokens stored at a position; fewer than that are not a distribution
_SHOWN = 8
_CLEANED_UP = re.compile(r" [?!.,]| ' | n't| '(?:m|s|ve|re)| \u2047 ")


def faults_of(
    trace: Trace, prompts: Sequence[Prompt], *, texts: int = 0, vocabulary: int = _LEAST
) -> tuple[str, ...]:
    """Descriptions of what *trace* lacks or has beyond the request; empty if it is whole.

    *texts* is the number of texts to tokenize.
    """
    faults = []
    if len(trace.prompts) != len(prompts):
        faults.append(f"{len(trace.prompts)} prompts, asked were {len(prompts)}")
    least = min(_LEAST, vocabulary)
    for number, (answer, prompt) in enumerate(zip(trace.prompts, prompts, strict=False)):
        faults += [f"prompt {number}: {fault}" for fault in _faults(answer, prompt, least)]
    tokenized = len(trace.tokenized or ()) if texts else 0
    if tokenized != texts:
        faults.append(f"ids of {tokenized:,} texts, asked were {texts:,}")
    return tuple(faults[:_SHOWN])


def _faults(answer: PromptTrace, prompt: Prompt, least: int) -> Iterator[str]:
    if answer.error:
        yield answer.error
    if not prompt.ids and not answer.error:
        yield "no tokens to run"
    if (answer.ids, answer.first) != (prompt.ids, prompt.first):
        yield "the answer is about other tokens"
    count = len(prompt.ids) - prompt.first
    if len(answer.positions) != count and not answer.error:
        yield f"{len(answer.positions)} distributions for {count} tokens"
    for at, position in enumerate(answer.positions):
        if not position.is_finite:
            yield f"the logits of position {at} are not finite"
            break
        if len(position.ids) < least:
            yield f"{len(position.ids)} tokens stored at position {at}, expected at least {least}"
            break
    if len(answer.greedy) != prompt.steps and not answer.error:
        yield f"a continuation of {len(answer.greedy)} tokens, asked were {prompt.steps}"


def compare(
    ours: Trace, theirs: Trace, *, exact: Trace | None = None
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """*ours* beside *theirs*: a row for each position, and one for each continuation.

    Prompts are paired by index and only if their tokens are equal; unpaired ones have no row, and
    :mod:`bitnet.crossval.run` has found them. *exact* is the float64 pass over the same prompts.
    """
    rows: list[Row] = []
    continuations: list[Row] = []
    pairs = zip(ours.prompts, theirs.prompts, strict=False)
    for number, (answer, reply) in enumerate(pairs):
        if (answer.ids, answer.first) != (reply.ids, reply.first):
            continue
        right = exact.prompts[number : number + 1] if exact else ()
        truths = (*(right[0].positions if right else ()), *[None] * len(answer.ids))
        following: list[int | None] = [*answer.ids[answer.first + 1 :], None]
        for at, (p, q) in enumerate(zip(answer.positions, reply.positions, strict=False)):
            position = number, answer.first + at
            rows.append(_compare_position(position, p, q, truths[at], following[at]))
        steps = list(zip(answer.greedy, reply.greedy, strict=False))
        if steps:
            parted = (at for at, (best, other) in enumerate(steps) if best != other)
            at = next(parted, len(steps) - 1)
            continuations.append(Row(number, at, *steps[at], reply.top2_gaps[at]))
    return tuple(rows), tuple(continuations)


def _compare_position(
    position: tuple[int, int],
    ours: Position,
    theirs: Position,
    exact: Position | None,
    following: int | None,
) -> Row:
    best = [
        candidate.ids[0] if candidate is not None and candidate.is_finite else None
        for candidate in (ours, theirs, exact)
    ]
    ours_kl, ours_scale = nearness(exact, ours)
    theirs_kl, theirs_scale = nearness(exact, theirs)
    return Row(
        *position,
        *(best[0], best[1]),
        gap=None if None in best[:2] else theirs.gap,
        kl=divergence(theirs, ours),
        nll=_nll(ours, following),
        theirs_nll=_nll(theirs, following),
        exact=best[2],
        ours_kl=ours_kl,
        ours_scale=ours_scale,
        theirs_kl=theirs_kl,
        theirs_scale=theirs_scale,
    )


def divergence(p: Position | None, q: Position | None) -> float | None:
    """KL from *p* to *q*, at least 0; the module describes the sum. None without finite logits."""
    if p is None or q is None or not (p.is_finite and q.is_finite):
        return None
    mine = p.log_probabilities()
    other = q.log_probabilities()
    floor = min(other.values())
    common = {token: log_p for token, log_p in mine.items() if token in other}
    return max(_sum(common, other, floor), _sum(mine, other, floor), 0.0)


def _sum(mine: Mapping[int, float], theirs: Mapping[int, float], floor: float) -> float:
    """The divergence over the tokens of *mine*, with all others as one event.

    A token that *theirs* lacks is there at most as likely as *floor*.
    """
    total = 0.0
    mass = 0.0
    other_mass = 0.0
    for token, log_p in mine.items():
        log_q = theirs.get(token)
        mass += math.exp(log_p)
        other_mass += 0.0 if log_q is None else math.exp(log_q)
        total += math.exp(log_p) * (log_p - (floor if log_q is None else log_q))
    rest = max(1 - mass, 0.0)
    rest_other = max(1 - other_mass, _TINY)
    if rest > _ROUNDING:
        total += rest * math.log(rest / rest_other)
    return total


def nearness(exact: Position | None, engine: Position) -> tuple[float | None, float | None]:
    """KL from *exact* to *engine*, and the slope of its log-probabilities over the exact ones.

    Both are None without finite logits, the slope also where the exact ones are equal.
    """
    if exact is None or not (exact.is_finite and engine.is_finite):
        return None, None
    right = exact.log_probabilities()
    theirs = engine.log_probabilities()
    common = [token for token in exact.ids if token in theirs]
    x = np.array([right[token] for token in common])
    y = np.array([theirs[token] for token in common])
    scale: float | None = None
    if len(common) > 2 and float(np.std(x)) > _ALIKE:
        x = x - x.mean()
        scale = float(x @ (y - y.mean()) / (x @ x))
    return divergence(exact, engine), scale


def _nll(position: Position | None, following: int | None) -> float | None:
    """``-log p`` of *following*; a token that is not stored counts as the last stored one."""
    if following is None or position is None or not position.is_finite:
        return None
    log_p_by_id = position.log_probabilities()
    return max(-log_p_by_id.get(following, min(log_p_by_id.values())), 0.0)


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
    different = []
    same_text = []
    for (text, special), reply, their_text in zip(texts, theirs.tokenized, decoded, strict=True):
        ids = tuple(tokenizer.encode(text, add_special=special))
        if ids != reply:
            different.append((text, ids, reply))
        elif their_text is not None and tokenizer.model != "wordpiece":
            own = tokenizer.decode(list(ids))
            if not _CLEANED_UP.search(own):
                same_text.append((ids, own == their_text))
    wrong = [ids for ids, is_same in same_text if not is_same]
    first = different[0] if different else (None, (), ())
    return TokenizerParity(
        total=len(texts),
        equal=len(texts) - len(different),
        text=first[0],
        ours=first[1],
        theirs=first[2],
        decoded=len(same_text),
        decoded_equal=len(same_text) - len(wrong),
        ids=wrong[0] if wrong else (),
    )
