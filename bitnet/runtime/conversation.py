"""Text of a conversation in the model's chat template, and the reasoning part of its answers.

The marks around reasoning are in a table, selected by the text of the template. Some templates
write the opening mark at the end of the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bitnet.base.errors import Unsupported, UsageError
from bitnet.runtime.reasoning_budget import BudgetRules
from bitnet.runtime.request import ReasoningRules
from bitnet.runtime.request_checks import check_messages, reasoning_of
from bitnet.runtime.tool_calls import overlap
from bitnet.runtime.tool_detection import format_of
from bitnet.runtime.tools import read_tools
from bitnet.runtime.turns import Turns
from bitnet.tokenizer.chat import chat_template
from bitnet.tokenizer.template_facts import THINKING_SWITCHES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.runtime.request import Request
    from bitnet.runtime.tool_formats import CallFormat
    from bitnet.runtime.tools import Tools
    from bitnet.tokenizer import Tokenizer
    from bitnet.tokenizer.chat import ChatTemplate

_CHANNEL = "<|channel|>analysis<|message|>"
#: A text by which a template is recognized, and the opening and closing mark of its reasoning.
#: No mark has white space around it: a prompt is compared without that at its end.
_MARKS = (
    ("</think>", "<think>", "</think>"),
    ("[/THINK]", "[THINK]", "[/THINK]"),
    ("</seed:think>", "<seed:think>", "</seed:think>"),
    ("<|channel|>", _CHANNEL, "<|end|>"),
    ("</mm:think>", "<mm:think>", "</mm:think>"),  # MiniMax M3
    ("<think{}>", "<think:opensource>", "</think:opensource>"),  # Hunyuan 3
    ("open_tag('think')", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),  # Kimi K3
    ("<|channel>thought", "<|channel>thought", "<channel|>"),  # Gemma 4
    ("assistant<|think|>", "<|think|>", "<|end|>"),  # Solar
    ("assistant to=self<|message|>", "to=self<|message|>", "<|eom|>"),  # Muse Glimmer
    ("<|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B and A
    ("<|inner_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)


def conversation_text(
    tokenizer: Tokenizer, request: Request
) -> tuple[str, Tools | None, CallFormat | None]:
    """The messages of *request* in the model's chat template, up to where the answer begins.

    If the template does not support tools, they are described in the system message, and the
    calls and results of the conversation are written as text. A final message that is continued
    ends the text. Also returned are the functions that may be called (``None``: none), and the
    format of calls, or of messages with headers (``None``: the answer is text).
    """
    messages = request.messages or ()
    check_messages(messages)
    earlier = messages[:-1] if request.continue_final_message else messages
    text, tools, form = _text(tokenizer, request, earlier)
    if request.continue_final_message:
        text += render_beginning(tokenizer, text, messages[-1])
    return text, tools, form


def _text(
    tokenizer: Tokenizer, request: Request, messages: Sequence[Mapping[str, Any]]
) -> tuple[str, Tools | None, CallFormat | None]:
    """:func:`conversation_text` of *messages* alone, without one that is continued."""
    template = chat_template(tokenizer, tools=bool(request.tools))
    tools = None
    if request.tools:
        parallel = request.parallel_tool_calls
        tools = read_tools(request.tools, request.tool_choice, parallel=parallel)
    offered = None if tools is None else tools.offered
    variables = request.template_variables
    if offered is not None and not template.facts.tools:
        turns = Turns(template, messages, explained=offered, variables=variables)
        return template.render(turns.messages, variables=variables), tools, turns.format

    turns = Turns(template, messages, tools=offered, variables=variables)
    text = template.render(turns.messages, tools=offered, variables=variables)
    if tools is not None:
        return text, tools, format_of(template)
    return text, None, _format_of_text(template)


def _format_of_text(template: ChatTemplate) -> CallFormat | None:
    """Format of answers without calls; None if they are text and nothing else."""
    facts = template.facts
    if not (facts.tools or facts.calls):
        return None
    try:
        form = format_of(template)
    except UsageError:  # no format reads its calls
        return None
    return form if form.shapes_text else None


def thinking_variables(tokenizer: Tokenizer, thinking: bool) -> dict[str, Any]:
    """Variables by which the model's chat template lets it reason, or not."""
    # A template without a switch gets the most common one, which it ignores.
    switches = chat_template(tokenizer).facts.thinking_switches or THINKING_SWITCHES[:1]
    return dict.fromkeys(switches, thinking)


def render_beginning(tokenizer: Tokenizer, prompt: str, message: Mapping[str, Any]) -> str:
    """Text of *message*, the beginning of the answer to *prompt*, as the model has written it."""
    content = message.get("content") or ""
    reasoning = reasoning_of(message)
    marks = _marks_of(tokenizer)
    if marks is None:
        if reasoning and not content:
            name = "continue_final_message"
            raise UsageError(
                f"{name}: the last message is reasoning alone, for which the chat template of this "
                "model has no marks",
                field=name,
            )
        return content
    opening, closing = marks
    if opening == _CHANNEL:
        raise Unsupported("answers of this model are written in channels and cannot be continued")
    is_open = prompt.rstrip().endswith(opening)
    if not (reasoning or is_open):
        return content
    begun = ("" if is_open else f"{opening}\n") + reasoning
    return f"{begun}\n{closing}\n\n{content}" if content else begun


def _marks_of(tokenizer: Tokenizer) -> list[str] | None:
    """Opening and closing mark of reasoning in the model's template; None without any."""
    template = tokenizer.chat_template or ""
    return next((marks for sign, *marks in _MARKS if sign in template), None)


def effort_variables(tokenizer: Tokenizer, effort: str | None) -> dict[str, Any]:
    """Variables of the model's chat template for an *effort*; none if that changes nothing.

    The effort ``none`` turns reasoning off where the template has a switch and no efforts.
    """
    if not effort or not tokenizer.chat_template:
        return {}
    facts = chat_template(tokenizer).facts
    if facts.effort:
        return {facts.effort: effort}
    if effort == "none":
        return dict.fromkeys(facts.thinking_switches, False)
    return {}


def reasoning_rules(
    tokenizer: Tokenizer, prompt: str, continued: Mapping[str, Any] | None = None
) -> ReasoningRules | None:
    """Rules for the reasoning in answers to *prompt*; ``None`` if the template has none.

    *continued* is the message that is continued, if any.
    """
    marks = _marks_of(tokenizer)
    if marks is None:
        return None
    opening, closing = marks
    is_inside = prompt.rstrip().endswith(opening)
    if continued is not None:
        is_inside = not continued.get("content")
    ids = [token for mark in marks for token in tokenizer.encode(mark, add_special=False)]
    special = set(tokenizer.special_ids).intersection(ids)
    texts = {token: tokenizer.token_bytes(token).decode("utf-8", "replace") for token in special}
    return ReasoningRules(opening, closing, is_inside, texts)


def budget_rules(
    tokenizer: Tokenizer, rules: ReasoningRules, most: int, message: str = ""
) -> BudgetRules:
    """Rules that end reasoning after *most* tokens, with *message* before the closing mark.

    *rules* have the marks; a closing mark that the tokenizer does not spell is refused.
    """
    forced = tokenizer.encode(message, add_special=False) if message else []
    end = tokenizer.encode(rules.closing, add_special=False)
    if b"".join(map(tokenizer.token_bytes, end)).strip() != rules.closing.strip().encode():
        raise UsageError(
            "the reasoning of this model cannot be limited: its tokenizer does not write "
            f"{rules.closing!r}",
            field="thinking_budget",
        )
    return BudgetRules(
        most,
        rules.opening.strip().encode(),
        rules.closing.strip().encode(),
        (*forced, *end),
        rules.begun,
        tokenizer.token_bytes,
    )


class ReasoningReader:
    """Splits the text of an answer into reasoning and what follows it."""

    def __init__(self, rules: ReasoningRules) -> None:
        self._rules = rules
        # False until enough of the answer is known to tell whether it begins with reasoning
        self._is_decided = rules.begun
        self.is_inside = rules.begun  # True if the text that comes next is reasoning
        self._fresh = True  # nothing of the current part has been passed on
        self._held = ""  # text that is not passed on yet
        self._has_reasoning = False  # some reasoning has been passed on
        self._between = ""  # text between the last part of the reasoning and the next one

    def read(self, text: str, *, final: bool = False) -> tuple[str, str]:
        """Reasoning and text that are certain after the next part, *text*; all if it is *final*."""
        self._held += text
        opening = self._rules.opening
        if not self._is_decided:
            # The answer may begin with either mark, or with neither.
            begin = self._held.lstrip()
            closing = self._rules.closing
            if not final and any(
                len(begin) < len(mark) and mark.startswith(begin) for mark in (opening, closing)
            ):
                return "", ""  # it may become a mark
            self._is_decided = True
            self.is_inside = begin.startswith(opening)
            # A closing mark at the beginning ends reasoning of no words.
            mark = opening if self.is_inside else closing
            # An answer without reasoning keeps its first spaces.
            self._fresh = begin.startswith(mark)
            if self._fresh:
                self._held = begin.removeprefix(mark)
        parts = {True: "", False: ""}
        mark_found = "more"  # any text: the first pass of the loop needs no mark before it
        while mark_found:
            inside = self.is_inside
            # gpt-oss's channel may come again.
            mark = ""
            if inside:
                mark = self._rules.closing
            elif opening == _CHANNEL:
                mark = opening
            before, mark_found, after = self._held.partition(mark) if mark else (self._held, "", "")
            # Hold back what may begin a mark, and in reasoning the spaces before it.
            keep = 0 if mark_found or final or not mark else overlap(before, mark)
            part = before[: len(before) - keep]
            if inside:
                part = part.rstrip()
            self._held = after if mark_found else before[len(part) :]
            if self._fresh:
                part = part.lstrip()
            if part and inside:
                part = self._between + part
                self._between = ""
                self._has_reasoning = True
            parts[inside] += part
            self._fresh = self._fresh and not part
            if mark_found:
                self.is_inside = not inside
                self._fresh = True
                if not inside and self._has_reasoning:
                    self._between = "\n\n"
        return parts[True], parts[False]
