"""The table of a request's fields: their names in every dialect, and their schemas.

What a field means, its type, bounds and default are those of :class:`Request`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.base.options import types_of, without_none
from bitnet.runtime.chain_options import MAX_BREAKERS
from bitnet.runtime.request import EVERYTHING, MAX_STOPS, Request
from bitnet.wire.messages import MESSAGES
from bitnet.wire.schemas import (
    DEFAULT,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    TOKEN_ID,
    Schema,
    any_of,
    mark_ignored,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Default sampling of OpenAI's and Anthropic's addresses.
RANDOM = {"temperature": 1.0}
MAX_SAMPLERS = 32  # names in a list, which may name a sampler twice
DIALECTS = ("openai", "responses", "anthropic", "ollama", "llama_server")
#: The name of each field of a request in the dialects, in their order; empty: it has none there.
NAMES: dict[str, tuple[str, str, str, str, str]] = {
    "max_tokens": ("max_tokens", "max_output_tokens", "max_tokens", "num_predict", "n_predict"),
    "stop": ("stop", "", "stop_sequences", "stop", "stop"),
    "min_tokens": ("min_tokens", "", "", "", ""),
    "ignore_eos": ("ignore_eos", "", "", "", "ignore_eos"),
    "temperature": ("temperature",) * 5,
    "top_k": ("top_k", "", "top_k", "top_k", "top_k"),
    "top_p": ("top_p",) * 5,
    "min_p": ("min_p", "", "", "min_p", "min_p"),
    "repetition_penalty": ("repetition_penalty", "", "", "repeat_penalty", "repeat_penalty"),
    "frequency_penalty": ("frequency_penalty", "", "", "frequency_penalty", "frequency_penalty"),
    "presence_penalty": ("presence_penalty", "", "", "presence_penalty", "presence_penalty"),
    "repeat_last_n": ("repeat_last_n", "", "", "repeat_last_n", "repeat_last_n"),
    "typical_p": ("typical_p", "", "", "typical_p", "typical_p"),
    "top_n_sigma": ("top_n_sigma", "", "", "", "top_n_sigma"),
    "xtc_probability": ("xtc_probability", "", "", "", "xtc_probability"),
    "xtc_threshold": ("xtc_threshold", "", "", "", "xtc_threshold"),
    "dynatemp_range": ("dynatemp_range", "", "", "", "dynatemp_range"),
    "dynatemp_exponent": ("dynatemp_exponent", "", "", "", "dynatemp_exponent"),
    "mirostat": ("mirostat", "", "", "mirostat", "mirostat"),
    "mirostat_tau": ("mirostat_tau", "", "", "mirostat_tau", "mirostat_tau"),
    "mirostat_eta": ("mirostat_eta", "", "", "mirostat_eta", "mirostat_eta"),
    "dry_multiplier": ("dry_multiplier", "", "", "", "dry_multiplier"),
    "dry_base": ("dry_base", "", "", "", "dry_base"),
    "dry_allowed_length": ("dry_allowed_length", "", "", "", "dry_allowed_length"),
    "dry_penalty_last_n": ("dry_penalty_last_n", "", "", "", "dry_penalty_last_n"),
    "dry_sequence_breakers": ("dry_sequence_breakers", "", "", "", "dry_sequence_breakers"),
    "min_keep": ("min_keep", "", "", "", "min_keep"),
    "samplers": ("samplers", "", "", "", "samplers"),
    "seed": ("seed", "", "", "seed", "seed"),
    "logit_bias": ("logit_bias", "", "", "", "logit_bias"),
    "json_schema": ("json_schema", "text.format", "output_config.format", "format", "json_schema"),
    "grammar": ("grammar", "", "", "", "grammar"),
    "messages": ("messages", "input", "messages", "messages", ""),
    "tools": ("tools", "tools", "tools", "tools", ""),
    "tool_choice": ("tool_choice", "tool_choice", "tool_choice", "", ""),
    "parallel_tool_calls": ("parallel_tool_calls", "parallel_tool_calls", "", "", ""),
    "prompt": ("prompt", "", "", "prompt", "prompt"),
    "thinking": ("", "", "thinking", "think", ""),
    "thinking_budget": ("thinking_token_budget", "", "thinking.budget_tokens", "", ""),
    "thinking_message": ("reasoning_budget_message", "", "", "", ""),
    "reasoning_effort": ("reasoning_effort", "", "", "", ""),
    "continue_final_message": ("continue_final_message", "", "", "", ""),
}

STOPS: Schema = {"type": "array", "items": TEXT, "maxItems": MAX_STOPS}
TOP_LOGPROBS: Schema = {"type": "integer", "minimum": 0, "maximum": 20}  # as OpenAI has it
#: Texts in the four forms of OpenAI.
INPUTS: Schema = {
    "anyOf": [
        TEXT,
        TEXTS,
        {"type": "array", "items": TOKEN_ID},
        {"type": "array", "items": {"type": "array", "items": TOKEN_ID}},
    ]
}
TOOL_CHOICE: Schema = {
    "anyOf": [{"type": "string", "enum": ["none", "auto", "required"]}, OBJECT],
    "description": "none: the model is not told of the tools; required, or a function by its name: "
    "the answer is a call that follows the function's schema",
}
#: A function that the model may call. Its schema is followed where a call is required.
TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": TEXT,
        "function": {
            "type": "object",
            "properties": {
                "name": TEXT,
                "description": TEXT,
                "parameters": OBJECT,
                **mark_ignored(strict=FLAG),
            },
            "required": ["name"],
        },
        **mark_ignored(cache_control=OBJECT),
    },
}
# Schemas of the fields whose type is not a number or a flag.
_SHAPES: dict[str, Schema] = {
    "stop": {
        "anyOf": [TEXT, STOPS],
        "description": "texts that end the answer and are not part of it",
    },
    "logit_bias": {"type": "object", "additionalProperties": NUMBER},
    "samplers": {"type": "array", "items": TEXT, "maxItems": MAX_SAMPLERS},
    "dry_sequence_breakers": {"type": "array", "items": TEXT, "maxItems": MAX_BREAKERS},
    "grammar": {
        "type": "string",
        "description": "the whole answer follows this grammar, in llama.cpp's form (GBNF)",
    },
    "json_schema": {"anyOf": [OBJECT, FLAG]},
    "messages": MESSAGES,
    "tools": {"type": "array", "items": TOOL},
    "tool_choice": TOOL_CHOICE,
}
# What -1 stands for in fields whose least value is larger: `Request.from_mapping` reads it.
_MINUS_ONE = {"max_tokens": "the default", "top_k": "all", "seed": "the default"}


def schemas_by_name(dialect: str, *only: str, without: Iterable[str] = ()) -> dict[str, Schema]:
    """Schemas of the request fields *only*, by their names in *dialect*.

    If *only* is empty, these are all fields except *without*. Fields that have no name in the
    dialect are left out.
    """
    at = DIALECTS.index(dialect)
    chosen = only or tuple(name for name in NAMES if name not in without)
    return {NAMES[name][at]: _schema(name) for name in chosen if NAMES[name][at]}


def with_defaults(default: Request | None = None, /, **sampling: float) -> Request:
    """*default* with the *sampling* of a dialect as its fallback.

    It applies where neither the request nor the model's files set a value. Without *default*, the
    answer has no length limit.
    """
    base = default or Request(fallback={"max_tokens": EVERYTHING})
    return replace(base, fallback={**base.fallback, **sampling})


def _schema(name: str) -> Schema:
    """Schema of the request's field *name*: its declared type, bounds and help."""
    entry = Request.__dataclass_fields__[name]
    schema = dict(_SHAPES.get(name) or {"type": _json_type(name)})
    low, high = entry.metadata.get("bounds") or (None, None)
    if schema.get("type") in ("integer", "number") and low is not None:
        schema |= {"minimum": low} | ({} if high is None else {"maximum": high})
    about = entry.metadata.get("help", "")
    if name in _MINUS_ONE:
        schema[DEFAULT] = -1
        if name == "seed":  # Request.from_mapping reads negative ones
            del schema["minimum"]
        about = f"{about}; -1: {_MINUS_ONE[name]}"
    if about and "description" not in schema:
        schema["description"] = about
    return schema


def _json_type(name: str) -> str:
    """JSON's name for the type of the request's field *name*."""
    own = without_none(types_of(Request, name)[name])
    return {int: "integer", float: "number", bool: "boolean"}.get(own, "string")


#: Schemas of the fields of a request by their own names, for rows of a batch.
ROW: dict[str, Schema] = {
    **{name: _schema(name) for name in NAMES},
    **{name: _schema(name) for name in ("lookup", "logprobs", "regex")},
    "prompt": any_of(TEXT, {"type": "array", "items": TOKEN_ID}),
    "json_schema": any_of(OBJECT, FLAG, TEXT),
}
