"""Prompts of a comparison, our own answers to them, and faults of answers.

Comparisons pair the answers of both sides. A missing answer would silently drop out of these
pairs, so each side is held to the request first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

from bitnet import __version__
from bitnet.base.errors import BitnetError
from bitnet.crossval.trace import EngineFacts, Prompt, PromptTrace, Trace, prompt_trace, spread
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.reference import ReferenceOps
from bitnet.quants import registry
from bitnet.runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bitnet.crossval.options import CrossvalOptions
    from bitnet.crossval.reference import Question
    from bitnet.crossval.trace import Arithmetic, Position
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.models.transformer import Model
    from bitnet.runtime.language_model import LanguageModel

_FLOATS = ("F32", "F16", "BF16")
_NO_TOKENS = "it has no tokens"

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


def prompts_for(
    model: LanguageModel,
    recording: Trace | None,
    texts: Sequence[str],
    options: CrossvalOptions,
) -> tuple[Prompt, ...]:
    """The prompts, cut to ``--max-positions`` in all; a *recording* brings its own."""
    if recording is None:
        whole = [_prompt(model, text, options.greedy) for text in texts]
    else:
        steps = min(options.greedy, max((len(it.greedy) for it in recording.prompts), default=0))
        whole = [
            Prompt(it.prompt, it.ids, it.first, steps, "" if it.ids else _NO_TOKENS)
            for it in recording.prompts
        ]
    shares = spread([len(it.ids) - it.first for it in whole], options.max_positions)
    prompts = []
    for prompt, share in zip(whole, shares, strict=True):
        count = len(prompt.ids)
        if not count:
            prompts.append(replace(prompt, steps=0))
        elif share and recording is None and prompt.first:
            prompts.append(replace(prompt, first=count - share))
        elif share and recording is None:
            prompts.append(replace(prompt, ids=prompt.ids[:share]))
        elif share:
            is_whole = share == count - prompt.first
            ids, steps = prompt.ids[: prompt.first + share], prompt.steps if is_whole else 0
            prompts.append(replace(prompt, ids=ids, steps=steps))
    return tuple(
        replace(it, tokens=tuple(model.tokenizer.decode([id]) for id in it.ids)) for it in prompts
    )


def _prompt(model: LanguageModel, text: str, steps: int) -> Prompt:
    try:
        ids = tuple(model.tokenizer.encode(text))[: max(model.engine.context - steps, 1)]
    except BitnetError as error:
        return Prompt(text, (), error=f"it cannot be encoded: {error.message}")
    if not ids:
        return Prompt(text, (), error=_NO_TOKENS)
    return Prompt(text, ids, len(ids) - COMPARED if len(ids) > LONG else 0, steps)


def our_trace(model: LanguageModel, question: Question) -> Trace:
    """Answer of *model* to *question*; a failing prompt has an error and does not stop others."""
    arithmetic = _arithmetic(model.engine.model, question.checkpoint)
    engine = EngineFacts("bitnet", __version__, arithmetic)
    return Trace(engine, tuple(_our_prompt(model, prompt) for prompt in question.prompts))


def _arithmetic(model: Model, checkpoint: Checkpoint) -> Arithmetic:
    """Arithmetic of *model*: 8-bit activations on the native backend and for ternary weights."""
    if any(registry.rounds_activations(one) for one in checkpoint.weights.values()):
        return "int8"
    floats = all(one.quant.name in _FLOATS for one in checkpoint.weights.values())
    return "float" if floats or isinstance(model.ops, ReferenceOps) else "int8"


def _our_prompt(model: LanguageModel, prompt: Prompt) -> PromptTrace:
    ids, size, error = prompt.ids, model.config.vocab_size, prompt.error
    if not error and max(ids) >= size:
        error = f"id {max(ids)} is outside the vocabulary of {size}"
    if error:
        return PromptTrace(prompt.text, ids, error=error, first=prompt.first)
    tokens: list[int] = []
    gaps: list[float] = []
    positions: tuple[Position, ...] = ()
    try:
        cache = KVCache(model.config, len(ids))
        forward = partial(model.engine.model.forward, cache=cache)
        positions = prompt_trace(forward, replace(prompt, steps=0)).positions
        if prompt.steps:
            params = Request(max_tokens=prompt.steps, logprobs=2)
            for piece in model.engine.generate(ids, params):
                assert piece.token is not None  # it is not cancelled
                tokens.append(piece.token)
                gaps.append(piece.top_logprobs[0][1] - piece.top_logprobs[1][1])
    except BitnetError as failure:
        error = failure.message
    return PromptTrace(prompt.text, ids, positions, tuple(tokens), tuple(gaps), error, prompt.first)


_LEAST = 10  # tokens stored at a position; fewer than that are not a distribution
_SHOWN = 8


def faults_of(
    trace: Trace, prompts: Sequence[Prompt], *, texts: int = 0, vocabulary: int = _LEAST
) -> tuple[str, ...]:
    """Descriptions of what *trace* lacks or has beyond the request; empty if it is whole.

    *texts* is the number of texts to tokenize. A position holds at least ten tokens, or the whole
    *vocabulary*.
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
