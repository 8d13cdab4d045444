"""Anthropic's messages: bodies as requests, answers as messages and events.

Names and events are those of docs.anthropic.com/en/api/messages and .../messages-streaming.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.trust import encodable
from bitnet.runtime.piece import CallDelta, TextDelta
from bitnet.runtime.request import MAX_MESSAGES, Request
from bitnet.wire.fields import RANDOM, STOPS, schemas_by_name, with_defaults
from bitnet.wire.forms import Form, check_entries
from bitnet.wire.messages import ONLY_TEXT, type_of
from bitnet.wire.reasoning import EFFORT, can_reason, takes_effort
from bitnet.wire.schemas import (
    FLAG,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXTS,
    WHOLE,
    Schema,
    any_of,
    find_ignored,
    mark_ignored,
    mark_refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.language_model import LanguageModel
    from bitnet.runtime.piece import Part
    from bitnet.wire.forms import Body, Events, Pieces, Served

PREFIX = "/v1/messages"  # of the addresses
STREAM = "named"  # see Form.stream
#: Anthropic's name of an error, by its HTTP status.
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
#: Finish reasons that have another name in Anthropic's API.
_STOP_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}
#: Entry that most objects of a body may have; prompts are cached here in any case.
_HINTS = mark_ignored(cache_control=OBJECT)
#: Schemas of the entries of a content block, by the type of the block.
_BLOCKS: dict[str, dict[str, Schema]] = {
    "text": {"type": TEXT, "text": TEXT, **_HINTS, **mark_ignored(citations=OBJECTS)},
    "thinking": {"type": TEXT, "thinking": TEXT, **mark_ignored(signature=TEXT)},
    "redacted_thinking": {"type": TEXT, "data": TEXT},
    "tool_use": {
        "type": TEXT, "id": TEXT, "name": TEXT, "input": OBJECT, **_HINTS,
        **mark_ignored(caller=OBJECT),
    },
    "tool_result": {
        "type": TEXT, "tool_use_id": TEXT, "content": any_of(TEXT, OBJECTS), "is_error": FLAG,
        **_HINTS,
    },
    "tool_reference": {"type": TEXT, "tool_name": TEXT, **_HINTS},
}  # fmt: skip
_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "enum": ["user", "assistant", "system"]},
        "content": any_of(TEXT, OBJECTS),
        **_HINTS,
    },
    "required": ["role", "content"],
}
#: A tool of the client's own, of the type ``custom`` or none. Those of Anthropic are refused.
_TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": TEXT,
        "name": TEXT,
        "description": TEXT,
        "input_schema": OBJECT,
        "input_examples": OBJECTS,
        **_HINTS,
        **mark_ignored(
            strict=FLAG, defer_loading=FLAG, eager_input_streaming=FLAG, allowed_callers=TEXTS
        ),
    },
}
_FIELDS: dict[str, Schema] = {
    "model": TEXT,
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES},
    "system": any_of(TEXT, OBJECTS),
    "tools": OBJECTS,
    "tool_choice": {
        "type": "object",
        "properties": {"type": TEXT, "name": TEXT, "disable_parallel_tool_use": FLAG},
        "required": ["type"],
    },
    "thinking": {
        "type": "object",
        "properties": {"type": TEXT, "budget_tokens": WHOLE, **mark_ignored(display=TEXT)},
        "description": "disabled, enabled with budget_tokens, or adaptive: the model decides",
    },
    "output_config": {
        "type": "object",
        "properties": {
            "format": {
                "type": "object",
                "properties": {
                    "type": {"type": "string", "enum": ["json_schema"]},
                    "schema": OBJECT,
                    **mark_ignored(name=TEXT),
                },
                "required": ["type", "schema"],
            },
            "effort": EFFORT,
            **mark_ignored(task_budget=OBJECT),
        },
        "description": "format, a JSON schema; effort",
    },
    **mark_ignored(
        cache_control=OBJECT, metadata=OBJECT, service_tier=TEXT, inference_geo=TEXT, speed=TEXT,
        user_profile_id=TEXT, betas=TEXTS, context_management=OBJECT, diagnostics=OBJECT,
    ),
    **mark_refused("container", "mcp_servers"),
}  # fmt: skip


def message_requests(body: Body, default: Request | None = None, _: Served = None) -> list[Request]:
    """The request of *body*, as :data:`MESSAGE` or :data:`COUNT` reads it.

    *default* supplies the fields that the body leaves out.
    """
    thinking = body["thinking"] or {}
    mode = thinking.get("type")
    budget = thinking.get("budget_tokens")
    if mode not in (None, "disabled", "enabled", "adaptive"):
        raise UsageError("thinking.type is not disabled, enabled or adaptive", field="thinking")
    if body["messages"][-1]["role"] == "assistant":
        raise UsageError(
            "messages: the last one is the assistant's, which is not continued", field="messages"
        )
    turns = []
    if body["system"]:
        turns.append({"role": "system", "content": _texts(body["system"], "system")})
    for number, message in enumerate(body["messages"]):
        turns += _turns(message, f"messages.{number}")
    choice = body["tool_choice"] or {}
    openai_choices = {"auto": "auto", "any": "required", "none": "none", None: None}
    choice_type = choice.get("type")
    if choice_type == "tool":
        tool_choice: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif choice_type is None or (isinstance(choice_type, str) and choice_type in openai_choices):
        tool_choice = openai_choices[choice_type]
    else:
        raise UsageError("tool_choice.type is not auto, any, tool or none", field="tool_choice")
    tools = [_tool(tool, f"tools.{number}") for number, tool in enumerate(body["tools"] or ())]
    fields = {
        "messages": turns,
        "tools": tools or None,
        "tool_choice": tool_choice,
        "parallel_tool_calls": not choice.get("disable_parallel_tool_use", False),
        "json_schema": _schema(body),
        "stop": body.get("stop_sequences"),
        # adaptive: the chat template decides, as if the field were left out.
        "thinking": {"disabled": False, "enabled": True}.get(str(mode)),
        "thinking_budget": budget if mode == "enabled" else None,
        "reasoning_effort": (body["output_config"] or {}).get("effort"),
        **{name: body.get(name) for name in ("max_tokens", "temperature", "top_k", "top_p")},
    }
    request = Request.from_mapping(fields, with_defaults(default, **RANDOM))
    return [replace(request, separate_reasoning=True)]


def message_places(body: Body) -> list[str]:
    """For each message of the request, the path in *body* of the entry that it was made from."""
    places = ["system"] if body.get("system") else []
    for number, message in enumerate(body["messages"]):
        path = f"messages.{number}"
        places += [path] * len(_turns(message, path))
    return places


def message_ignores(body: Body, model: Served) -> Iterator[str]:
    """Names of the fields in *body* that have no effect on the answer of this *model*."""
    for tool in body["tools"] or ():
        yield from find_ignored(_TOOL, tool, "tools")
    contents = [message["content"] for message in body["messages"]]
    for content in (body["system"], *contents):
        yield from _find_ignored_in_blocks(content)
    effort = (body["output_config"] or {}).get("effort")
    if effort and not takes_effort(model, effort):
        yield "output_config.effort"
    thinking = body["thinking"] or {}
    mode = thinking.get("type")
    if mode not in (None, "disabled") and not can_reason(model):
        yield "thinking"
    elif mode != "enabled" and thinking.get("budget_tokens") is not None:
        yield "thinking.budget_tokens"


def _find_ignored_in_blocks(content: Any) -> Iterator[str]:
    """Names of fields without effect in the blocks of *content*."""
    blocks = content if isinstance(content, list) else []
    for block in blocks:
        kind = block.get("type")
        schema = {"type": "object", "properties": _BLOCKS.get(kind or "text", {})}
        yield from find_ignored(schema, block, "content")
        if kind == "tool_result":
            yield from _find_ignored_in_blocks(block.get("content"))


def _schema(body: Mapping[str, Any]) -> Any:
    """JSON schema that the answer must follow, or None."""
    form = (body["output_config"] or {}).get("format")
    return None if form is None else form["schema"]


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """The *tool* of a body, which is at *where*, in OpenAI's form."""
    if type_of(tool, where, "custom") != "custom":
        raise UsageError(f"{where}: tools of Anthropic's own are not served", field=where)
    check_entries(tool, _TOOL["properties"], where)
    function = {name: tool[name] for name in ("name", "description") if name in tool}
    if examples := tool.get("input_examples"):
        lines = "\n".join(json.dumps(example, ensure_ascii=False) for example in examples)
        description = f"{function.get('description') or ''}\n\nExamples of its input:\n{lines}"
        function["description"] = description.strip()
    return {
        "type": "function",
        "function": {**function, "parameters": tool.get("input_schema")},
    }


def _turns(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Messages for chat templates from one *message* of Anthropic's.

    Each tool result becomes a message of its own.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return [{"role": message["role"], "content": content}]
    turns: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for number, block in enumerate(content):
        at = f"{where}.content.{number}"
        kind = type_of(block, at)
        if kind in _BLOCKS:
            check_entries(block, _BLOCKS[kind], at)
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            reasoning.append(block["thinking"])  # templates write it before the latest calls
        elif kind == "redacted_thinking":
            continue  # only Anthropic can read it
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": block["name"], "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = _texts(block.get("content"), at)
            if block.get("is_error"):
                result = f"Error: {result}"
            turns.append(
                {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
            )
        else:
            printable = encodable(kind[:40])
            raise UsageError(
                f"{at}: a block of type {printable!r} is refused: {ONLY_TEXT}", field=at
            )
    if texts or calls or not turns:
        turn: dict[str, Any] = {"role": message["role"], "content": "\n".join(texts)}
        if calls:
            turn["tool_calls"] = calls
        if any(reasoning):
            turn["reasoning_content"] = "\n\n".join(filter(None, reasoning))
        turns.append(turn)
    return turns


def _texts(content: Any, where: str) -> str:
    """The text of *content*, a text or a list of blocks of text and references to tools."""
    if isinstance(content, str) or content is None:
        return content or ""
    texts = []
    for number, block in enumerate(content):
        at = f"{where}.{number}"
        kind = type_of(block, at, "text")
        if kind not in ("text", "tool_reference"):
            printable = encodable(kind[:40])
            raise UsageError(
                f"{at}: a block of type {printable!r} is refused: {ONLY_TEXT}", field=at
            )
        check_entries(block, _BLOCKS[kind], at)
        name = "text" if kind == "text" else "tool_name"
        if not isinstance(block.get(name), str):
            raise UsageError(f"{at}.{name}: expected a text", field=f"{at}.{name}")
        # The model was told of every tool already, so a reference needs only the tool's name.
        texts.append(block[name])
    return "\n".join(texts)


def _stop_facts(answer: Answer) -> dict[str, Any]:
    """Fields that say why *answer* ended; a stop text takes precedence over calls."""
    reason = answer.finish_reason
    stop_reason = _STOP_REASONS.get(str(reason), str(reason))
    if reason == "stop":
        stop_reason = "tool_use" if answer.calls else "end_turn"
        if answer.stop_text:
            stop_reason = "stop_sequence"
    return {"stop_reason": stop_reason, "stop_sequence": answer.stop_text or None}


def _usage(answer: Answer) -> dict[str, int]:
    """Numbers of tokens; those of the prompt that were computed before count apart."""
    return {
        "input_tokens": answer.prompt_tokens - answer.sequence.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.sequence.reused_tokens,
        "output_tokens": answer.tokens,
    }


def message_reply(_body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/messages``, with the id and the model of *head*."""
    (answer,) = answers
    content: list[dict[str, Any]] = []
    for part in answer.parts:
        block = _block(part)
        if isinstance(part, TextDelta):
            block[block["type"]] = part.text
        elif (arguments := answer.calls[part.index].parse_arguments()) is not None:
            block["input"] = arguments
        else:
            continue
        content.append(block)
    if not (answer.text or answer.calls):
        content.append(_block(TextDelta("")))
    return _message(head) | {"content": content, **_stop_facts(answer), "usage": _usage(answer)}


async def message_events(_body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/v1/messages`` as events: one content block after the other."""
    index = -1
    kind = ""  # of the open block
    begun = False
    async for _, piece, answer in pieces:
        if not begun:
            begun = True
            empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
            usage = _usage(answer) | {"output_tokens": 0}
            yield {"type": "message_start", "message": _message(head) | empty | {"usage": usage}}
        parts = piece.parts
        if piece.finish_reason and not (answer.text or answer.calls):
            parts = (*parts, TextDelta(""))
        for part in parts:
            block = _block(part)
            delta = _delta(part)
            # Text and thinking continue an open block of their type; each call opens a new one.
            if block["type"] != kind or (isinstance(part, CallDelta) and part.id):
                if kind:
                    yield {"type": "content_block_stop", "index": index}
                index += 1
                kind = block["type"]
                yield {"type": "content_block_start", "index": index, "content_block": block}
            if delta:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
    if kind:
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": _stop_facts(answer), "usage": _usage(answer)}
    yield {"type": "message_stop"}


def _message(head: Body) -> dict[str, Any]:
    """The fields with which a message begins: id, type, role and model."""
    return {"id": head["id"], "type": "message", "role": "assistant", "model": head["model"]}


def _block(part: Part) -> dict[str, Any]:
    """The content block to which *part* belongs, without content."""
    if isinstance(part, CallDelta):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
    if part.is_reasoning:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _delta(part: Part) -> dict[str, Any] | None:
    """The content of *part* as a delta of its block; ``None`` if it has none."""
    if isinstance(part, CallDelta):
        delta = {"type": "input_json_delta", "partial_json": part.arguments}
        return delta if part.arguments else None
    kind = "thinking" if part.is_reasoning else "text"
    return {"type": f"{kind}_delta", kind: part.text} if part.text else None


def error_reply(message: str, status: int, *_: object) -> dict[str, Any]:
    """The body of a reply with an error *status*."""
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def count_tokens(_body: Body, requests: Sequence[Request], model: LanguageModel) -> dict[str, int]:
    """The reply of ``/v1/messages/count_tokens``: the tokens of the conversation."""
    (request,) = requests
    ids, _ = model.prepare(request)
    return {"input_tokens": len(ids)}


COUNT = Form(
    "CountRequest", _FIELDS, required=("messages",), ignores=message_ignores, places=message_places,
    dialect="anthropic", tag="Anthropic", summary="The tokens of a conversation",
    requests=message_requests, compute=count_tokens,
)  # fmt: skip
MESSAGE = Form(
    "MessagesRequest",
    {
        **_FIELDS,
        **schemas_by_name("anthropic", "max_tokens", "temperature", "top_k", "top_p"),
        "stop_sequences": STOPS,
        "stream": FLAG,
    },
    required=("messages", "max_tokens"), ignores=message_ignores, places=message_places,
    clamps=True,
    dialect="anthropic", tag="Anthropic", id_prefix="msg_",
    summary="The next message of a conversation, as Anthropic has it",
    requests=message_requests, reply=message_reply, events=message_events, stream=STREAM,
)  # fmt: skip
