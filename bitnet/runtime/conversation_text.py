"""Text of a conversation in the model's chat template, with the functions it may call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import UsageError
from bitnet.runtime.reasoning import render_beginning
from bitnet.runtime.request import check_messages
from bitnet.runtime.tool_formats import (
    HARMONY,
    HERMES,
    explain_tools,
    format_of,
    render_calls_as_text,
    without_branch,
)
from bitnet.runtime.tools import read_tools
from bitnet.tokenizer.chat import chat_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bitnet.runtime.request import Request
    from bitnet.runtime.tool_formats import CallFormat
    from bitnet.runtime.tools import Tools
    from bitnet.tokenizer import Tokenizer

__all__ = ["conversation_text"]


def conversation_text(
    tokenizer: Tokenizer, request: Request
) -> tuple[str, Tools | None, CallFormat]:
    """The messages of *request* in the model's chat template, up to where the answer begins.

    If the template does not support tools, they are described in the system message, and the
    calls and results of the conversation are written as text. A final message that is continued
    ends the text.

    Returns:
        The text, the functions that may be called (``None``: none) and the format of calls.

    Raises:
        Unsupported: the model has no chat template, or its format of calls is unknown.
        UsageError: the template does not accept this conversation.
    """
    messages = request.messages or ()
    if not all(isinstance(message, Mapping) for message in messages):
        raise UsageError(
            "a conversation is a list of messages, each a mapping",
            hint="model.chat([{'role': 'user', 'content': 'Hello'}])",
        )
    check_messages(messages)
    if not request.continue_final_message:
        return _text(tokenizer, request, messages)
    *earlier, last = messages
    text, tools, form = _text(tokenizer, request, earlier)
    return text + render_beginning(tokenizer, text, last), tools, form


def _text(
    tokenizer: Tokenizer, request: Request, messages: Sequence[Mapping[str, Any]]
) -> tuple[str, Tools | None, CallFormat]:
    template = chat_template(tokenizer)
    tools = read_tools(request.tools, request.tool_choice, parallel=request.parallel_tool_calls)

    def render(
        messages: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        return template.render(
            [dict(message) for message in messages],
            tools=given,
            variables=request.template_variables,
        )

    source = tokenizer.chat_template or ""
    spoken = any(one["role"] == "tool" or one.get("tool_calls") for one in messages)
    if tools is None:
        if spoken and "tool" not in source:
            form = without_branch(source)
            return render(render_calls_as_text(form, messages, "")), None, form
        return render(messages), None, HARMONY if "<|channel|>" in source else HERMES
    if "tool" in source:
        text = render(messages, tools.given)
        if text != render(messages):
            return text, tools, format_of(source)
    form = without_branch(source)
    prompt = explain_tools(form, tools.given)
    try:
        return render(render_calls_as_text(form, messages, prompt)), tools, form
    except UsageError:  # some templates do not accept a system message either
        return render(render_calls_as_text(form, messages, prompt, system=False)), tools, form
