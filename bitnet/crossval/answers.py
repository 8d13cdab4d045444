"""Faults of answers: missing, extra or invalid ones are found before any are compared.

Later comparisons pair the answers of both sides. A missing answer would silently drop out of these
pairs, so each side is held to the request first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.crossval.trace import Prompt, PromptTrace, Trace

_LEAST = 10  # tokens stored at a position; fewer than that are not a distribution
_SHOWN = 8


def faults_of(
    trace: Trace, prompts: Sequence[Prompt], *, texts: int = 0, vocabulary: int = _LEAST
) -> tuple[str, ...]:
    """Descriptions of what *trace* lacks or has beyond the request; empty if it is whole.

    Args:
        trace: the answers of one side.
        prompts: the requested prompts.
        texts: number of texts to tokenize; 0 if none were requested.
        vocabulary: tokens of the model; a position holds at least ten of them, or all.
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
            yield f"the logits of position {at} are not numbers"
            break
        if len(position.ids) < least:
            yield f"{len(position.ids)} tokens stored at position {at}, expected at least {least}"
            break
    if len(answer.greedy) != prompt.steps and not answer.error:
        yield f"a continuation of {len(answer.greedy)} tokens, asked were {prompt.steps}"
