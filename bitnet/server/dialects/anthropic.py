"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``.

Names and events are those of docs.anthropic.com/en/api/messages and .../messages-streaming.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from bitnet.server.models import service_of
from bitnet.server.prompts import check_size, made, prepared, sequences_of
from bitnet.server.refusals import Refused
from bitnet.server.shapes import MAX_MESSAGES, MAX_STOPS, Message, Shape
from bitnet.server.streams import NAMED, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bitnet.runtime.answer import Answer
    from bitnet.runtime.piece import Piece
    from bitnet.runtime.request import Request as ModelRequest
    from bitnet.runtime.sequence import Sequence
    from bitnet.server.service import Service

router = APIRouter(tags=["Anthropic"])

_UNSERVED = ("container", "context_management", "mcp_servers")
_STOPS = {"length": "max_tokens", "context": "model_context_window_exceeded"}
_NAMES = {"stop": "stop_sequences", "json_schema": "output_format"}


class CountRequest(Shape):
    """``/v1/messages/count_tokens``: a conversation with its instructions and tools."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = Field(None, description="only the type disabled")
    output_config: dict[str, Any] | None = Field(None, description="only format, a JSON schema")
    output_format: dict[str, Any] | None = Field(None, description="a JSON schema")
    cache_control: dict[str, Any] | None = None
    container: str | dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None


class MessagesRequest(CountRequest):
    """``/v1/messages``."""

    max_tokens: int
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    # Fields without effect on the answer.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    user_profile_id: str | None = None


@router.post("/v1/messages", summary="The next message of a conversation, as Anthropic has it")
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer in the model's own chat template; ``stream`` sends Anthropic's events."""
    service = await service_of(request, body.model)
    choice = (body.tool_choice or {}).get("type")
    exchange = Exchange(
        service,
        request,
        _sequences,
        body,
        compiles=choice in ("any", "tool") or bool(_schema(body)),
    )
    head = {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": service.name,
    }
    if not body.stream:
        (answer,) = await exchange.collect()
        return JSONResponse(head | _reply(answer))
    blocks = _Blocks(head)

    def last(answers: list[Answer]) -> Iterator[Any]:
        yield from blocks.end(answers[0])

    return await exchange.stream(blocks.of, last, wire=NAMED)


@router.post("/v1/messages/count_tokens", summary="The tokens of a conversation")
async def count_tokens(body: CountRequest, request: Request) -> dict[str, int]:
    """Number of tokens in the prompt of the same request to ``/v1/messages``."""
    service = await service_of(request, body.model)
    with service.worker.place():
        return {
            "input_tokens": await service.worker.prepared(
                lambda: len(prepared(_translated(body), service)[0])
            )
        }


def _sequences(body: MessagesRequest, service: Service) -> list[Sequence]:
    given = {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p,
    }
    translated = _translated(body, **given)
    return sequences_of(translated, service, tokens=translated.max_tokens)


def _translated(body: CountRequest, **given: Any) -> ModelRequest:
    """Request for *body*, without a limit on the length of the answer.

    Raises:
        Refused: a part of it is not supported.
    """
    for name in _UNSERVED:
        if getattr(body, name):
            raise Refused(400, f"{name} is not served", param=name)
    if (body.thinking or {}).get("type", "disabled") != "disabled":
        raise Refused(400, "thinking: only the type disabled is served", param="thinking")
    if body.messages[-1].role == "assistant":
        raise Refused(
            400, "messages: the last one is the assistant's, which is not continued",
            param="messages",
        )  # fmt: skip
    check_size("tools", body.tools)
    told = [{"role": "system", "content": _texts(body.system, "system")}] if body.system else []
    for number, message in enumerate(body.messages):
        told += _turns(message, f"messages.{number}")
    choice = body.tool_choice or {}
    kinds = {"auto": "auto", "any": "required", "none": "none", None: None}
    kind = choice.get("type")
    if kind == "tool":
        tool_choice: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in kinds:
        tool_choice = kinds[kind]
    else:
        raise Refused(400, "tool_choice.type is not auto, any, tool or none", param="tool_choice")
    tools = [_tool(tool, f"tools.{number}") for number, tool in enumerate(body.tools or ())]
    fields = {
        "messages": told,
        "tools": tools or None,
        "tool_choice": tool_choice,
        "parallel_tool_calls": not choice.get("disable_parallel_tool_use", False),
        "json_schema": _schema(body),
    }
    return made(fields | given, names=_NAMES, temperature=1.0)


def _schema(body: CountRequest) -> Any:
    """Schema of the answer; ``None``: none."""
    config = body.output_config or {}
    if unknown := next((name for name in config if name != "format"), None):
        name = f"output_config.{unknown[:80]}"
        raise Refused(400, f"{name} is not served", param=name)
    form = body.output_format or config.get("format")
    if form is None:
        return None
    is_schema = isinstance(form, dict) and form.get("type") == "json_schema"
    if not is_schema or not isinstance(form.get("schema"), dict):
        raise Refused(400, "output_format: expected a json_schema", param="output_format")
    check_size("output_format", form["schema"])
    return form["schema"]


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    if tool.get("type", "custom") != "custom":
        raise Refused(400, f"{where}: tools of Anthropic's own are not served", param=where)
    function = {name: tool[name] for name in ("name", "description") if name in tool}
    return {
        "type": "function",
        "function": {**function, "parameters": tool.get("input_schema")},
    }


def _turns(message: Message, where: str) -> list[dict[str, Any]]:
    """Turns for chat templates from one of Anthropic's; tool results become turns of their own."""
    if message.role not in ("user", "assistant"):
        raise Refused(400, f"{where}.role is neither user nor assistant", param=f"{where}.role")
    if not isinstance(message.content, list):
        return [{"role": message.role, "content": message.content}]
    turns: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(message.content):
        at = f"{where}.content.{number}"
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": block["name"], "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = _texts(block.get("content"), at)
            turns.append(
                {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
            )
        else:
            raise Refused(400, f"{at}: a block of type {str(kind)[:40]!r} is not served", param=at)
    if texts or calls or not turns:
        turn: dict[str, Any] = {"role": message.role, "content": "\n".join(texts)}
        turns.append(turn | {"tool_calls": calls} if calls else turn)
    return turns


def _texts(content: Any, where: str) -> str:
    """The text of *content*, a text or a list of blocks of text."""
    if isinstance(content, str) or content is None:
        return content or ""
    if isinstance(content, list):
        texts = [block.get("text") if isinstance(block, dict) else None for block in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    raise Refused(400, f"{where}: only text is served", param=where)


def _reply(answer: Answer) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if answer.text or not answer.calls:
        content.append({"type": "text", "text": answer.text})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": given}
        for call in answer.calls
        if (given := call.parsed()) is not None
    ]
    return {"content": content, **_ended(answer), "usage": _usage(answer)}


def _ended(answer: Answer) -> dict[str, Any]:
    reason = answer.finish_reason
    said = _STOPS.get(str(reason), str(reason))
    if reason == "stop":
        said = "stop_sequence" if answer.stop_text else "tool_use" if answer.calls else "end_turn"
    return {"stop_reason": said, "stop_sequence": answer.stop_text or None}


def _usage(answer: Answer) -> dict[str, int]:
    stats = answer.stats
    return {
        "input_tokens": stats.prompt_tokens - stats.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.reused_tokens,
        "output_tokens": stats.tokens,
    }


class _Blocks:
    """Events of an answer: blocks of text and of calls, one after the other."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head
        self._begun = False
        self._index = -1
        self._kind = ""  # of the open block

    def of(self, _index: int, piece: Piece, answer: Answer) -> Iterator[dict[str, Any]]:
        """Events of one piece."""
        if not self._begun:
            self._begun = True
            empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
            usage = _usage(answer) | {"output_tokens": 0}
            yield {"type": "message_start", "message": self._head | empty | {"usage": usage}}
        if piece.text:
            if self._kind != "text":
                yield from self._open({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})
        for call in piece.calls:
            if call.id:
                block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
                yield from self._open(block)
            if call.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def end(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """Events after the last piece."""
        yield from self._close()
        yield {"type": "message_delta", "delta": _ended(answer), "usage": _usage(answer)}
        yield {"type": "message_stop"}

    def _open(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._index += 1
        self._kind = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._kind:
            self._kind = ""
            yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
