"""OpenAI's ``/v1/responses``, without what would have to be kept between requests.

Names and events are those of platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from bitnet.runtime.chat_form import with_top
from bitnet.runtime.piece import Piece
from bitnet.runtime.tool_calls import CallDelta
from bitnet.server.faults import Refused
from bitnet.server.prompts import check_size, made, sequences_of
from bitnet.server.shapes import MAX_MESSAGES, Shape
from bitnet.server.streams import NAMED, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.service import Service

router = APIRouter(tags=["OpenAI"])

_UNSERVED = (
    "previous_response_id", "conversation", "background", "prompt", "reasoning", "max_tool_calls",
    "context_management",
)  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"
_NAMES = {"max_tokens": "max_output_tokens", "json_schema": "text.format"}


class ResponseRequest(Shape):
    """``/v1/responses``."""

    model: str | None = None
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = Field(None, description="format: text or a JSON schema")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = Field(None, description=f"only {_LOGPROBS}")
    truncation: Literal["disabled"] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    context_management: list[dict[str, Any]] | None = None
    # What follows changes nothing in the answer; nothing is stored, and the reply says so.
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


@router.post("/v1/responses", summary="The next items of a conversation")
async def responses(body: ResponseRequest, request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends OpenAI's events of responses."""
    service: Service = request.app.state.service
    service.check_name(body.model)
    compiles = body.tool_choice not in (None, "auto", "none") or _schema(body) is not None
    exchange = Exchange(request, _sequences, body, compiles=compiles)
    items = _Items(body, service)
    if not body.stream:
        (answer,) = await exchange.collect()
        return JSONResponse(items.whole(answer))

    def chunks(_index: int, piece: Piece, _answer: Answer) -> Iterator[Any]:
        return items.of(piece)

    def last(answers: list[Answer]) -> Iterator[Any]:
        return items.end(answers[0])

    def fault(refused: Refused) -> dict[str, Any]:
        code = refused.code or refused.kind
        return items.event("error", code=code, message=refused.message, param=refused.param)

    return await exchange.stream(chunks, last, wire=NAMED, fault=fault)


def _sequences(body: ResponseRequest, service: Service) -> list[Sequence]:
    for name in _UNSERVED:
        value = getattr(body, name)
        is_empty = isinstance(value, dict) and all(one is None for one in value.values())
        if value and not is_empty:
            raise Refused(400, f"{name} is not served", param=name)
    if any(one != _LOGPROBS for one in body.include or ()):
        raise Refused(400, f"include: only {_LOGPROBS} is served", param="include")
    check_size("tools", body.tools)
    told = [{"role": "system", "content": body.instructions}] if body.instructions else []
    given = {
        "messages": told + _messages(body.input),
        "tools": [_tool(one, f"tools.{n}") for n, one in enumerate(body.tools or ())] or None,
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "json_schema": _schema(body),
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
    }
    wanted = made(given, names=_NAMES, temperature=1.0)
    if body.include:
        wanted = replace(wanted, logprobs=body.top_logprobs or 0)
    elif body.top_logprobs:
        raise Refused(400, f"top_logprobs needs include: {_LOGPROBS}", param="top_logprobs")
    is_bounded = body.max_output_tokens not in (None, -1)
    return sequences_of(wanted, service, tokens=wanted.max_tokens if is_bounded else None)


def _schema(body: ResponseRequest) -> Any:
    """The schema that the answer follows; ``None``: none."""
    given = {name: value for name, value in (body.text or {}).items() if value is not None}
    form = given.pop("format", {"type": "text"})
    for name in given:
        name = f"text.{name[:80]}"
        raise Refused(400, f"{name} is not served", param=name)
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema" or not isinstance(form.get("schema"), dict):
        raise Refused(
            400,
            "text.format is none of text, json_object, json_schema",
            param="text.format",
        )
    check_size("text.format", form["schema"])
    return form["schema"]


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """A tool as chats have it."""
    if tool.get("type") != "function":
        raise Refused(400, f"{where}: only tools of the type function are served", param=where)
    function = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": function}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _messages(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns that templates know for a text or items."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    turns: list[dict[str, Any]] = []
    for number, item in enumerate(given):
        where = f"input.{number}"
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") in ("user", "assistant", "system", "developer"):
            role = "system" if item["role"] == "developer" else item["role"]
            turns.append({"role": role, "content": _text(item.get("content"), where)})
        elif kind == "function_call" and isinstance(item.get("name"), str):
            function = {"name": item["name"], "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not turns or turns[-1]["role"] != "assistant":
                turns.append({"role": "assistant", "content": ""})
            turns[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            result = _text(item.get("output"), where)
            turns.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": result})
        else:
            raise Refused(400, f"{where}: an item of type {str(kind)[:40]!r} and role "
                          f"{str(item.get('role'))[:40]!r} is not served", param=where)  # fmt: skip
    return turns


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    kinds = ("input_text", "output_text", "text")
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str)
        for part in content
    ):
        return "\n".join(part["text"] for part in content)
    raise Refused(400, f"{where}: only text is served", param=where)


class _Items:
    """The items of one response, and the events that tell of them."""

    def __init__(self, body: ResponseRequest, service: Service) -> None:
        self._output: list[dict[str, Any]] = []
        self._is_open = False
        self._count = -1
        self._has_logprobs = bool(body.include)
        self._response = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": service.name,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The response when *answer* has ended."""
        calls = tuple(
            CallDelta(index, call.arguments, call.id, call.name)
            for index, call in enumerate(answer.calls)
        )
        for _ in self.of(Piece(None, text=answer.text, calls=calls)):
            pass
        *_, ended = self.end(answer)
        return dict(ended["response"])

    def event(self, kind: str, **facts: Any) -> dict[str, Any]:
        """One event, with its number."""
        self._count += 1
        return {"type": kind, "sequence_number": self._count, **facts}

    def of(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Events of one piece."""
        if self._count < 0:
            begun = self._response | {"status": "in_progress", "output": []}
            yield self.event("response.created", response=begun)
            yield self.event("response.in_progress", response=begun)
        if piece.text:
            if not self._is_open or self._output[-1]["type"] != "message":
                yield from self._open_message()
            part = self._output[-1]["content"][0]
            part["text"] += piece.text
            logprobs = [with_top(piece.described)] if piece.described else []
            yield self._part_event("delta", delta=piece.text, logprobs=logprobs)
        for call in piece.calls:
            if call.id:
                item = {"type": "function_call", "id": f"fc_{secrets.token_hex(12)}",
                        "call_id": call.id, "name": call.name, "arguments": ""}  # fmt: skip
                yield from self._open(item)
            if call.arguments:
                self._output[-1]["arguments"] += call.arguments
                yield self._item_event("function_call_arguments.delta", delta=call.arguments)

    def end(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """Events after the last piece."""
        if not self._output:
            yield from self._open_message()
        reason = answer.finish_reason
        status = {"stop": "completed", "cancelled": "cancelled"}.get(str(reason), "incomplete")
        if self._has_logprobs and self._output[-1]["type"] == "message":
            self._output[-1]["content"][0]["logprobs"] = [with_top(one) for one in answer.logprobs]
        yield from self._close("completed" if status == "completed" else "incomplete")
        stats = answer.stats
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ended = self._response | {
            "status": status,
            "incomplete_details": cut,
            "output": self._output,
            "usage": {
                "input_tokens": stats.prompt_tokens,
                "input_tokens_details": {"cached_tokens": stats.reused_tokens},
                "output_tokens": stats.tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": stats.prompt_tokens + stats.tokens,
            },
        }
        kind = "completed" if status == "completed" else "incomplete"
        yield self.event(f"response.{kind}", response=ended)

    def _open_message(self) -> Iterator[dict[str, Any]]:
        message = {"type": "message", "id": f"msg_{secrets.token_hex(12)}", "role": "assistant"}
        yield from self._open(message | {"content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._output[-1]["content"].append(part)
        yield self._item_event("content_part.added", content_index=0, part=dict(part))

    def _open(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close("completed")
        self._is_open = True
        self._output.append(item | {"status": "in_progress"})
        shown = self._output[-1] | ({"content": []} if "content" in item else {})
        at = len(self._output) - 1
        yield self.event("response.output_item.added", output_index=at, item=shown)

    def _close(self, status: str) -> Iterator[dict[str, Any]]:
        if not self._is_open:
            return
        self._is_open = False
        item = self._output[-1]
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            yield self._part_event("done", text=part["text"], logprobs=part["logprobs"])
            yield self._item_event("content_part.done", content_index=0, part=part)
        else:
            name, arguments = item["name"], item["arguments"]
            yield self._item_event("function_call_arguments.done", name=name, arguments=arguments)
        at = len(self._output) - 1
        yield self.event("response.output_item.done", output_index=at, item=item)

    def _item_event(self, kind: str, **facts: Any) -> dict[str, Any]:
        where = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        return self.event(f"response.{kind}", **where, **facts)

    def _part_event(self, kind: str, **facts: Any) -> dict[str, Any]:
        return self._item_event(f"output_text.{kind}", content_index=0, **facts)
