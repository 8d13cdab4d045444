"""Prompts of a comparison, and our own answers to them."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

import bitnet
from bitnet.base.cores import thread_count
from bitnet.base.errors import BitnetError
from bitnet.crossval.answers import steps_of
from bitnet.crossval.reference import Question
from bitnet.crossval.tokens import texts_for
from bitnet.crossval.trace import PromptTrace, Trace, prompt_trace, spread
from bitnet.runtime.kv_cache import KVCache
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.crossval.options import CrossvalOptions
    from bitnet.crossval.reference import Reference
    from bitnet.crossval.trace import Arithmetic, Position
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.runtime.language_model import LanguageModel

__all__ = ["PROMPTS", "our_trace", "question_for"]

# Of a longer prompt only the last positions are compared: they attend to all others.
LONG, COMPARED = 128, 48

# Prose, a story, code, a fact with numbers, another language, digits: 137 tokens of SmolLM2's. The
# last has more than 544 of every vocabulary we know, behind the windows of 512 that models have.
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived a watchmaker who",
    'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n'
    "    if n < 2:\n        return",
    "Water boils at 100 degrees Celsius at sea level. At an altitude of 3,000 metres it boils at "
    "about",
    "Die Hauptstadt von Deutschland ist Berlin, und die Hauptstadt von Österreich ist",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    files("bitnet.crossval").joinpath("long_prompt.txt").read_text(encoding="utf-8").rstrip(),
)


def question_for(
    model: LanguageModel,
    checkpoint: Checkpoint,
    reference: Reference,
    texts: Sequence[str],
    options: CrossvalOptions,
) -> Question:
    """Request with the prompts, cut to ``--max-positions``; a recording brings its own."""
    recorded = reference.recording
    unreadable: dict[str, str] = {}
    whole: list[tuple[str, tuple[int, ...], int]] = []  # with the first position
    if recorded is not None:
        whole = [
            (prompt.prompt, prompt.ids[: prompt.n_requested], prompt.first)
            for prompt in recorded.prompts
        ]
        steps = min(options.greedy, steps_of(recorded))
    else:
        room = max(model.engine.context - options.greedy, 1)
        steps = options.greedy
        for text in texts:
            try:
                ids = tuple(model.tokenizer.encode(text))[:room]
            except BitnetError as error:
                unreadable[text] = f"it cannot be encoded: {error.message}"
                ids = ()
            whole.append((text, ids, len(ids) - COMPARED if len(ids) > LONG else 0))
    shares = spread([len(ids) - first for _, ids, first in whole], options.max_positions)
    selection: list[tuple[str, tuple[int, ...], int, bool]] = []
    for (text, ids, first), share in zip(whole, shares, strict=True):
        is_whole = recorded is None or share == len(ids) - first
        if first and share and recorded is None:
            selection.append((text, ids, len(ids) - share, True))
        elif share or not ids:
            selection.append((text, ids[: first + share], first, is_whole))
    reasons = {
        at: unreadable.get(text, "it has no tokens")
        for at, (text, ids, _, _) in enumerate(selection)
        if not ids
    }
    continued = tuple(bool(ids) and is_whole and steps > 0 for _, ids, _, is_whole in selection)
    there = sum(len(ids) - first for _, ids, first in whole)
    return Question(
        checkpoint,
        prompts=tuple((text, ids) for text, ids, _, _ in selection),
        firsts=tuple(first for *_, first, _ in selection),
        texts=texts_for(reference, texts),
        greedy=steps,
        continued=continued,
        threads=thread_count(),
        positions_there=there,
        unreadable=reasons,
    )


def our_trace(model: LanguageModel, question: Question, *, arithmetic: Arithmetic) -> Trace:
    """Answer of *model* to *question*; a failing prompt has an error and does not stop others."""
    reasons = question.unreadable
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
            else _our_prompt(model, text, ids, first, steps)
            for number, ((text, ids), first, steps) in enumerate(
                zip(question.prompts, question.starts, question.steps, strict=True)
            )
        ),
    )


def _our_prompt(
    model: LanguageModel, text: str, ids: tuple[int, ...], first: int, steps: int
) -> PromptTrace:
    tokens: list[int] = []
    gaps: list[float] = []
    positions: tuple[Position, ...] = ()
    error = ""
    try:
        cache = KVCache(model.config, len(ids))
        forward = partial(model.engine.model.forward, cache=cache)
        positions = prompt_trace(forward, ids, 0, first=first).positions
        if steps:
            params = Request(max_tokens=steps, logprobs=2)
            for piece in model.engine.generate(ids, params):
                assert piece.token is not None  # it is not cancelled
                tokens.append(piece.token)
                gaps.append(piece.top_logprobs[0][1] - piece.top_logprobs[1][1])
    except BitnetError as failure:
        error = failure.message
    return PromptTrace(text, ids, positions, tuple(tokens), tuple(gaps), error=error, first=first)
