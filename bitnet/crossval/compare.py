"""Two traces compared: whether both are whole, tokenizers text by text, logits row by row.

*theirs* is the reference, *ours* is under test. KL divergences are in nats, and lower bounds of
those over the whole vocabulary: the tokens that were not stored count as one event, and a token
that only one side stored is, on the other, at most as likely as the last token stored there.
Comparisons pair the answers of both sides. A missing answer would silently drop out of these pairs,
so the answers of each side are compared with the request first (:func:`faults_of`).
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

# Of the tokens that are not stored, together: their least probability, since anything below is
# rounding, and the error of their probability, since stored logits are rounded.
_TINY = 1e-12
_ROUNDING = 1e-7
_ALIKE = 1e-6  # spread of log-probabilities below which no slope is measured
_LEAST = 10  # tokens stored at a position; fewer than that are not a distribution
_SHOWN = 8  # faults that are listed
# Texts that decode differently on purpose: see :class:`bitnet.crossval.evidence.TokenizerParity`.
_CLEANED_UP = re.compile(r" [?!.,]| ' | n't| '(?:m|s|ve|re)| \u2047 ")


def faults_of(
    trace: Trace, prompts: Sequence[Prompt], *, texts: int = 0, vocabulary: int
) -> tuple[str, ...]:
    """Descriptions of what *trace* lacks or has beyond the request; empty if it is whole.

    *texts* is the number of texts to tokenize, *vocabulary* that of the model's tokens.
    """
    faults = []
    if len(trace.prompts) != len(prompts):
        faults.append(f"{len(trace.prompts)} prompts, expected {len(prompts)}")
    for number, (answer, prompt) in enumerate(zip(trace.prompts, prompts, strict=False)):
        faults += [f"prompt {number}: {fault}" for fault in _faults(answer, prompt, vocabulary)]
    tokenized = len(trace.tokenized or ()) if texts else 0
    if tokenized != texts:
        faults.append(f"ids of {tokenized:,} texts, expected {texts:,}")
    return tuple(faults[:_SHOWN])


def _faults(answer: PromptTrace, prompt: Prompt, vocabulary: int) -> Iterator[str]:
    """Faults of *answer* to *prompt*; of its positions, only the first faulty one is described."""
    least = min(_LEAST, vocabulary)
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
        if max(position.ids) >= vocabulary:
            yield f"token {max(position.ids)} at position {at} is {_outside(vocabulary)}"
            break
    if max(answer.greedy, default=0) >= vocabulary:
        yield f"token {max(answer.greedy)} of the continuation is {_outside(vocabulary)}"
    if len(answer.greedy) != prompt.steps and not answer.error:
        yield f"a continuation of {len(answer.greedy)} tokens, expected {prompt.steps}"


def _outside(vocabulary: int) -> str:
    return f"outside the vocabulary of {vocabulary:,}"


def compare(
    ours: Trace, theirs: Trace, *, exact: Trace | None = None
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """*ours* beside *theirs*: a row for each position, and one for each continuation.

    Prompts are paired by index and only if their tokens are equal; unpaired ones have no row, and
    :func:`faults_of` reports them. *exact* is the float64 pass over the same prompts.
    """
    rows: list[Row] = []
    continuations: list[Row] = []
    pairs = zip(ours.prompts, theirs.prompts, strict=False)
    for number, (our_answer, their_answer) in enumerate(pairs):
        if (our_answer.ids, our_answer.first) != (their_answer.ids, their_answer.first):
            continue
        exact_positions: Sequence[Position] = ()
        if exact is not None and number < len(exact.prompts):
            exact_positions = exact.prompts[number].positions
        pairs_of_positions = zip(our_answer.positions, their_answer.positions, strict=False)
        for at, (position, their_position) in enumerate(pairs_of_positions):
            index = our_answer.first + at
            rows.append(
                _compare_position(
                    (number, index),
                    position,
                    their_position,
                    exact=exact_positions[at] if at < len(exact_positions) else None,
                    following=(
                        our_answer.ids[index + 1] if index + 1 < len(our_answer.ids) else None
                    ),
                )
            )
        # Of a continuation, the first step with different tokens, or else the last step.
        tokens = list(zip(our_answer.greedy, their_answer.greedy, strict=False))
        if tokens:
            differing = (
                step for step, (token, their_token) in enumerate(tokens) if token != their_token
            )
            step = next(differing, len(tokens) - 1)
            continuations.append(Row(number, step, *tokens[step], their_answer.top2_gaps[step]))
    return tuple(rows), tuple(continuations)


def _compare_position(
    indices: tuple[int, int],
    ours: Position,
    theirs: Position,
    *,
    exact: Position | None,
    following: int | None,
) -> Row:
    """The row of the position with these *indices*: of its prompt, and of its token in that.

    *following* is the next token of the prompt; None at its end.
    """
    ours_kl, ours_scale = nearness(exact, ours)
    theirs_kl, theirs_scale = nearness(exact, theirs)
    return Row(
        *indices,
        ours=_likeliest(ours),
        theirs=_likeliest(theirs),
        gap=theirs.gap if ours.is_finite and theirs.is_finite else None,
        kl=divergence(theirs, ours),
        nll=_nll(ours, following),
        theirs_nll=_nll(theirs, following),
        exact=_likeliest(exact),
        ours_kl=ours_kl,
        ours_scale=ours_scale,
        theirs_kl=theirs_kl,
        theirs_scale=theirs_scale,
    )


def _likeliest(position: Position | None) -> int | None:
    """The likeliest token at *position*; None without finite logits."""
    return position.ids[0] if position is not None and position.is_finite else None


def divergence(p: Position | None, q: Position | None) -> float | None:
    """Lower bound of the KL divergence from *p* to *q*, at least 0; None without finite logits."""
    if p is None or q is None or not (p.is_finite and q.is_finite):
        return None
    log_ps = p.log_probabilities()
    log_qs = q.log_probabilities()
    common = {token: log_p for token, log_p in log_ps.items() if token in log_qs}
    # Neither sum exceeds the divergence over the whole vocabulary: the larger one is nearer to it.
    return max(_divergence_over(common, log_qs), _divergence_over(log_ps, log_qs), 0.0)


def _divergence_over(log_ps: Mapping[int, float], log_qs: Mapping[int, float]) -> float:
    """KL divergence over the tokens of *log_ps*, with all others as one event.

    A token that *log_qs* lacks counts as likely as the least likely one in it.
    """
    floor = min(log_qs.values())
    total = 0.0
    p_mass = 0.0
    q_mass = 0.0
    for token, log_p in log_ps.items():
        p_mass += math.exp(log_p)
        log_q = log_qs.get(token)
        if log_q is None:
            total += math.exp(log_p) * (log_p - floor)
        else:
            q_mass += math.exp(log_q)
            total += math.exp(log_p) * (log_p - log_q)
    p_rest = max(1 - p_mass, 0.0)
    q_rest = max(1 - q_mass, _TINY)
    if p_rest > _ROUNDING:
        total += p_rest * math.log(p_rest / q_rest)
    return total


def nearness(exact: Position | None, engine: Position) -> tuple[float | None, float | None]:
    """KL from *exact* to *engine*, and the slope of *engine*'s log-probabilities over *exact*'s.

    Both are None without finite logits. The slope is also None where fewer than three tokens are
    stored on both sides, or the exact log-probabilities are equal.
    """
    if exact is None or not (exact.is_finite and engine.is_finite):
        return None, None
    exact_log_ps = exact.log_probabilities()
    their_log_ps = engine.log_probabilities()
    common = [token for token in exact.ids if token in their_log_ps]
    x = np.array([exact_log_ps[token] for token in common])
    y = np.array([their_log_ps[token] for token in common])
    scale: float | None = None
    if len(common) > 2 and float(np.std(x)) > _ALIKE:
        x = x - x.mean()
        scale = float(x @ (y - y.mean()) / (x @ x))
    return divergence(exact, engine), scale


def _nll(position: Position | None, following: int | None) -> float | None:
    """``-log p`` of *following*, at least 0; None without such a token or without finite logits.

    A token that is not stored counts as likely as the last stored one.
    """
    if following is None or position is None or not position.is_finite:
        return None
    log_p_by_id = position.log_probabilities()
    return max(-log_p_by_id.get(following, min(log_p_by_id.values())), 0.0)


def tokenizer_parity(
    tokenizer: Tokenizer, theirs: Trace, texts: Sequence[tuple[str, bool]]
) -> TokenizerParity | None:
    """*tokenizer* compared with the reference's on *texts*.

    None if the reference has no tokenizer, or if there are no *texts*. If the reference left out a
    text, all of them count as read differently.
    """
    if theirs.tokenized is None or not texts:
        return None
    decoded = theirs.decoded or (None,) * len(texts)
    if not len(theirs.tokenized) == len(decoded) == len(texts):
        return TokenizerParity(len(texts), 0)
    mismatches: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    decoded_alike: list[tuple[int, ...]] = []
    decoded_otherwise: list[tuple[int, ...]] = []
    for (text, special), their_ids, their_text in zip(
        texts, theirs.tokenized, decoded, strict=True
    ):
        ids = tuple(tokenizer.encode(text, add_special=special))
        if ids != their_ids:
            mismatches.append((text, ids, their_ids))
            continue
        if their_text is None or tokenizer.model == "wordpiece":
            continue
        own_text = tokenizer.decode(list(ids))
        if _CLEANED_UP.search(own_text):
            continue
        if own_text == their_text:
            decoded_alike.append(ids)
        else:
            decoded_otherwise.append(ids)
    first_text, first_ids, their_first_ids = mismatches[0] if mismatches else (None, (), ())
    return TokenizerParity(
        total=len(texts),
        equal=len(texts) - len(mismatches),
        text=first_text,
        ours=first_ids,
        theirs=their_first_ids,
        decoded=len(decoded_alike) + len(decoded_otherwise),
        decoded_equal=len(decoded_alike),
        ids=decoded_otherwise[0] if decoded_otherwise else (),
    )
