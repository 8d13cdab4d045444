"""This runtime, asked like any other engine, with proof of what computed its answers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bitnet import __version__
from bitnet.base.errors import BitnetError
from bitnet.crossval.trace import EngineFacts, PromptTrace, Trace, prompt_trace
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.transformer import Model
from bitnet.quants import registry
from bitnet.runtime.request import MAX_LOGPROBS, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bitnet.crossval.evidence import ComputePath
    from bitnet.crossval.trace import Arithmetic, Prompt, Question
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.formats.generation import GenerationSettings
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import Piece
    from bitnet.tokenizer import Tokenizer

_MOCK = "mock"  # fingerprint of the mock tokenizer, which treats bytes as tokens


def our_trace(model: LanguageModel, question: Question) -> Trace:
    """Answer of *model* to *question*; a failing prompt has an error and does not stop others."""
    arithmetic = _arithmetic(model.engine.model, question.checkpoint)
    engine = EngineFacts("bitnet", __version__, arithmetic)
    answers = [_our_prompt(model, prompt, question.generation) for prompt in question.prompts]
    return Trace(engine, tuple(answers))


def _arithmetic(model: Model, checkpoint: Checkpoint) -> Arithmetic:
    """Arithmetic of *model*.

    Activations are rounded to 8 bits for ternary weights on every backend, and for other quantized
    weights on the native backend.
    """
    weights = checkpoint.weights.values()
    if any(map(registry.rounds_activations, weights)):
        return "int8"
    has_floats_only = all(weight.quant.name in ("F32", "F16", "BF16") for weight in weights)
    if has_floats_only or isinstance(model.ops, ReferenceOps):
        return "float"
    return "int8"


def _our_prompt(
    model: LanguageModel, prompt: Prompt, generation: GenerationSettings
) -> PromptTrace:
    """Answer of *model*: positions from one pass, and the continuation as in text generation."""
    ids = prompt.ids
    if prompt.error:
        return PromptTrace(prompt.text, ids, error=prompt.error, first=prompt.first)
    count = 2 + len(generation.list_suppressed(0))
    has_all = count <= MAX_LOGPROBS
    # Gaps are part of every trace, though no verdict reads ours. Beyond a request's maximum of
    # log-probabilities, prompt_trace runs the steps too, for their gaps.
    passes = replace(prompt, steps=0) if has_all else prompt
    try:
        cache = KVCache(model.config, len(ids) + passes.steps)
        cache.reach = len(ids)  # selects the RoPE scaling
        forward = partial(model.engine.model.forward, cache=cache)
        answer = prompt_trace(
            forward, passes, generation=generation, causal=model.config.looks_back
        )
        if not prompt.steps:
            return answer
        # Without drafts, and with log-probabilities of two tokens that are not suppressed.
        request = Request(
            max_tokens=prompt.steps,
            lookup=0,
            logprobs=count if has_all else 0,
            temperature=0.0,
            suppressed=generation.suppressed,
            suppressed_first=generation.suppressed_first,
        )
        pieces = list(model.engine.generate(ids, request))
    except BitnetError as failure:
        return PromptTrace(prompt.text, ids, error=failure.message, first=prompt.first)
    gaps = answer.top2_gaps
    if has_all:
        gaps = tuple(_gap(piece, generation.list_suppressed(at)) for at, piece in enumerate(pieces))
    tokens = tuple(piece.token for piece in pieces if piece.token is not None)
    return replace(answer, greedy=tokens, top2_gaps=gaps)


def _gap(piece: Piece, left_out: frozenset[int]) -> float:
    """Difference of the log-probabilities of the two likeliest tokens that are not *left_out*.

    It is infinite if one token is left.
    """
    allowed = [value for id, value in piece.top_logprobs if id not in left_out]
    return allowed[0] - allowed[1] if len(allowed) > 1 else math.inf


def read_counters(model: Model) -> dict[str, int]:
    """Calls of each kernel so far; empty for a backend that is not ours."""
    return dict(model.ops.counters()) if type(model.ops) in (NativeOps, ReferenceOps) else {}


def kernels_since(model: Model, before: Mapping[str, int]) -> dict[str, int]:
    """Calls of each kernel that ran since the counters read *before*, by name."""
    calls = {name: count - before.get(name, 0) for name, count in read_counters(model).items()}
    return {name: count for name, count in sorted(calls.items()) if count > 0}


def compute_path(model: Model, tokenizer: Tokenizer, kernels: Mapping[str, int]) -> ComputePath:
    """Kind of backend that computed a pass of *model* with calls of *kernels*.

    It is ``real`` only if the native module counted at least one product of weights per layer, for
    a model bound to exactly our native backend, with a real tokenizer. This protects against
    mistakes: a mock, a backend replaced by a slower one, missing kernels. Only ``crossval --check
    --replay`` on another machine protects against someone who controls this Python process.
    """
    products = sum(count for name, count in kernels.items() if name.startswith("linear/"))
    if type(model) is not Model or products < model.config.n_layers:
        return "none"
    if tokenizer.fingerprint == _MOCK:
        return "mock"
    # The classes themselves: one derived from them computes something else.
    paths: dict[type, ComputePath] = {NativeOps: "real", ReferenceOps: "reference"}
    return paths.get(type(model.ops), "none")
