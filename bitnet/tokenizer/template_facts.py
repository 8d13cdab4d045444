"""Facts about a chat template: which parts of a conversation it writes, and in which form.

A template is a program, whose source does not show what it does with a message. So it is run on
short conversations whose contents are marks, words that occur nowhere else: it writes a part of a
conversation if the mark of that part is in the rendered text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Message = dict[str, Any]
    #: ``attempt(messages, is_open, **variables)``: the rendered text, with the generation prompt if
    #: *is_open*; None if the template fails or refuses the messages.
    Attempt = Callable[..., str | None]

#: Fields of a message in which templates look for its reasoning; ``parts``: a part of ``content``.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning", "parts")
#: Variables that switch reasoning on or off.
THINKING_SWITCHES = ("enable_thinking", "thinking")
#: Variables that say how much the model reasons.
EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_SHORT_ID = "call00001"  # Mistral's templates require nine letters and digits
_LONG_ID = "call_00000000000000000000001"


@dataclass(frozen=True)
class TemplateFacts:
    """Parts of a conversation that a chat template writes, and the form in which it takes them."""

    takes_text: bool  # content may be a text
    takes_parts: bool  # content may be a list of ``{"type": "text", "text": ...}``
    system: bool  # a system message at the beginning is written into the text
    developer: bool  # the role ``developer`` is known, not only copied
    later_system: bool  # system messages are written also after the beginning
    repeated_user: bool  # two messages of the user may follow each other
    tools: bool  # tools that may be called are written
    needs_list: bool  # without tools, ``tools`` must be an empty list: the template fails on None
    calls: bool  # earlier calls are written
    results: bool  # results of calls are written
    several_calls: bool  # a message may have several calls
    text_beside_calls: bool  # the text of a message with calls is written
    arguments: Literal["text", "object"]  # form of the arguments of a call
    short_ids: bool  # calls need ids of nine letters and digits
    reasoning: str  # of REASONING_FIELDS, the one that is written before a call; empty if none
    reasoning_beside_text: bool  # a message with calls may have reasoning and text
    thinking_switches: tuple[str, ...]  # of THINKING_SWITCHES, those that change the text
    effort: str  # of EFFORT_VARIABLES, the one that changes the text; empty if none
    generation_prompt: bool  # ``add_generation_prompt`` adds text


def probe(attempt: Attempt) -> TemplateFacts:
    """Facts about the template behind *attempt*, which renders messages."""
    return _Probes(attempt).facts()


def mark(number: int) -> str:
    """A word that no template contains, and that trimming and escaping do not change."""
    return f"Zq{number:05d}Zq"


def has_marks(text: str | None, marks: Sequence[str]) -> bool:
    """True if all *marks* are in *text*."""
    return text is not None and all(each in text for each in marks)


def reasoning_as_parts(reasoning: str, content: str) -> list[dict[str, str]]:
    """*content* with its *reasoning* as Mistral's templates take them."""
    parts = [{"type": "thinking", "thinking": reasoning}]
    return [*parts, {"type": "text", "text": content}] if content else parts


# Contents of the conversations; _LATER is also a role that no template knows.
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
    """Short conversations, rendered by one template.

    Its state is the form of conversation that is known to work so far; later probes use it.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._tools: list[dict[str, Any]] | None = None
        self._arguments: Literal["text", "object"] = "text"
        self._id = _SHORT_ID
        self._switches: dict[str, Any] = {}

    def facts(self) -> TemplateFacts:
        """The result of all probes, in an order in which each uses the results of those before."""
        self._takes_parts = self._writes_content([{"type": "text", "text": _USER}])
        # A template that writes neither form gets the common one.
        self._takes_text = self._writes_content(_USER) or not self._takes_parts
        if self._render(self._user()) is None:
            self._tools = []  # some templates fail without a list
        system = self._shows([_SYSTEM], self._message("system", _SYSTEM), self._user())

        needs_list = self._tools is not None
        text_with_tool = self._render(self._user(), tools=[_PROBED_TOOL])
        tools = has_marks(text_with_tool, [_TOOL, _PROPERTY])
        if tools:
            self._tools = [_PROBED_TOOL]  # some templates write calls only beside tools
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
            text_beside_calls=calls and self._shows([_ANSWER], *self._tool_use(content=_ANSWER)),
            arguments=self._arguments,
            short_ids=calls and not self._takes_id(_LONG_ID),
            reasoning=reasoning,
            reasoning_beside_text=bool(reasoning) and self._writes_reasoning(reasoning, _ANSWER),
            thinking_switches=switches,
            effort=next(filter(self._is_effort, EFFORT_VARIABLES), ""),
            generation_prompt=self._announces_the_answer(),
        )

    def _writes_content(self, content: object) -> bool:
        """True if *content* with the mark _USER is written, and is not merely printed as a list."""
        text = self._attempt([{"role": "user", "content": content}], True) or ""
        # A template for texts alone may print the list of parts, in Python's form or as JSON.
        is_list_itself = "'type'" in text or '"type"' in text
        return has_marks(text, [_USER]) and not is_list_itself

    def _announces_the_answer(self) -> bool:
        """True if ``add_generation_prompt`` changes the text."""
        return self._render(self._user()) != self._render(self._user(), is_open=False)

    def _knows_developer(self) -> bool:
        text = self._render(self._message("developer", _SYSTEM), self._user())
        if not has_marks(text, [_SYSTEM]):
            return False
        # A template that copies every role has not been trained on this one.
        return not self._is_copy(text, "developer", self._message(_LATER, _SYSTEM), self._user())

    def _is_copy(self, text: str | None, role: str, *messages: Message) -> bool:
        """True if *messages*, with the role _LATER, give *text* but for the name of its *role*."""
        text_of_unknown = self._render(*messages)
        return text_of_unknown is not None and text == text_of_unknown.replace(_LATER, role)

    def _writes_later_system(self) -> bool:
        first = self._message("system", _SYSTEM)
        second = self._message("system", _LATER)
        answer = self._message("assistant", _ANSWER)
        marks = [_SYSTEM, _LATER, _ANSWER, _SECOND]
        messages = (first, self._user(), answer, second, self._user(_SECOND))
        return self._shows(marks, *messages) and self._shows(
            [_SYSTEM, _LATER], first, second, self._user()
        )

    def _find_form_of_calls(self) -> bool:
        """True if calls are written; sets the form of their arguments."""
        written = {}
        forms: tuple[Literal["text", "object"], ...] = ("text", "object")
        for form in forms:
            self._arguments = form
            text = self._render(*self._tool_use())
            if has_marks(text, [_KEY, _VALUE]):
                written[form] = text or ""
        self._arguments = "text"
        if "object" not in written:
            return "text" in written
        if "text" not in written:
            self._arguments = "object"
            return True
        # If both are written, the object is the right form, with two exceptions: a template that
        # writes the object in Python's form, which is not JSON, expects a text; and if both give
        # the same, a text is as good. (If they differ, the template has encoded the text a second
        # time, or put it in braces of its own.)
        if str({_KEY: _VALUE}) not in written["object"] and written["text"] != written["object"]:
            self._arguments = "object"
        return True

    def _writes_results(self, *, knows_tools: bool) -> bool:
        """True if results of calls are written, not only copied as any role is."""
        user, call, result = self._tool_use()
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

    def _takes_id(self, call_id: str) -> bool:
        """True if a call with this id is written."""
        usual_id = self._id
        self._id = call_id
        is_written = self._shows([_VALUE], *self._tool_use())
        self._id = usual_id
        return is_written

    def _find_reasoning(self) -> str:
        """The first of REASONING_FIELDS that is written, or an empty text."""
        return next((name for name in REASONING_FIELDS if self._writes_reasoning(name)), "")

    def _writes_reasoning(self, name: str, content: str = "") -> bool:
        user, call, result = self._tool_use(content=content)
        if name == "parts":
            call["content"] = reasoning_as_parts(_REASONING, content)
        else:
            call[name] = _REASONING
        text = self._render(user, call, result, **self._switches)
        if not has_marks(text, [_REASONING, *filter(None, [content])]):
            return False
        # A template that prints the list of parts does not know parts of this type.
        return name != "parts" or all(f"{quote}thinking{quote}" not in str(text) for quote in "'\"")

    def _is_switch(self, name: str) -> bool:
        return self._differs(name, True, False)

    def _is_effort(self, name: str) -> bool:
        return self._differs(name, "low", "high")

    def _differs(self, name: str, first: Any, second: Any) -> bool:
        """True if the two values of the variable *name* give different texts."""
        variables: list[dict[str, Any]] = [{name: value} for value in (first, second)]
        texts = [self._render(self._user(), **each) for each in variables]
        return texts[0] != texts[1] and None not in texts

    # --- messages ---------------------------------------------------------------------------------

    def _message(self, role: str, text: str) -> Message:
        is_part = text and not self._takes_text
        return {"role": role, "content": [{"type": "text", "text": text}] if is_part else text}

    def _user(self, text: str = _USER) -> Message:
        return self._message("user", text)

    def _one_call(self, value: str, call_id: str) -> Message:
        arguments: Any = {_KEY: value}
        if self._arguments == "text":
            arguments = json.dumps(arguments)
        function = {"name": _TOOL, "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    def _call(self, content: str = "") -> Message:
        message = self._message("assistant", content)
        return message | {"tool_calls": [self._one_call(_VALUE, self._id)]}

    def _result(self, text: str = _RESULT, call_id: str = "") -> Message:
        origin = {"tool_call_id": call_id or self._id, "name": _TOOL}
        return self._message("tool", text) | origin

    def _tool_use(self, *, content: str = "") -> tuple[Message, Message, Message]:
        """A message of the user, an answer of *content* with a call, and the result of the call."""
        return self._user(), self._call(content), self._result()

    def _shows(self, marks: Sequence[str], *messages: Message) -> bool:
        """True if the text of *messages* has all *marks*."""
        return has_marks(self._render(*messages), marks)

    def _render(self, *messages: Message, is_open: bool = True, **variables: Any) -> str | None:
        """The text of *messages* with the tools that are known to work, see ``Attempt``."""
        values: Mapping[str, Any] = {"tools": self._tools, **variables}
        return self._attempt([*messages], is_open, **values)
