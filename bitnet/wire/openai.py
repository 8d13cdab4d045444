"""OpenAI's chats, completions and embeddings as requests, with extensions of vLLM and llama.cpp.

Names are those of OpenAI's API, and of vLLM and llama.cpp's server where it has none. A field that
would change the answer is either supported or refused by name, as is every unknown one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.request import SAMPLING, Request, check_messages, check_schema
from bitnet.wire.fields import (
    FLAG,
    INPUTS,
    LOGPROBS,
    MESSAGES,
    NULL,
    OBJECT,
    TEXT,
    TEXTS,
    Form,
    Schema,
    optional,
    random,
    schemas_by_name,
    without_nulls,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CHOICES = 8
MAX_PROMPTS = 64
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions
# Fields that constrain the answer, besides response_format.
GRAMMARS = ("json_schema", "guided_json", "guided_regex", "guided_choice", "structured_outputs")
_SPECIAL = re.compile(r"[][\\.+*?()|{}^$#&~-]")  # of a regular expression
# Variables of a chat template that clients must not set.
_OURS = {
    "self", "messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt",
}  # fmt: skip

_CHAT_ONLY = (
    *("messages", "prompt", "tools", "tool_choice", "parallel_tool_calls"),
    *("thinking", "thinking_budget", "continue_final_message"),
)
#: Fields for sampling, ending and constraining an answer, which OpenAI's routes share.
ANSWER: dict[str, Schema] = {
    "model": TEXT,
    **schemas_by_name("openai", without=_CHAT_ONLY),
    "repeat_penalty": {"type": "number", "description": "another name of repetition_penalty"},
    "guided_json": optional(OBJECT, TEXT),
    "guided_regex": TEXT,
    "guided_choice": TEXTS,
    "structured_outputs": OBJECT | {"description": "json, regex or choice; json_object"},
}
UNSERVED = ("grammar", "guided_grammar", "reasoning_effort")
_CHOICES: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}
_TOP: Schema = LOGPROBS | {"maximum": 20}
_STREAMED: dict[str, Schema] = {
    "n": _CHOICES,
    "stream": FLAG,
    "stream_options": {
        "type": "object",
        "properties": {"include_usage": FLAG, "include_obfuscation": optional(FLAG, NULL)},
        "additionalProperties": False,
    },
}
#: Fields without effect on the answer.
IDLE: dict[str, Schema] = {
    "user": TEXT, "metadata": OBJECT, "store": FLAG, "service_tier": TEXT,
    "safety_identifier": TEXT, "prompt_cache_key": TEXT, "prompt_cache_retention": TEXT,
    "cache_prompt": FLAG,
}  # fmt: skip

CHAT = Form(
    "ChatRequest",
    {
        **ANSWER,
        **_STREAMED,
        **schemas_by_name("openai", "tools", "tool_choice", "parallel_tool_calls"),
        "messages": MESSAGES,
        "max_completion_tokens": schemas_by_name("openai", "max_tokens")["max_tokens"],
        "logprobs": FLAG,
        "top_logprobs": _TOP,
        "modalities": {"type": "array", "items": {"type": "string", "enum": ["text"]}},
        "response_format": OBJECT,
        "chat_template_kwargs": OBJECT,
        **schemas_by_name("openai", "thinking_budget", "continue_final_message"),
    },
    required=("messages",),
    idle=IDLE,
    unserved=(
        *UNSERVED, "functions", "function_call", "audio", "prediction", "verbosity",
        "web_search_options",
    ),
)  # fmt: skip
COMPLETION = Form(
    "CompletionRequest",
    {**ANSWER, **_STREAMED, "prompt": INPUTS, "logprobs": _TOP, "echo": FLAG, "best_of": _CHOICES},
    required=("prompt",),
    idle=IDLE,
    unserved=(*UNSERVED, "suffix"),
)
EMBEDDING = Form(
    "EmbeddingRequest",
    {
        "input": INPUTS,
        "model": TEXT,
        "encoding_format": {"type": "string", "enum": ["float", "base64"]},
        "dimensions": {"type": "integer", "minimum": 1},
        "output_dtype": {
            "type": "string",
            "enum": ["float", "int8", "uint8", "binary", "ubinary"],
            "description": "bits of a vector's numbers; binary packs 8 signs into a byte",
        },
        "prompt_name": TEXT
        | {"description": "the model's prompt that stands before texts, such as query"},
        "normalize": FLAG | {"description": "scale vectors to length one"},
    },
    required=("input",),
    idle={"user": TEXT},
)


def chat_requests(body: Mapping[str, Any], default: Request | None = None) -> list[Request]:
    """The request of *body*, a chat as :data:`CHAT` reads it; *default* for what it leaves out."""
    _check_stream(body)
    check_messages(body["messages"])
    if body["top_logprobs"] is not None and not body["logprobs"]:
        raise UsageError("top_logprobs is for logprobs: true", field="top_logprobs")
    variables = body["chat_template_kwargs"]
    if wrong := _OURS.intersection(variables or ()):
        raise UsageError(f"{', '.join(sorted(wrong))} cannot be set", field="chat_template_kwargs")
    request = replace(
        continuation(body, random(default, temperature=1.0)),
        logprobs=(body["top_logprobs"] or 0) if body["logprobs"] else None,
        messages=without_nulls(body["messages"]),
        tools=None if body["tool_choice"] == "none" else body["tools"],
        tool_choice=body["tool_choice"],
        parallel_tool_calls=body["parallel_tool_calls"] is not False,
        template_variables=variables,
        thinking_budget=body["thinking_token_budget"],
        separate_reasoning=True,
        continue_final_message=bool(body["continue_final_message"]),
    )
    return [request]


def completion_requests(
    body: Mapping[str, Any],
    default: Request,
    *,
    at_most: int = MAX_PROMPTS,
) -> list[Request]:
    """The requests of *body*, as :data:`COMPLETION` reads it: one for each of *at_most* prompts."""
    _check_stream(body)
    if body["best_of"] is not None and body["best_of"] != (body["n"] or 1):
        raise UsageError("best_of must be n: answers are not ranked", field="best_of")
    if body["echo"] and body["logprobs"] is not None:
        raise UsageError(
            "echo: there are no log-probabilities of a prompt, which are not computed", field="echo"
        )
    request = replace(
        continuation(body, random(default, temperature=1.0)), logprobs=body["logprobs"]
    )
    prompts = texts_of(body["prompt"], "prompt", at_most=at_most)
    return [replace(request, prompt=prompt) for prompt in prompts]


def embedding_requests(body: Mapping[str, Any], *, at_most: int = MAX_PROMPTS) -> list[Request]:
    """The requests of *body*, as :data:`EMBEDDING` reads it: one for each text."""
    return [
        Request(prompt=text, embed=True, prompt_name=body["prompt_name"], max_tokens=1)
        for text in texts_of(body["input"], "input", at_most=at_most)
    ]


def continuation(body: Mapping[str, Any], default: Request) -> Request:
    """The request of *body*, which has fields of :data:`ANSWER`, without its prompt."""
    names = (*SAMPLING, "max_tokens", "min_tokens", "ignore_eos", "stop")
    field, grammar = grammar_of(body)
    for value in grammar.values():
        check_schema(field, value)
    fields = {name: body.get(name) for name in names} | grammar
    if body.get("repeat_penalty") is not None:
        fields["repetition_penalty"] = body["repeat_penalty"]
    if body.get("max_completion_tokens") not in (None, -1):
        fields["max_tokens"] = body["max_completion_tokens"]
    return Request.from_mapping(fields, default)


def _check_stream(body: Mapping[str, Any]) -> None:
    if body["stream_options"] is not None and not body["stream"]:
        raise UsageError("stream_options is for stream: true")


def texts_of(given: Any, field: str, *, at_most: int) -> list[str | list[int]]:
    """Texts of *field* in any of the four forms that OpenAI accepts."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [list(given)]
    if not 0 < len(given) <= at_most:
        raise UsageError(f"{len(given)} texts, expected 1 to {at_most}", field=field)
    return list(given)


def grammar_of(body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The field of *body* that constrains the answer, and ``json_schema`` or ``regex``."""
    grammars: dict[str, tuple[str, Any]] = {}
    for name in GRAMMARS[:-1]:
        if (value := body.get(name)) is not None:
            kind = {"guided_regex": "regex", "guided_choice": "choice"}.get(name, "json_schema")
            grammars[name] = kind, value
    for name, value in (body.get(GRAMMARS[-1]) or {}).items():
        kinds = {"json": "json_schema", "json_object": "any", "regex": "regex", "choice": "choice"}
        if name not in kinds:
            name = f"structured_outputs.{name}"[:100]
            raise UsageError(f"{name} is not served", field=name)
        grammars[f"structured_outputs.{name}"] = kinds[name], value
    if (schema := schema_of(body.get("response_format"))) is not None:
        grammars["response_format"] = "json_schema", schema
    if len(grammars) > 1:
        raise UsageError(f"{' and '.join(grammars)} are both given", field=next(iter(grammars)))
    for name, (kind, value) in grammars.items():
        return name, _grammar(name, kind, value)
    return "", {}


def schema_of(form: Any, field: str = "response_format") -> dict[str, Any] | None:
    """Schema of the answer that *form* asks for, as in chats or responses; ``None``: any text."""
    kind = "text" if form is None else form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        inside = "schema" if field == "text.format" else "json_schema.schema"
        holder = form if field == "text.format" else form.get("json_schema")
        schema = holder.get("schema") if isinstance(holder, dict) else None
        if isinstance(schema, dict):
            return schema
        raise UsageError(f"{field}.{inside} is not an object", field=f"{field}.{inside}")
    raise UsageError(f"{field} is none of text, json_object and json_schema", field=field)


def _grammar(name: str, kind: str, value: Any) -> dict[str, Any]:
    if kind == "any":
        return {"json_schema": {"type": "object"}} if value else {}
    if kind != "choice":
        return {kind: value}
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{name} is not a list of texts", field=name)
    if not value:
        raise UsageError(f"{name} is empty", field=name)
    return {"regex": "|".join(_SPECIAL.sub(r"\\\g<0>", one) for one in value)}
