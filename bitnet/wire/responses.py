"""OpenAI's responses: bodies as requests, answers as items and events.

Names and events are those of platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.base.trust import encodable
from bitnet.runtime.piece import CallDelta, Piece, TextDelta
from bitnet.runtime.request import MAX_MESSAGES, Request
from bitnet.runtime.request_checks import ALLOWED
from bitnet.wire.fields import RANDOM, TOP_LOGPROBS, schemas_by_name, with_defaults
from bitnet.wire.forms import Form, check_entries
from bitnet.wire.logprobs import chat_logprobs
from bitnet.wire.messages import ONLY_TEXT, type_of
from bitnet.wire.openai import IDLE, schema_of
from bitnet.wire.openai import error_reply as error_reply  # for routes.dialect_of
from bitnet.wire.reasoning import EFFORT, takes_effort
from bitnet.wire.schemas import (
    FLAG,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXTS,
    Schema,
    any_of,
    find_ignored,
    mark_ignored,
    mark_refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import TokenLogprob
    from bitnet.wire.forms import Body, Default, Events, Pieces, Served

PATH = "/v1/responses"
STREAM = "named"  # see Form.stream
LOGPROBS = "message.output_text.logprobs"  # entry of ``include``
#: Tools that clients offer beside functions: the model is not told of them.
_SKIPPED_TOOLS = {
    "custom", "namespace", "web_search", "web_search_preview", "local_shell", "shell",
    "apply_patch", "image_generation", "tool_search", "file_search", "code_interpreter",
}  # fmt: skip
_FUNCTION: Schema = {
    "type": "object",
    "properties": {
        "type": TEXT,
        "name": TEXT,
        "description": TEXT,
        "parameters": OBJECT,
        **mark_ignored(strict=FLAG, defer_loading=FLAG),
    },
}
_CONTENT = any_of(TEXT, OBJECTS)
#: Schemas of the entries of a content part, and its types.
_PART = {
    "type": TEXT,
    "text": TEXT,
    "refusal": TEXT,
    **mark_ignored(annotations=OBJECTS, logprobs=OBJECTS, prompt_cache_breakpoint=OBJECT),
}
_TYPES = ("input_text", "output_text", "text", "refusal")
_PARTS: Schema = {"type": "array", "items": {"type": "object", "properties": _PART}}
#: Schemas of the entries of a part of reasoning, and its types: OpenAI's, and Codex's ``text``.
_REASONING_PART = {"type": TEXT, "text": TEXT}
_REASONING_TYPES = ("reasoning_text", "summary_text", "text")
_ITEM_ID = mark_ignored(id=TEXT, status=TEXT, phase=TEXT)
#: Schemas of the entries of an input item, by its type; a message may leave the type out.
_ITEMS: dict[str, Any] = {
    "message": {"type": TEXT, "role": TEXT, "content": _CONTENT, **_ITEM_ID},
    "function_call": {
        "type": TEXT, "name": TEXT, "arguments": TEXT, "call_id": TEXT, **_ITEM_ID,
        **mark_refused("namespace"),
    },
    "function_call_output": {"type": TEXT, "call_id": TEXT, "output": _CONTENT, **_ITEM_ID},
    "reasoning": {
        "type": TEXT, "summary": OBJECTS, "content": OBJECTS, **_ITEM_ID,
        **mark_ignored(encrypted_content=TEXT),
    },
}  # fmt: skip


def response_requests(body: Body, default: Default = None, _: Served = None) -> list[Request]:
    """The request of *body*, as :data:`RESPONSE` reads it; *default* has its missing fields."""
    instructions = body["instructions"]
    system = [{"role": "system", "content": instructions}] if instructions else []
    tools = []
    for number, tool in enumerate(body["tools"] or ()):
        where = f"tools.{number}"
        if type_of(tool, where) not in _SKIPPED_TOOLS:
            tools.append(_tool(tool, where))
    wants_logprobs = LOGPROBS in (body["include"] or ())
    if body["top_logprobs"] and not wants_logprobs:
        message = f"top_logprobs needs include: [{LOGPROBS!r}]"
        raise UsageError(message, field="top_logprobs")
    fields = {
        "messages": system + [turn for _, turn in _messages(body["input"])],
        "tools": tools or None,
        "tool_choice": _choice(body["tool_choice"]),
        "parallel_tool_calls": body["parallel_tool_calls"],
        "json_schema": response_schema(body),
        "max_tokens": body["max_output_tokens"],
        "temperature": body["temperature"],
        "top_p": body["top_p"],
        "logprobs": (body["top_logprobs"] or 0) if wants_logprobs else None,
        "reasoning_effort": (body["reasoning"] or {}).get("effort"),
    }
    request = Request.from_mapping(fields, with_defaults(default, **RANDOM))
    return [replace(request, separate_reasoning=True)]


def response_places(body: Body) -> list[str]:
    """For each message of the request, the path in *body* of the entry that it was made from."""
    places = ["instructions"] if body.get("instructions") else []
    return places + [path for path, _ in _messages(body["input"])]


def response_ignores(body: Body, model: Served) -> Iterator[str]:
    """Names of the fields in *body* that have no effect on the answer of this *model*."""
    for tool in body["tools"] or ():
        if tool.get("type") in _SKIPPED_TOOLS:
            yield f"tools.{tool['type']}"
        else:
            yield from find_ignored(_FUNCTION, tool, "tools")
    items = body["input"] if isinstance(body["input"], list) else []
    for item in items:
        schema = {"type": "object", "properties": _ITEMS.get(item.get("type") or "message", {})}
        yield from find_ignored(schema, item, "input")
        for name in ("content", "output"):
            if isinstance(item.get(name), list):
                yield from find_ignored(_PARTS, item[name], f"input.{name}")
        if item.get("type") == "reasoning" and item.get("content") and item.get("summary"):
            yield "input.summary"  # only the reasoning itself is read
    if body["truncation"] == "auto":  # an input that is too long is refused in any case
        yield "truncation"
    if set(body["include"] or ()) - {LOGPROBS}:
        yield "include"
    effort = (body["reasoning"] or {}).get("effort")
    if effort and not takes_effort(model, effort):
        yield "reasoning.effort"


def response_schema(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """JSON schema that the answer to *body* must follow, or None."""
    return schema_of((body["text"] or {}).get("format"), "text.format")


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """A tool as chats have it."""
    if tool.get("type") != "function":
        raise UsageError(f"{where}: only tools of the type function are served", field=where)
    check_entries(tool, _FUNCTION["properties"], where)
    function = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": function}


def _choice(choice: Any) -> Any:
    """``tool_choice`` of a body as chats have it."""
    if isinstance(choice, dict) and choice.get("type") == "function":
        check_entries(choice, {"type": TEXT, "name": TEXT}, "tool_choice")
        return {"type": "function", "function": {"name": choice.get("name")}}
    if isinstance(choice, dict) and choice.get("type") == ALLOWED:
        check_entries(choice, {"type": TEXT, "mode": TEXT, "tools": OBJECTS}, "tool_choice")
        tools = choice.get("tools") or ()
        for number, tool in enumerate(tools):
            if type_of(tool, f"tool_choice.tools.{number}") == ALLOWED:
                message = f"tool_choice.tools.{number}: expected a tool"
                raise UsageError(message, field=f"tool_choice.tools.{number}")
        named = [_choice(tool) for tool in tools if tool["type"] not in _SKIPPED_TOOLS]
        return {"type": ALLOWED, ALLOWED: {"mode": choice.get("mode"), "tools": named}}
    return choice


def _messages(input_: str | list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Messages for chat templates from a text or items, each with the path of its first item."""
    if isinstance(input_, str):
        return [("input", {"role": "user", "content": input_})]
    turns: list[tuple[str, dict[str, Any]]] = []
    reasoning: list[str] = []  # precedes the message or call of the assistant that it led to
    for number, item in enumerate(input_):
        where = f"input.{number}"
        kind = type_of(item, where, "message")
        if kind in _ITEMS:
            check_entries(item, _ITEMS[kind], where)
        if kind == "message" and item.get("role") in ("user", "assistant", "system", "developer"):
            turn = {"role": item["role"], "content": _text(item.get("content"), f"{where}.content")}
            turns.append((where, _add_reasoning(turn, reasoning)))
        elif kind == "function_call" and isinstance(item.get("name"), str):
            function = {"name": item["name"], "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id") or "", "type": "function", "function": function}
            if reasoning or not turns or turns[-1][1]["role"] != "assistant":
                turn = {"role": "assistant", "content": ""}
                turns.append((where, _add_reasoning(turn, reasoning)))
            turns[-1][1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            result = _text(item.get("output"), f"{where}.output")
            turn = {"role": "tool", "tool_call_id": item.get("call_id"), "content": result}
            turns.append((where, turn))
        elif kind == "reasoning":
            reasoning += _reasoning_texts(item, where)
        else:
            raise UsageError(f"{where}: an item of type {encodable(kind[:40])!r} and role "
                          f"{encodable(str(item.get('role'))[:40])!r} is not served",
                          field=where)  # fmt: skip
    return turns


def _add_reasoning(turn: dict[str, Any], reasoning: list[str]) -> dict[str, Any]:
    """*turn*, with *reasoning* added if it is the assistant's; the list is emptied in any case."""
    if turn["role"] == "assistant" and reasoning:
        turn["reasoning_content"] = "\n\n".join(reasoning)
    reasoning.clear()
    return turn


def _reasoning_texts(item: Mapping[str, Any], where: str) -> list[str]:
    """Texts of an *item* of reasoning: the reasoning itself, else its summary."""
    content, summary = (
        _texts_of(item.get(name) or (), f"{where}.{name}", _REASONING_TYPES, _REASONING_PART)
        for name in ("content", "summary")
    )
    return [text for text in content or summary if text]


def _text(content: Any, where: str) -> str:
    """The text of *content*, a text or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UsageError(f"{where}: expected a text or a list", field=where)
    return "\n".join(_texts_of(content, where, _TYPES, _PART))


def _texts_of(
    parts: Iterable[Mapping[str, Any]], where: str, types: Sequence[str], schemas: dict[str, Schema]
) -> list[str]:
    """Texts of *parts*, which are at *where*; each has one of *types*, and entries of *schemas*."""
    texts = []
    for number, part in enumerate(parts):
        at = f"{where}.{number}"
        kind = type_of(part, at)
        if kind not in types:
            printable = encodable(kind[:40])
            raise UsageError(
                f"{at}: a part of type {printable!r} is refused: {ONLY_TEXT}", field=at
            )
        check_entries(part, schemas, at)
        name = "refusal" if kind == "refusal" else "text"
        if part.get(name) is None:
            raise UsageError(f"{at}.{name}: this field is required", field=f"{at}.{name}")
        texts.append(part[name])
    return texts


def error_event(number: int, message: str, code: str, field: str | None = None) -> dict[str, Any]:
    """The event of an error, which is event *number* of its stream."""
    facts = {"code": code, "message": message, "param": field}
    return {"type": "error", "sequence_number": number, **facts}


class _Items:
    """The items of one response, and the events that report them as they grow."""

    def __init__(self, body: Mapping[str, Any], head: Mapping[str, Any]) -> None:
        """Items of the answer to *body*; *head* has the id, the model and the time."""
        self._output: list[dict[str, Any]] = []
        self._is_open = False
        self._described: list[TokenLogprob] = []  # tokens to report with the next text
        self._count = -1  # number of the last event
        fields = {name: value for name, value in body.items() if value is not None}
        self._response: dict[str, Any] = {
            "id": head["id"],
            "object": "response",
            "created_at": head["created"],
            "model": head["model"],
            "error": None,
            "incomplete_details": None,
            "instructions": fields.get("instructions"),
            "metadata": fields.get("metadata", {}),
            "parallel_tool_calls": fields.get("parallel_tool_calls", True),
            "store": False,
            "temperature": None,  # as top_p: see show_sampling
            "tool_choice": fields.get("tool_choice", "auto"),
            "tools": fields.get("tools", []),
            "top_p": None,
            "usage": None,
        }

    def event(self, kind: str, **facts: Any) -> dict[str, Any]:
        """The next event of the stream, which is of the type *kind*, with its number."""
        self._count += 1
        return {"type": kind, "sequence_number": self._count, **facts}

    def show_sampling(self, answer: Answer) -> None:
        """Put the sampling values of *answer* into the response."""
        sampling = answer.sequence.request.sampling
        self._response |= {"temperature": sampling.temperature, "top_p": sampling.top_p}

    def add_logprobs(self, tokens: Sequence[TokenLogprob]) -> None:
        """Report the log-probabilities of *tokens* with the next text."""
        self._described += tokens

    def events_of(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Events of one piece."""
        if self._count < 0:
            initial = self._response | {"status": "in_progress", "output": []}
            yield self.event("response.created", response=initial)
            yield self.event("response.in_progress", response=initial)
        if piece.described:
            self._described.append(piece.described)
        for part in piece.parts:
            is_text = isinstance(part, TextDelta) and not part.is_reasoning
            # Only messages have log-probabilities. A piece without a token is a whole answer, from
            # response_reply, where they belong to its text, or ends an answer.
            if not is_text and piece.token is not None:
                self._described.clear()
            if isinstance(part, CallDelta):
                yield from self._call_events(part)
            elif part.is_reasoning:
                yield from self._reasoning_events(part.text)
            else:
                yield from self._text_events(part.text)

    def _reasoning_events(self, text: str) -> Iterator[dict[str, Any]]:
        if not self._is_in("reasoning"):
            yield from self._open_text("reasoning", summary=[])
        self._output[-1]["content"][0]["text"] += text
        yield self._part_event("reasoning_text.delta", delta=text)

    def _text_events(self, text: str) -> Iterator[dict[str, Any]]:
        if not self._is_in("message"):
            yield from self._open_text("message", role="assistant")
        part = self._output[-1]["content"][0]
        part["text"] += text
        logprobs = chat_logprobs(self._described)["content"]
        part["logprobs"] += logprobs
        self._described.clear()
        yield self._part_event("output_text.delta", delta=text, logprobs=logprobs)

    def _call_events(self, call: CallDelta) -> Iterator[dict[str, Any]]:
        if call.id:
            item = {"type": "function_call", "id": f"fc_{secrets.token_hex(12)}",
                    "call_id": call.id, "name": call.name, "arguments": ""}  # fmt: skip
            yield from self._open(item)
        if call.arguments:
            self._output[-1]["arguments"] += call.arguments
            yield self._item_event("function_call_arguments.delta", delta=call.arguments)

    def end(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """Events after the last piece of *answer*."""
        if not self._output:
            yield from self._open_text("message", role="assistant")
        reason = answer.finish_reason
        status = {"stop": "completed", "cancelled": "cancelled"}.get(str(reason), "incomplete")
        yield from self._close("completed" if status == "completed" else "incomplete")
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        final = self._response | {
            "status": status,
            "incomplete_details": details,
            "output": self._output,
            "usage": {
                "input_tokens": answer.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": answer.sequence.reused_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": answer.tokens,
                "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
                "total_tokens": answer.prompt_tokens + answer.tokens,
            },
        }
        kind = "completed" if status == "completed" else "incomplete"
        yield self.event(f"response.{kind}", response=final)

    def _is_in(self, kind: str) -> bool:
        """True if the open item is of the type *kind*."""
        return self._is_open and self._output[-1]["type"] == kind

    def _open_text(self, kind: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Open a message or a reasoning item, with its one part."""
        prefix = "rs" if kind == "reasoning" else "msg"
        item = {"type": kind, "id": f"{prefix}_{secrets.token_hex(12)}", **facts}
        yield from self._open(item | {"content": []})
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._output[-1]["content"].append(part)
        yield self._item_event("content_part.added", content_index=0, part=dict(part))

    def _open(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Close the open item, if there is one, and add *item*."""
        yield from self._close("completed")
        self._is_open = True
        self._output.append(item | {"status": "in_progress"})
        opened = self._output[-1] | ({"content": []} if "content" in item else {})
        at = len(self._output) - 1
        yield self.event("response.output_item.added", output_index=at, item=opened)

    def _close(self, status: str) -> Iterator[dict[str, Any]]:
        """Give the open item, if there is one, its final *status*."""
        if not self._is_open:
            return
        self._is_open = False
        item = self._output[-1]
        item["status"] = status
        if "content" in item:
            (part,) = item["content"]
            facts = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._part_event(f"{part['type']}.done", **facts)
            yield self._item_event("content_part.done", content_index=0, part=part)
        else:
            name = item["name"]
            arguments = item["arguments"]
            yield self._item_event("function_call_arguments.done", name=name, arguments=arguments)
        at = len(self._output) - 1
        yield self.event("response.output_item.done", output_index=at, item=item)

    def _item_event(self, kind: str, **facts: Any) -> dict[str, Any]:
        """An event about the last item."""
        where = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        return self.event(f"response.{kind}", **where, **facts)

    def _part_event(self, kind: str, **facts: Any) -> dict[str, Any]:
        """An event about the only content part of the last item."""
        return self._item_event(kind, content_index=0, **facts)


def response_reply(body: Body, head: Body, answers: Sequence[Answer]) -> dict[str, Any]:
    """The reply of ``/v1/responses``."""
    (answer,) = answers
    items = _Items(body, head)
    piece = Piece(None, parts=tuple(answer.parts))
    items.show_sampling(answer)
    items.add_logprobs(answer.logprobs[answer.reasoning_tokens :])
    *_, final = (*items.events_of(piece), *items.end(answer))
    return dict(final["response"])


async def response_events(body: Body, head: Body, pieces: Pieces) -> Events:
    """The reply of ``/v1/responses`` as events."""
    items = _Items(body, head)
    async for _, piece, answer in pieces:
        items.show_sampling(answer)
        for event in items.events_of(piece):
            yield event
    for event in items.end(answer):
        yield event


RESPONSE = Form(
    "ResponseRequest",
    {
        "model": TEXT,
        "input": any_of(TEXT, OBJECTS | {"minItems": 1, "maxItems": MAX_MESSAGES}),
        "instructions": TEXT,
        **schemas_by_name("responses", "max_tokens", "temperature", "top_p"),
        **schemas_by_name("responses", "tool_choice", "parallel_tool_calls"),
        "tools": OBJECTS | {"description": "functions; those of other types are skipped"},
        "text": {
            "type": "object",
            "properties": {"format": OBJECT, **mark_ignored(verbosity=TEXT)},
            "description": "format: text or a JSON schema",
        },
        "reasoning": {
            "type": "object",
            "properties": {
                "effort": EFFORT,
                **mark_ignored(summary=TEXT, generate_summary=TEXT, context=TEXT),
            },
        },
        "truncation": {"type": "string", "enum": ["auto", "disabled"]},
        "stream": FLAG,
        # Fields without effect: nothing is stored, and the reply says so.
        **{name: IDLE[name] for name in IDLE if name != "cache_prompt"},
        **mark_ignored(stream_options=OBJECT, context_management=OBJECTS),
        **mark_refused("previous_response_id", "conversation", hint="send the whole conversation"),
        **mark_refused("background", "max_tool_calls", "prompt"),
        "include": TEXTS | {"description": f"{LOGPROBS}; others are named as without effect"},
        "top_logprobs": TOP_LOGPROBS,
    },
    required=("input",),
    ignores=response_ignores, places=response_places, clamps=True,
    dialect="responses", tag="OpenAI", summary="The next items of a conversation",
    id_prefix="resp_", requests=response_requests, reply=response_reply, events=response_events,
    stream=STREAM,
)  # fmt: skip
