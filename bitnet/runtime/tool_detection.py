"""The format of calls in a chat template, determined by reading back a call that it writes."""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bitnet.base.errors import BitnetError, UsageError
from bitnet.runtime.tool_calls import call_reader, write_calls
from bitnet.runtime.tool_formats import FORMATS, GEMMA, HERMES, JSON, CallRules
from bitnet.tokenizer.template_facts import mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.runtime.tool_formats import CallFormat
    from bitnet.tokenizer.chat import ChatTemplate, Message

logger = logging.getLogger(__name__)

_NAME = "probe_tool"
_VALUE = mark(1)
_OTHER_VALUE = mark(2)
_TEXT = {"type": "string", "description": "probe"}
# Two arguments, because some formats differ only in what is between arguments.
_ARGUMENTS = {"probe_a": _VALUE, "probe_b": _OTHER_VALUE}
_SCHEMA = {
    "type": "object",
    "properties": dict.fromkeys(_ARGUMENTS, _TEXT),
    "required": [*_ARGUMENTS],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "probe", "parameters": _SCHEMA},
}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)},
}
_QUESTION: Message = {"role": "user", "content": "probe"}
_TURN: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}


def format_of(template: ChatTemplate) -> CallFormat:
    """Format of the calls that a model with *template* writes.

    It is the one in which the template's own text of a call is read back. A template that writes
    no calls is recognized by its words, and one without tools gets the common format. If no format
    fits the calls of a template that lists functions, tools are refused.
    """
    facts = template.facts
    if not (facts.tools or facts.calls):
        return format_without_tools(template.text)
    named = form_named_in(template.text)
    if facts.calls:
        form = format_of_calls(template)
        if form is not None:
            return form
        if not facts.tools:
            return format_without_tools(template.text)
        if named is JSON:
            raise UsageError(
                f"tools: the calls that the chat template of {template.source} writes have a form"
                " that is unknown here",
                hint="leave tools out, or name another template with --chat-template FILE",
                field="tools",
            )
    return named


def format_without_tools(template: str) -> CallFormat:
    """Format of calls for a model whose *template* does not support tools."""
    return GEMMA if "<start_of_turn>" in template else HERMES


def form_named_in(template: str) -> CallFormat:
    """The format whose words are in the source of a *template*; plain JSON if there are none."""
    return next(form for signs, form in FORMATS if all(sign in template for sign in signs))


def turn_text(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> tuple[str, str]:
    """The prompt and the text of the last of *messages*, an answer, as *template* writes them.

    Some templates write an answer otherwise than the prompt begins it; the prompt then ends where
    they first differ. The text ends before the end mark of the message, a token of its own.
    """
    prompt = template.render(messages[:-1], tools=tools)
    conversation = template.render(messages, tools=tools, add_generation_prompt=False)
    length = next(
        (
            at
            for at, (first, second) in enumerate(zip(prompt, conversation, strict=False))
            if first != second
        ),
        min(len(prompt), len(conversation)),
    )
    mark_begin = conversation.rfind("<", 0, length)
    if mark_begin >= 0 and ">" not in conversation[mark_begin:length]:  # they differ within a mark
        length = mark_begin

    plain: Message = {"role": "assistant", "content": _VALUE}
    with_text = template.render([*messages[:-1], plain], tools=tools, add_generation_prompt=False)
    end = with_text.rpartition(_VALUE)[2]
    if len(conversation) >= length + len(end):
        conversation = conversation.removesuffix(end)
    return conversation[:length], conversation[length:]


def format_of_calls(template: ChatTemplate) -> CallFormat | None:
    """The format in which *template* writes calls; None if no format reads them back."""
    tools = [_TOOL] if template.facts.tools else None
    try:
        prompt, text = turn_text(template, [_QUESTION, _TURN], tools)
    except BitnetError as error:
        logger.debug("%s writes no call without a result: %s", template.source, error)
        return None
    return _format_in(prompt, text)


@lru_cache(maxsize=64)
def _format_in(prompt: str, text: str) -> CallFormat | None:
    """The format that reads the probed call in *text*, an answer to *prompt*; None if none does.

    One that also writes the call exactly so comes first.
    """
    forms = [form for _, form in FORMATS]
    exact = [form for form in forms if _is_written(form, prompt, text)]
    return next((form for form in (*exact, *forms) if _reads(form, prompt, text)), None)


def _is_written(form: CallFormat, prompt: str, text: str) -> bool:
    """True if the probed call is in *text* exactly as *form* writes it."""
    written = write_calls(form, [_CALL])
    return written.strip() in opening_at_end(form, prompt) + text


def opening_at_end(form: CallFormat, prompt: str) -> str:
    """The mark of a block of calls in *form* with which *prompt* ends; empty if it does not."""
    return form.marker if form.marker and prompt.endswith(form.marker) else ""


def _reads(form: CallFormat, prompt: str, text: str) -> bool:
    """True if *form* finds the probed call, and nothing else, in *text*."""
    rules = CallRules(form, {_NAME: _SCHEMA}, opening_in_prompt=opening_at_end(form, prompt))
    _, deltas = call_reader(rules).read(text, final=True)
    calls = [(delta.name, delta.arguments) for delta in deltas]
    try:
        return [(name, json.loads(each)) for name, each in calls] == [(_NAME, _ARGUMENTS)]
    except ValueError:
        return False
