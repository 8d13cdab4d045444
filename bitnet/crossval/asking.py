"""Prompts of a comparison, and our own answers to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import bitnet
from bitnet.crossval.answers import steps_of
from bitnet.crossval.trace import PromptTrace, Trace, positions_from, spread
from bitnet.errors import BitnetError
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.crossval.options import CrossvalOptions
    from bitnet.crossval.references import Question, Reference
    from bitnet.crossval.trace import Arithmetic
    from bitnet.runtime.language_model import LanguageModel

__all__ = ["PROMPTS", "Asked", "asked_of", "our_trace"]

# Prose, a story, code, a fact with numbers, another language, digits: 137 tokens of SmolLM2's.
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived a watchmaker who",
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n'
    "    if n < 2:\n        return",
    "Water boils at 100 degrees Celsius at sea level. At an altitude of 3,000 metres it boils at "
    "about",
    "Die Hauptstadt von Deutschland ist Berlin, und die Hauptstadt von Österreich ist",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
)


@dataclass(frozen=True)
class Asked:
    """The prompts of a comparison.

    Attributes:
        prompts: texts with the ids that are run.
        there: tokens of all texts together.
        steps: tokens of each continuation; 0: none are requested.
        continued: indices of the prompts that are continued.
        unreadable: reason why a text could not be tokenized, by index in *prompts*.
    """

    prompts: tuple[tuple[str, tuple[int, ...]], ...]
    there: int
    steps: int
    continued: tuple[bool, ...]
    unreadable: dict[int, str]


def asked_of(
    model: LanguageModel, reference: Reference, texts: Sequence[str], options: CrossvalOptions
) -> Asked:
    """The prompts, cut to ``--max-positions``; a recording brings its own."""
    recorded: Trace | None = getattr(reference, "recording", None)
    unreadable: dict[str, str] = {}
    whole: list[tuple[str, tuple[int, ...]]] = []
    if recorded is not None:
        whole = [(one.prompt, one.ids[: one.requested]) for one in recorded.prompts]
        steps = min(options.greedy, steps_of(recorded))
    else:
        room = max(model.engine.context - options.greedy, 1)
        steps = options.greedy
        for text in texts:
            try:
                whole.append((text, tuple(model.tokenizer.encode(text))[:room]))
            except BitnetError as error:  # noqa: PERF203 (a few prompts)
                unreadable[text] = f"it cannot be encoded: {error.message}"
                whole.append((text, ()))
    shares = spread([len(ids) for _, ids in whole], options.max_positions)
    kept = [
        (text, ids[:share], recorded is None or share == len(ids))
        for (text, ids), share in zip(whole, shares, strict=True)
        if share or not ids
    ]
    reasons = {
        at: unreadable.get(text, "it has no tokens")
        for at, (text, ids, _) in enumerate(kept)
        if not ids
    }
    continued = tuple(bool(ids) and is_whole and steps > 0 for _, ids, is_whole in kept)
    prompts = tuple((text, ids) for text, ids, _ in kept)
    return Asked(prompts, sum(len(ids) for _, ids in whole), steps, continued, reasons)


def our_trace(
    model: LanguageModel,
    question: Question,
    *,
    arithmetic: Arithmetic,
    unreadable: Mapping[int, str] | None = None,
) -> Trace:
    """Answer of *model* to *question*; a failing prompt has an error and does not stop others."""
    reasons = unreadable or {}
    size = model.config.vocab_size
    return Trace(
        engine="bitnet",
        version=bitnet.__version__,
        arithmetic=arithmetic,
        prompts=tuple(
            PromptTrace(text, ids, error=reasons[number])
            if number in reasons
            else PromptTrace(text, ids, error=f"id {max(ids)} is outside the vocabulary of {size}")
            if max(ids) >= size
            else _our_prompt(model, text, ids, steps)
            for number, ((text, ids), steps) in enumerate(
                zip(question.prompts, question.steps, strict=True)
            )
        ),
    )


def _our_prompt(model: LanguageModel, text: str, ids: tuple[int, ...], steps: int) -> PromptTrace:
    tokens: list[int] = []
    gaps: list[float] = []
    positions: tuple[Any, ...] = ()
    error = ""
    try:
        positions = tuple(positions_from(model.logits(ids)))
        if steps:
            params = Request(max_tokens=steps, logprobs=2)
            for piece in model.engine.generate(ids, params):
                assert piece.token is not None  # it is not cancelled
                tokens.append(piece.token)
                gaps.append(piece.top_logprobs[0][1] - piece.top_logprobs[1][1])
    except BitnetError as failure:
        error = failure.message
    return PromptTrace(text, ids, positions, tuple(tokens), tuple(gaps), error=error)
