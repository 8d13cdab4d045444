"""llama.cpp's server: its bodies as requests, answers as its replies and events.

Names are those of its README (github.com/ggml-org/llama.cpp, tools/server), with its sampling
defaults.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.errors import UsageError
from bitnet.runtime.limits import MAX_BIASES
from bitnet.runtime.request import Request
from bitnet.wire.fields import (
    DIALECTS,
    FLAG,
    MESSAGES,
    NAMES,
    NUMBER,
    OBJECTS,
    TEXT,
    TEXTS,
    TOKEN_ID,
    WHOLE,
    Form,
    named,
    optional,
    random,
)
from bitnet.wire.openai_reply import token_facts, with_top

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece, TokenLogprob

__all__ = [
    "COMPLETION", "DEFAULTS", "EMBED", "TEMPLATE", "LlamaEvents", "completion_reply",
    "completion_requests",
]  # fmt: skip

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_DIALECT = "llama_server"
_PAIR = {"type": "array", "items": optional(NUMBER, FLAG)}
COMPLETION = Form(
    "LlamaCompletion",
    {
        **named(_DIALECT, without=("messages", "tools", "tool_choice")),
        "prompt": optional(TEXT, {"type": "array", "items": TOKEN_ID}),
        "model": TEXT,
        "n_predict": WHOLE | {"description": "-1: as many as there is room for"},
        "logit_bias": optional(
            {"type": "object", "additionalProperties": NUMBER},
            {"type": "array", "items": _PAIR, "maxItems": MAX_BIASES},
            about="ids and what is added to them; false forbids one",
        ),
        "n_probs": {"type": "integer", "minimum": 0, "maximum": 20},
        "stream": FLAG,
        "return_tokens": FLAG,
    },
    required=("prompt",),
    idle={"cache_prompt": FLAG, "id_slot": WHOLE, "timings_per_token": FLAG},
    dialect=_DIALECT,
)
EMBED = Form(
    "LlamaEmbedding", {"content": optional(TEXT, TEXTS), "model": TEXT}, required=("content",)
)
TEMPLATE = Form(
    "TemplateRequest",
    {"messages": MESSAGES, "model": TEXT, "tools": OBJECTS},
    required=("messages",),
)


def completion_requests(body: Mapping[str, Any]) -> list[Request]:
    """The request of *body*, as :data:`COMPLETION` reads it.

    Raises:
        UsageError: a value is out of its range.
    """
    at = DIALECTS.index(_DIALECT)
    given = {name: body[names[at]] for name, names in NAMES.items() if names[at]}
    if isinstance(body["logit_bias"], list):
        given["logit_bias"] = dict(_bias(one) for one in body["logit_bias"])
    default = random(**DEFAULTS)
    request = Request.from_mapping(given, default)
    return [replace(request, logprobs=body["n_probs"] or None)]


class LlamaEvents:
    """The reply of ``/completion``, whole and as events."""

    def __init__(self, body: Mapping[str, Any], model: str) -> None:
        """Events of the answer of *model* to *body*."""
        self._body = body
        self._model = model

    def of(self, _index: int, piece: Piece, _answer: Answer) -> Iterator[dict[str, Any]]:
        """Events of one piece."""
        if piece.text or piece.described:
            ids = _ids(self._body, [piece.token])
            facts = {"content": piece.text, "tokens": ids, "stop": False}
            if piece.described:
                facts["completion_probabilities"] = [_probability(piece.described)]
            yield facts

    def end(self, answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
        """Events after the last piece."""
        yield completion_reply(self._body, answers[0], self._model, "")


def _bias(entry: list[Any]) -> tuple[str, float]:
    if len(entry) != 2 or isinstance(entry[0], bool) or entry[1] is True:
        raise UsageError(
            "logit_bias: expected pairs of a token id and a number or false", field="logit_bias"
        )
    token, bias = entry
    try:
        return str(token), float("-inf") if bias is False else float(bias)
    except OverflowError:
        raise UsageError("logit_bias: a number is out of its range", field="logit_bias") from None


def _ids(body: Mapping[str, Any], ids: list[int | None]) -> list[int]:
    return [one for one in ids if one is not None] if body["return_tokens"] else []


def completion_reply(
    body: Mapping[str, Any], answer: Answer, model: str, text: str
) -> dict[str, Any]:
    """The reply at the end of *answer*, with *text* as its content."""
    stats, reason = answer.stats, answer.finish_reason
    stopped = "word" if answer.stop_text else "eos"
    kind = {"stop": stopped, "length": "limit", "context": "limit"}.get(str(reason), str(reason))
    run = stats.prompt_tokens - stats.reused_tokens
    facts = {
        "content": text,
        "tokens": _ids(body, [*answer.ids]) if text else [],
        "stop": True,
        "stop_type": kind,
        "stopping_word": answer.stop_text,
        "model": model,
        "tokens_predicted": stats.tokens,
        "tokens_evaluated": stats.prompt_tokens,
        "tokens_cached": stats.reused_tokens,
        "truncated": False,
        "timings": {
            "prompt_n": run,
            "prompt_ms": stats.prefill_s * 1000,
            "prompt_per_second": stats.prefill_tokens_per_s,
            "predicted_n": stats.tokens,
            "predicted_ms": stats.decode_s * 1000,
            "predicted_per_second": stats.decode_tokens_per_s,
        },
    }
    if answer.logprobs and text:
        facts["completion_probabilities"] = [_probability(one) for one in answer.logprobs]
    return facts


def _probability(token: TokenLogprob) -> dict[str, Any]:
    return with_top(token, lambda one: {"id": one.id, **token_facts(one)})
