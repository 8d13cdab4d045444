"""OpenAI's chats and completions, with extensions of vLLM and llama.cpp.

Names are those of OpenAI's API, and of vLLM and llama.cpp's server where it has none. A field that
would change the answer is either supported or refused by name, as is every unknown one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.request import SAMPLING, Request
from bitnet.runtime.request_checks import check_messages, check_schema
from bitnet.wire.embeddings import texts_of
from bitnet.wire.fields import INPUTS, RANDOM, TOP_LOGPROBS, schemas_by_name, with_defaults
from bitnet.wire.forms import Form
from bitnet.wire.gaps import gap_prompt
from bitnet.wire.logprobs import TextLogprobs, chat_logprobs
from bitnet.wire.messages import MESSAGES, find_unread_names, read_messages
from bitnet.wire.reasoning import EFFORT, can_reason, takes_effort
from bitnet.wire.schemas import DEFAULT, FLAG, OBJECT, TEXT, Schema, mark_ignored, mark_refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import FinishReason
    from bitnet.wire.forms import Body, Events, Pieces, Served

MAX_CHOICES = 8
MAX_PROMPTS = 64
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions
_SPECIAL = re.compile(r"[][\\.+*?()|{}^$#&~-]")  # characters that a regular expression escapes
# Variables of a chat template that the server sets, and clients may not.
_OURS = {
    "self", "messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt",
}  # fmt: skip

# Fields that ANSWER leaves out: the prompt, and those of chats alone.
_CHAT_ONLY = (
    *("messages", "prompt", "tools", "tool_choice", "parallel_tool_calls"),
    *("thinking", "thinking_budget", "thinking_message", "reasoning_effort"),
    "continue_final_message",
)
#: Fields for sampling, ending and constraining an answer, which OpenAI's routes share.
ANSWER: dict[str, Schema] = {
    "model": TEXT,
    **schemas_by_name("openai", without=_CHAT_ONLY),
    "repeat_penalty": {"type": "number", "description": "another name of repetition_penalty"},
    "structured_outputs": OBJECT | {"description": "json, regex, choice or grammar; json_object"},
}
#: Names under which clients of chats send the most tokens of reasoning: vLLM's, llama-server's,
#: those of Qwen's and of other services.
BUDGETS = (
    "thinking_token_budget", "reasoning_budget_tokens", "thinking_budget_tokens",
    "reasoning_budget", "thinking_budget", "max_thinking_tokens",
)  # fmt: skip
BUDGET: Schema = {
    "type": "integer",
    "minimum": 0,
    DEFAULT: -1,
    "description": "most tokens of reasoning, which then ends; -1: no limit",
}
#: For a field of the request, other names under which a body may have it.
SETTERS = {
    "json_schema": ("response_format", "structured_outputs"),
    "regex": ("structured_outputs",),
    "grammar": ("structured_outputs",),
    "max_tokens": ("max_completion_tokens",),
    "repetition_penalty": ("repeat_penalty",),
    "thinking_budget": BUDGETS,
}
#: Samplers of llama.cpp that are not supported: refused unless their value turns them off.
UNSERVED = mark_refused("adaptive_target", neutral=(-1, -1.0)) | mark_refused(
    "tfs_z", neutral=(1, 1.0)
)
#: Fields of chats and completions, which may have several choices and be streamed.
_STREAMED: dict[str, Schema] = {
    "n": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES},
    "stream": FLAG,
    "stream_options": {
        "type": "object",
        "properties": {"include_usage": FLAG, "include_obfuscation": FLAG},
        "additionalProperties": False,
    },
}
#: Fields that cannot change an answer.
IDLE: dict[str, Schema] = mark_ignored(
    user=TEXT, metadata=OBJECT, store=FLAG, service_tier=TEXT, safety_identifier=TEXT,
    prompt_cache_key=TEXT, prompt_cache_retention=TEXT, prompt_cache_options=OBJECT,
    cache_prompt=FLAG, client_metadata=OBJECT,
)  # fmt: skip
#: Fields about the most tokens of reasoning.
_ABOUT_BUDGETS = (*BUDGETS, "reasoning_budget_message")
#: Entries beside a schema. Without ``strict``, too, the answer follows the schema exactly.
_DESCRIBED = ("schema", "name", "description", "strict")

# The default of Form.stream, and the format of the error that ends a stream (server/exchange.py).
STREAM = "openai"


def chat_requests(
    body: Body, default: Request | None = None, model: Served = None
) -> list[Request]:
    """The request of *body*, a chat as :data:`CHAT` reads it; *default* has its missing fields.

    If *model* is known, entries of messages that its template does not read are refused.
    """
    _check_stream(body)
    check_messages(body["messages"])
    if body["top_logprobs"] is not None and not body["logprobs"]:
        raise UsageError("top_logprobs is for logprobs: true", field="top_logprobs")
    variables = body["chat_template_kwargs"]
    if wrong := _OURS.intersection(variables or ()):
        raise UsageError(f"{', '.join(sorted(wrong))} cannot be set", field="chat_template_kwargs")
    base = request_without_prompt(body, with_defaults(default, **RANDOM))
    budget = _find_budget(body)
    request = replace(
        base,
        logprobs=(body["top_logprobs"] or 0) if body["logprobs"] else None,
        messages=read_messages(body["messages"], model),
        tools=None if body["tool_choice"] == "none" else body["tools"],
        tool_choice=body["tool_choice"],
        parallel_tool_calls=body["parallel_tool_calls"] is not False,
        template_variables=variables or None,
        reasoning_effort=body["reasoning_effort"] or base.reasoning_effort,
        thinking_budget=base.thinking_budget if budget is None else budget,
        thinking_message=body["reasoning_budget_message"] or base.thinking_message,
        separate_reasoning=True,
        continue_final_message=bool(body["continue_final_message"]),
    )
    return [request]


def _find_budget(body: Body) -> int | None:
    """The most tokens of reasoning that *body* allows; None if it sets no limit."""
    names = [name for name in BUDGETS if body.get(name) is not None]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} are both given", field=names[1])
    if not names:
        return None
    number = body[names[0]]
    return None if number == -1 else number


def chat_ignores(body: Body, model: Served) -> Iterator[str]:
    """Names of the fields in *body* that have no effect on the answer of this *model*."""
    yield from find_unread_names(body["messages"], model)
    effort = body.get("reasoning_effort")
    if effort and not takes_effort(model, effort):
        yield "reasoning_effort"
    budgets = [name for name in _ABOUT_BUDGETS if body.get(name) is not None]
    if budgets and not can_reason(model):
        yield from budgets


def completion_requests(
    body: Body, default: Request, model: Served = None, *, at_most: int = MAX_PROMPTS
) -> list[Request]:
    """The requests of *body*, as :data:`COMPLETION` reads it: one for each prompt.

    More than *at_most* prompts are refused. With a ``suffix``, *model* fills the gap between each
    prompt and the suffix, if the model is known.
    """
    _check_stream(body)
    request = replace(
        request_without_prompt(body, with_defaults(default, **RANDOM)), logprobs=body["logprobs"]
    )
    prompts = texts_of(body["prompt"], "prompt", at_most=at_most)
    suffix = body["suffix"]
    if "" in prompts and not suffix:
        raise UsageError("the prompt is empty", field="prompt")
    if not suffix or model is None:
        return [replace(request, prompt=prompt) for prompt in prompts]
    requests = []
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise UsageError("suffix: a prompt of token ids has no gap", field="suffix")
        ids, stop_ids = gap_prompt(model.tokenizer, prompt, suffix)
        requests.append(replace(request, prompt=ids, stop_ids=stop_ids))
    return requests


def request_without_prompt(body: Body, default: Request) -> Request:
    """The request of *body*, which has fields of :data:`ANSWER`, without a prompt or messages."""
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


def _check_stream(body: Body) -> None:
    """Refuse ``stream_options`` in a *body* that does not ask for a stream."""
    if body["stream_options"] is not None and not body["stream"]:
        raise UsageError("stream_options is for stream: true", field="stream_options")


def grammar_of(body: Body) -> tuple[str, dict[str, Any]]:
    """The field of *body* that constrains the answer, and the entry of the request that it sets.

    Both are empty if the answer is not constrained.
    """
    grammars: dict[str, tuple[str, Any]] = {}
    format_schema = schema_of(body.get("response_format"))
    for name, schema in (
        ("json_schema", body.get("json_schema")),
        ("response_format", format_schema),
    ):
        if schema is not None:
            grammars[name] = "json_schema", schema
    if body.get("grammar"):  # an empty one asks for nothing
        grammars["grammar"] = "grammar", body["grammar"]
    request_fields = {
        "json": "json_schema",
        "json_object": "any",  # a JSON object of any form
        "regex": "regex",
        "choice": "choice",
        "grammar": "grammar",
    }
    for name, value in (body.get("structured_outputs") or {}).items():
        if value is None or (value is False and name != "json"):
            continue  # clients send all entries that they know; json: false is a schema
        field = f"structured_outputs.{name}"[:100]
        if name not in request_fields:
            raise UsageError(f"{field} is not served", field=field)
        grammars[field] = request_fields[name], value
    if len(grammars) > 1:
        raise UsageError(f"{' and '.join(grammars)} are both given", field=next(iter(grammars)))
    for name, (kind, value) in grammars.items():
        if kind == "any":
            if value is not True:
                raise UsageError(f"{name} is not true or false", field=name)
            return name, {"json_schema": {"type": "object"}}
        if kind != "choice":
            return name, {kind: value}
        if not (isinstance(value, list) and value and all(isinstance(text, str) for text in value)):
            raise UsageError(f"{name} is not a list of texts", field=name)
        return name, {"regex": "|".join(_SPECIAL.sub(r"\\\g<0>", text) for text in value)}
    return "", {}


def schema_of(form: Any, field: str = "response_format") -> dict[str, Any] | None:
    """JSON schema that *form*, a response format, asks for; None if the answer may be any text.

    Responses have the schema beside the type, chats below ``json_schema``. llama.cpp's clients
    send a schema with ``json_object``, too.
    """
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    is_flat = field == "text.format"
    if kind == "text":
        _check_names(form, (), field)
        return None
    if kind == "json_object":
        _check_names(form, ("schema",), field)
        if form.get("schema") is None:
            return {"type": "object"}
        return _schema_in(form, field)
    if kind == "json_schema" and is_flat:
        _check_names(form, _DESCRIBED, field)
        return _schema_in(form, field)
    if kind == "json_schema":
        _check_names(form, ("json_schema",), field)
        inner = form.get("json_schema")
        _check_names(inner, _DESCRIBED, f"{field}.json_schema")
        return _schema_in(inner, f"{field}.json_schema")
    raise UsageError(f"{field} is none of text, json_object and json_schema", field=field)


def _schema_in(holder: Any, field: str) -> dict[str, Any]:
    """The ``schema`` in *holder*, the value of *field*; it is refused unless it is an object."""
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if isinstance(schema, dict):
        return schema
    raise UsageError(f"{field}.schema is not an object", field=f"{field}.schema")


def _check_names(form: Any, names: Iterable[str], field: str) -> None:
    """Refuse what *form* has besides its type and *names*."""
    entries = form.items() if isinstance(form, dict) else ()
    for name, value in entries:
        if name != "type" and name not in names and value is not None:
            where = f"{field}.{name[:80]}"
            raise UsageError(f"{where}: this field is not known here", field=where)


# --- replies -------------------------------------------------------------------------------------


def chat_reply(body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/chat/completions``; *answers* has one for each choice."""
    choices = [
        {
            "index": index,
            "message": message_of(answer),
            "logprobs": chat_logprobs(answer.logprobs) if body["logprobs"] else None,
            "finish_reason": chat_finish(answer),
        }
        for index, answer in enumerate(answers)
    ]
    counts = usage(answers, choices=len(answers))
    return {**head, "object": "chat.completion", "choices": choices, "usage": counts}


async def chat_events(body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/v1/chat/completions`` as events."""
    head = {**head, "object": "chat.completion.chunk"}
    answers = {}

    def event(index: int, delta: Any, logprobs: Any = None, finish: str | None = None) -> Any:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**head, "choices": [choice]}

    async for index, piece, answer in pieces:
        if index not in answers:
            answers[index] = answer
            yield event(index, {"role": "assistant", "content": ""})
        logprobs = chat_logprobs([piece.described]) if piece.described else None
        if piece.reasoning:
            yield event(index, {"reasoning_content": piece.reasoning})
        if piece.text or logprobs:
            yield event(index, {"content": piece.text}, logprobs)
        for call in piece.calls:
            function = {"name": call.name} if call.name else {}
            opening = {"id": call.id, "type": "function"} if call.id else {}
            function["arguments"] = call.arguments
            delta = {"index": call.index, **opening, "function": function}
            yield event(index, {"tool_calls": [delta]})
        if piece.finish_reason:
            yield event(index, {}, finish=chat_finish(answer))
    if (body["stream_options"] or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": usage(answers, choices=len(answers))}


def completion_reply(body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/completions``; the *answers* to one prompt follow each other."""
    choices = [
        {
            "index": index,
            "text": answer.text,
            "logprobs": text_logprobs(answer) if body["logprobs"] is not None else None,
            "finish_reason": finish_of(answer.finish_reason),
        }
        for index, answer in enumerate(answers)
    ]
    counts = usage(answers, choices=body["n"] or 1)
    return {**head, "object": "text_completion", "choices": choices, "usage": counts}


def text_logprobs(answer: Answer) -> dict[str, Any]:
    """Log-probabilities of the tokens of *answer*, as completions have them."""
    return TextLogprobs().next_part(answer.logprobs)


async def completion_events(body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/v1/completions`` as events."""
    head = {**head, "object": "text_completion"}
    answers: dict[int, Answer] = {}
    parts: dict[int, TextLogprobs] = {}
    async for index, piece, answer in pieces:
        answers[index] = answer
        logprobs = None
        if piece.described:
            logprobs = parts.setdefault(index, TextLogprobs()).next_part([piece.described])
        if piece.text or logprobs or piece.finish_reason:
            choice = {"index": index, "text": piece.text, "logprobs": logprobs}
            finish = finish_of(piece.finish_reason)
            yield {**head, "choices": [choice | {"finish_reason": finish}]}
    if (body["stream_options"] or {}).get("include_usage"):
        yield {**head, "usage": usage(answers, choices=body["n"] or 1), "choices": []}


def usage(answers: Sequence[Answer] | dict[int, Answer], *, choices: int) -> dict[str, Any]:
    """Token counts of *answers*, of which *choices* in turn share a prompt that counts once."""
    if isinstance(answers, dict):
        answers = [answers[index] for index in sorted(answers)]
    firsts = answers[::choices]
    prompt = sum(answer.prompt_tokens for answer in firsts)
    generated = sum(answer.tokens for answer in answers)
    cached = sum(answer.sequence.reused_tokens for answer in firsts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)
        },
    }


def finish_of(reason: FinishReason | None) -> str | None:
    """OpenAI's name of a finish *reason*, or ours if OpenAI does not have it."""
    return "length" if reason == "context" else reason


def chat_finish(answer: Answer) -> str | None:
    """As :func:`finish_of` for *answer*, but ``tool_calls`` if it ends with calls of functions."""
    called = answer.calls and answer.finish_reason == "stop"
    return "tool_calls" if called else finish_of(answer.finish_reason)


def message_of(answer: Answer) -> dict[str, Any]:
    """*answer* as a message of the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message


def error_reply(
    message: str, _status: int, kind: str, code: str | None = None, field: str | None = None
) -> dict[str, Any]:
    """The body of a reply with an error status."""
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


CHAT = Form(
    "ChatRequest",
    {
        **ANSWER,
        **_STREAMED,
        **schemas_by_name("openai", "tools", "tool_choice", "parallel_tool_calls"),
        "messages": MESSAGES,
        "max_completion_tokens": schemas_by_name("openai", "max_tokens")["max_tokens"],
        "logprobs": FLAG,
        "top_logprobs": TOP_LOGPROBS,
        "modalities": {"type": "array", "items": {"type": "string", "enum": ["text"]}},
        "response_format": OBJECT,
        "chat_template_kwargs": OBJECT,
        "reasoning_effort": EFFORT,
        **dict.fromkeys(BUDGETS, BUDGET),
        "reasoning_budget_message": TEXT
        | {"description": "text before the end of a reasoning that has used up its budget"},
        **schemas_by_name("openai", "continue_final_message"),
        **IDLE,
        **mark_ignored(verbosity=TEXT),
        **UNSERVED,
        **mark_refused("functions", hint="send them as tools"),
        **mark_refused("function_call", hint="send it as tool_choice"),
        **mark_refused("audio", "prediction", "web_search_options"),
    },
    required=("messages",),
    ignores=chat_ignores, clamps=True,
    setters=SETTERS, tag="OpenAI", summary="The next message of a conversation",
    id_prefix="chatcmpl-", requests=chat_requests, reply=chat_reply, events=chat_events,
    aliases=("/chat/completions",),  # as llama.cpp's server has it
)  # fmt: skip
COMPLETION = Form(
    "CompletionRequest",
    {
        **ANSWER,
        **_STREAMED,
        "prompt": INPUTS,
        "logprobs": TOP_LOGPROBS,
        **IDLE,
        **UNSERVED,
        "suffix": TEXT
        | {"description": "text after the gap that is filled, by models that can fill one"},
        **mark_refused("best_of", neutral=(1,)),
        **mark_refused("echo"),
        **mark_refused("reasoning_effort"),
    },
    required=("prompt",),
    setters=SETTERS, tag="OpenAI", summary="The continuation of texts",
    id_prefix="cmpl-", requests=completion_requests, reply=completion_reply,
    events=completion_events, tokens=DEFAULT_COMPLETION_TOKENS, aliases=("/completions",),
)  # fmt: skip
