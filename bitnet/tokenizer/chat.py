"""Chat templates: render a conversation as the text that the model was trained to continue.

Templates are programs from the model's file and run in a process of their own
(:mod:`bitnet.tokenizer.chat_process`), which is ended at its limits of time and memory.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, InvalidFormat, Unsupported
from bitnet.tokenizer.chat_process import template_process
from bitnet.tokenizer.limits import TEMPLATE_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bitnet.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "chat_template"]

Message = dict[str, Any]

_PROBE = "p\u2063r\u2063o\u2063b\u2063e"  # invisible separators, which no template contains


def chat_template(tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of a tokenizer.

    Raises:
        Unsupported: it has none.
        InvalidFormat: it is not a Jinja template.
    """
    if not tokenizer.chat_template:
        raise Unsupported(
            f"the tokenizer {tokenizer.source} has no chat template",
            hint="send a plain prompt, or name a template with --chat-template FILE",
        )

    def text(id: int | None) -> str:
        return "" if id is None else tokenizer.token_bytes(id).decode("utf-8", "replace")

    return ChatTemplate(
        tokenizer.chat_template,
        bos_token=text(tokenizer.bos_id),
        eos_token=text(tokenizer.eos_id),
        source=tokenizer.chat_template_source,
    )


class ChatTemplate:
    """A compiled template.

    Args:
        template: Jinja source.
        bos_token: text of the BOS token, as the template's variable of that name.
        eos_token: text of the EOS token, likewise.
        source: the tokenizer's name, for messages.
        now: the clock behind ``strftime_now``.

    Raises:
        InvalidFormat: the template has a syntax error; names the line.
    """

    def __init__(
        self,
        template: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        source: str = "the model",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._now = now
        self._template = template
        self._tokens = {
            name: text
            for name, text in (("bos_token", bos_token), ("eos_token", eos_token))
            if text
        }
        if len(template) > TEMPLATE_CHARS:
            raise InvalidFormat(
                f"the chat template of {source} has {len(template):,} characters, at most"
                f" {TEMPLATE_CHARS:,} are supported",
                hint="name another template with --chat-template FILE",
            )
        template_process().render(template, None, now="", source=source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: ``{"role": ..., "content": ...}``, oldest first; content is a text, or a
                list of ``{"type": "text", "text": ...}`` parts; an assistant's message that
                calls tools needs none. Arguments of a call are a JSON text or the object.
            tools: JSON schemas of functions the model may call.
            documents: ``{"title": ..., "text": ...}`` to answer from.
            add_generation_prompt: end with the beginning of the assistant's turn.
            variables: additional variables for the template, such as ``enable_thinking``.

        Raises:
            UsageError: the template does not accept this conversation.
            Unsupported: a message contains more than text.
            InvalidFormat: the template fails, or exceeds its bounds.
        """
        return self._render(
            [self._adapt(message) for message in messages],
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            **(variables or {}),
        )

    def _render(self, messages: Sequence[Message], **variables: Any) -> str:
        return template_process().render(
            self._template,
            {
                "messages": messages,
                "tools": None,
                "documents": None,
                **self._tokens,
                **variables,
            },
            now=self._now().isoformat(),
            source=self.source,
        )

    def _adapt(self, message: Message) -> Message:
        """*message* with content and calls in the form that the template understands."""
        suited = dict(message)
        if isinstance(calls := message.get("tool_calls"), list) and self._takes_objects:
            suited["tool_calls"] = [_with_object(call) for call in calls]
        content = message.get("content")
        if content is None and message.get("role") == "assistant":
            content = suited["content"] = ""
        # gpt-oss's name, which its template takes where a message has no other text.
        if not content and "message.thinking" in self._template and "reasoning_content" in message:
            suited.setdefault("thinking", message["reasoning_content"])
        if isinstance(content, list):
            flat = _flatten(content)  # refuses content other than text
            suited["content"] = content if self._takes_parts else flat
        elif isinstance(content, str) and not self._takes_text:
            suited["content"] = [{"type": "text", "text": content}]
        return suited

    @cached_property
    def _takes_text(self) -> bool:
        """True if content given as a text reaches the output, or if neither form does."""
        return self._shows(_PROBE) or not self._takes_parts

    @cached_property
    def _takes_parts(self) -> bool:
        """True if content given as a list of parts reaches the output as text."""
        return self._shows([{"type": "text", "text": _PROBE}])

    @cached_property
    def _takes_objects(self) -> bool:
        """True if arguments of a call must be an object to be written as JSON."""
        text = json.dumps({_PROBE: 1}, ensure_ascii=False)
        return not self._writes(text, text) and self._writes({_PROBE: 1}, text)

    def _writes(self, arguments: object, text: str) -> bool:
        function = {"name": "probe", "arguments": arguments}
        calls = [{"id": "call00001", "type": "function", "function": function}]
        conversation: list[Message] = [
            {"role": "user", "content": "probe"},
            {"role": "assistant", "content": "", "tool_calls": calls},
        ]
        try:
            return text in self._render(conversation, add_generation_prompt=False)
        except BitnetError:
            return False

    def _shows(self, content: object) -> bool:
        try:
            text = self._render([{"role": "user", "content": content}], add_generation_prompt=True)
        except BitnetError:
            return False
        return _PROBE in text and "'type'" not in text and '"type"' not in text


def _with_object(call: Any) -> Any:
    """*call* of a tool with its JSON arguments as an object, if they are one."""
    try:
        function = call["function"]
        arguments = json.loads(function["arguments"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _flatten(parts: Sequence[Any]) -> str:
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Unsupported(f"content of type {kind!r} is not supported; only text is")
    return "\n".join(texts)
