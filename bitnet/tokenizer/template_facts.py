"""Facts about a chat template: which parts of a conversation it writes, and in which form.

A template is a program, and its text does not tell what it does with a message. It is run on short
conversations whose contents are marks, and a part is written if its mark is in the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Message = dict[str, Any]
    #: Text of messages with variables; None if the template fails or refuses them.
    Attempt = Callable[..., str | None]

#: Names under which templates look for the reasoning of a message; ``parts``: in its content.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning", "parts")
#: Variables with which templates let the model reason or not.
THINKING_SWITCHES = ("enable_thinking", "thinking")
#: Variables that say how much the model reasons.
EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_SHORT_ID = "call00001"  # the nine letters and digits that Mistral's templates demand
_LONG_ID = "call_00000000000000000000001"


@dataclass(frozen=True)
class TemplateFacts:
    """Parts of a conversation that a chat template writes, and the form in which it takes them."""

    takes_text: bool  # content may be a text
    takes_parts: bool  # content may be a list of ``{"type": "text", "text": ...}``
    system: bool  # a system message at the beginning is written
    developer: bool  # the role ``developer`` is known, not only copied
    later_system: bool  # system messages are written wherever they are
    repeated_user: bool  # two messages of the user may follow each other
    tools: bool  # functions that may be called are written
    needs_list: bool  # the list of functions must be a list, if only an empty one
    calls: bool  # earlier calls are written
    results: bool  # results of calls are written
    several_calls: bool  # a message may have several calls
    text_beside_calls: bool  # the text of a message with calls is written
    arguments: Literal["text", "object"]  # form of the arguments of a call
    short_ids: bool  # calls need ids of nine letters and digits
    reasoning: str  # of REASONING_FIELDS, the one for reasoning before a call; empty: none
    reasoning_beside_text: bool  # a message with calls may have reasoning and text
    thinking_switches: tuple[str, ...]  # of THINKING_SWITCHES, those that change the text
    effort: str  # of EFFORT_VARIABLES, the one that changes the text; empty: none
    generation_prompt: bool  # a text announces the answer


def probe(attempt: Attempt) -> TemplateFacts:
    """Facts about the template behind *attempt*, which renders messages."""
    return _Probes(attempt).facts()


def mark(number: int) -> str:
    """A word that no template contains, which it can neither trim nor escape."""
    return f"Zq{number:05d}Zq"


def has_marks(text: str | None, marks: Sequence[str]) -> bool:
    """True if all *marks* are in *text*."""
    return text is not None and all(each in text for each in marks)


def reasoning_as_parts(reasoning: str, content: str) -> list[dict[str, str]]:
    """*content* with its *reasoning* as Mistral's templates take them."""
    parts = [{"type": "thinking", "thinking": reasoning}]
    return [*parts, {"type": "text", "text": content}] if content else parts


_USER, _SYSTEM, _ANSWER, _LATER, _SECOND, _RESULT, _REASONING, _TOOL, _PROPERTY = map(
    mark, range(9)
)
_KEY = mark(9)
_VALUE = mark(10)
_OTHER_VALUE = mark(11)
_OTHER_RESULT = mark(12)
_PROBED_TOOL = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "probe",
        "parameters": {
            "type": "object",
            "properties": {_PROPERTY: {"type": "string", "description": "probe"}},
            "required": [_PROPERTY],
        },
    },
}


class _Probes:
    """Short conversations, rendered by one template."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._tools: list[dict[str, Any]] | None = None
        self._arguments: Literal["text", "object"] = "text"
        self._id = _SHORT_ID
        self._switches: dict[str, Any] = {}

    def facts(self) -> TemplateFacts:
        """The result of all probes."""
        self._takes_parts = self._writes_content([{"type": "text", "text": _USER}])
        # A template that writes neither form gets the common one.
        self._takes_text = self._writes_content(_USER) or not self._takes_parts
        if self._render(self._user()) is None:
            self._tools = []  # some templates fail without a list
        system = self._shows([_SYSTEM], self._message("system", _SYSTEM), self._user())

        offered = self._render(self._user(), tools=[_PROBED_TOOL])
        tools = has_marks(offered, [_TOOL, _PROPERTY])
        needs_list = self._tools is not None
        if tools:
            self._tools = [_PROBED_TOOL]
        calls = self._find_form_of_calls()
        switches = tuple(filter(self._is_switch, THINKING_SWITCHES))
        self._switches = dict.fromkeys(switches, True)
        reasoning = self._find_reasoning() if calls else ""
        return TemplateFacts(
            takes_text=self._takes_text,
            takes_parts=self._takes_parts,
            system=system,
            developer=self._knows_developer(),
            later_system=system and self._writes_later_system(),
            repeated_user=self._shows([_USER, _SECOND], self._user(), self._user(_SECOND)),
            tools=tools,
            needs_list=needs_list,
            calls=calls,
            results=self._writes_results(knows_tools=tools or calls),
            several_calls=calls and self._writes_several_calls(),
            text_beside_calls=calls and self._shows([_ANSWER], *self._loop(content=_ANSWER)),
            arguments=self._arguments,
            short_ids=self._id == _SHORT_ID and calls and not self._takes_id(_LONG_ID),
            reasoning=reasoning,
            reasoning_beside_text=bool(reasoning) and self._writes_reasoning(reasoning, _ANSWER),
            thinking_switches=switches,
            effort=next(filter(self._is_effort, EFFORT_VARIABLES), ""),
            generation_prompt=self._render(self._user())
            != self._render(self._user(), is_open=False),
        )

    def _writes_content(self, content: object) -> bool:
        text = self._attempt([{"role": "user", "content": content}], True)
        return has_marks(text, [_USER]) and "'type'" not in text and '"type"' not in text  # type: ignore[operator]

    def _announces_the_answer(self) -> bool:
        return self._render(self._user()) != self._render(self._user(), is_open=False)

    def _knows_developer(self) -> bool:
        text = self._render(self._message("developer", _SYSTEM), self._user())
        if not has_marks(text, [_SYSTEM]):
            return False
        # A template that copies every role has not been trained on this one.
        return not self._is_copy(text, "developer", self._message(_LATER, _SYSTEM), self._user())

    def _is_copy(self, text: str | None, role: str, *messages: Message) -> bool:
        """True if *messages* with an unknown role are *text* but for the name of the *role*."""
        unknown = self._render(*messages)
        return unknown is not None and text == unknown.replace(_LATER, role)

    def _writes_later_system(self) -> bool:
        first = self._message("system", _SYSTEM)
        second = self._message("system", _LATER)
        answer = self._message("assistant", _ANSWER)
        marks = [_SYSTEM, _LATER, _ANSWER, _SECOND]
        between = (first, self._user(), answer, second, self._user(_SECOND))
        return self._shows(marks, *between) and self._shows(
            [_SYSTEM, _LATER], first, second, self._user()
        )

    def _find_form_of_calls(self) -> bool:
        """True if calls are written; sets the form of their arguments."""
        written = {}
        forms: tuple[Literal["text", "object"], ...] = ("text", "object")
        for form in forms:
            self._arguments = form
            text = self._render(*self._loop())
            if has_marks(text, [_KEY, _VALUE]):
                written[form] = text or ""
        self._arguments = "text"
        if "object" not in written:
            return "text" in written
        if "text" not in written:
            self._arguments = "object"
            return True
        # Python's notation of an object is not JSON: the template expects a text. A text that
        # is written otherwise than the object was encoded twice, or put between other braces.
        if str({_KEY: _VALUE}) not in written["object"] and written["text"] != written["object"]:
            self._arguments = "object"
        return True

    def _writes_results(self, *, knows_tools: bool) -> bool:
        user, call, result = self._loop()
        text = self._render(user, call, result)
        if not has_marks(text, [_RESULT]):
            return False
        return knows_tools or not self._is_copy(text, "tool", user, call, result | {"role": _LATER})

    def _writes_several_calls(self) -> bool:
        message = self._call()
        message["tool_calls"].append(self._one_call(_OTHER_VALUE, "call00002"))
        results = (self._result(), self._result(_OTHER_RESULT, "call00002"))
        return self._shows(
            [_VALUE, _OTHER_VALUE, _RESULT, _OTHER_RESULT], self._user(), message, *results
        )

    def _takes_id(self, name: str) -> bool:
        before = self._id
        self._id = name
        is_written = self._shows([_VALUE], *self._loop())
        self._id = before
        return is_written

    def _find_reasoning(self) -> str:
        return next((name for name in REASONING_FIELDS if self._writes_reasoning(name)), "")

    def _writes_reasoning(self, name: str, content: str = "") -> bool:
        user, call, result = self._loop(content=content)
        if name == "parts":
            call["content"] = reasoning_as_parts(_REASONING, content)
        else:
            call[name] = _REASONING
        text = self._render(user, call, result, **self._switches)
        if not has_marks(text, [_REASONING, *filter(None, [content])]):
            return False
        # A template that writes a list of parts as such does not know this kind.
        return name != "parts" or all(f"{quote}thinking{quote}" not in str(text) for quote in "'\"")

    def _is_switch(self, name: str) -> bool:
        return self._differs(name, True, False)

    def _is_effort(self, name: str) -> bool:
        return self._differs(name, "low", "high")

    def _differs(self, name: str, first: Any, second: Any) -> bool:
        variables: list[dict[str, Any]] = [{name: value} for value in (first, second)]
        texts = [self._render(self._user(), **each) for each in variables]
        return texts[0] != texts[1] and None not in texts

    # --- messages ---------------------------------------------------------------------------------

    def _message(self, role: str, text: str) -> Message:
        is_part = text and not self._takes_text
        return {"role": role, "content": [{"type": "text", "text": text}] if is_part else text}

    def _user(self, text: str = _USER) -> Message:
        return self._message("user", text)

    def _one_call(self, value: str, name: str) -> Message:
        arguments: Any = {_KEY: value}
        if self._arguments == "text":
            arguments = json.dumps(arguments)
        return {"id": name, "type": "function", "function": {"name": _TOOL, "arguments": arguments}}

    def _call(self, content: str = "") -> Message:
        message = self._message("assistant", content)
        return message | {"tool_calls": [self._one_call(_VALUE, self._id)]}

    def _result(self, text: str = _RESULT, name: str = "") -> Message:
        named = {"tool_call_id": name or self._id, "name": _TOOL}
        return self._message("tool", text) | named

    def _loop(self, *, content: str = "") -> tuple[Message, Message, Message]:
        """A question, a call beside *content*, and its result."""
        return self._user(), self._call(content), self._result()

    def _shows(self, marks: Sequence[str], *messages: Message) -> bool:
        return has_marks(self._render(*messages), marks)

    def _render(self, *messages: Message, is_open: bool = True, **variables: Any) -> str | None:
        values: Mapping[str, Any] = {"tools": self._tools, **variables}
        return self._attempt([*messages], is_open, **values)
