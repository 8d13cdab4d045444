"""Function calls in the text of an answer, found while it is generated."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.runtime.piece import CallDelta, new_call_id
from bitnet.runtime.tool_blocks import BlockReader, HarmonyReader, overlap
from bitnet.runtime.tool_formats import NAME

if TYPE_CHECKING:
    from bitnet.runtime.tool_formats import CallRules

_JSON = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,:]*")  # members of an object that is valid


@dataclass
class ToolCall:
    """A call; *arguments* is JSON text, incomplete where the answer was cut short."""

    id: str
    name: str
    arguments: str = ""

    def parse_arguments(self) -> Any:
        """The arguments as an object; ``None`` where the answer was cut short."""
        try:
            return json.loads(self.arguments)
        except ValueError:
            return None


def call_reader(rules: CallRules) -> CallReader | BlockReader | HarmonyReader:
    """A reader of the calls in one answer."""
    if rules.form.channels:
        return HarmonyReader(rules)
    return BlockReader(rules) if rules.form.block else CallReader(rules)


class _Value:
    """Finds the end of a JSON object or list that comes in parts."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Position in the next part *text* where the value ends; ``None`` if it does not end yet.

        The first part starts with the value.
        """
        for at, character in enumerate(text):
            if self._in_text:
                self._in_text = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_text = True
            else:
                self._depth += (character in "{[") - (character in "}]")
                if not self._depth:
                    return at + 1
        return None


class CallReader:
    """Splits the text of an answer into text and calls.

    In a free answer a call is reported when it is complete, its arguments are an object and its
    function exists; anything else stays text. A guided call is reported as it is generated.
    """

    def __init__(self, rules: CallRules) -> None:
        """Reads one answer."""
        self._rules = rules
        self._form = rules.form
        self._held = ""
        self._seen = 0  # characters of the held text already examined
        self._at = 0  # position in it where the call's JSON begins
        self._value: _Value | None = None
        self._calls = 0
        self._fresh = not self._form.marker  # a call may come here without a marker before it
        head = re.escape(self._form.head).replace(re.escape(NAME), r"([\w.-]+)")
        self._head = re.compile(head if self._form.listed else re.escape(self._form.opening) + head)

    def read(self, text: str, *, final: bool = False) -> tuple[str, list[CallDelta]]:
        """Text and parts of calls that are certain after the next part, *text*.

        If it is *final*, an incomplete call of a free answer is text.
        """
        self._held += text
        if self._rules.guided:
            return "", self._read_guided()
        texts: list[str] = []
        deltas: list[CallDelta] = []
        while self._held and (self._read_call if self._value else self._spoken)(texts, deltas):
            pass
        if final:
            is_dressing = self._fresh and self._calls
            texts.append(self._strip_dressing(final=True)[0] if is_dressing else self._held)
            self._held = ""
        return "".join(texts), deltas

    def _read_guided(self) -> list[CallDelta]:
        deltas: list[CallDelta] = []
        while self._held:
            if self._value is None:
                begin = self._head.search(self._held)
                if begin is None:
                    break
                deltas.append(self._begin_call(begin[1]))
                self._held, self._value = self._held[begin.end() :], _Value()
                continue
            end = self._value.end(self._held)
            deltas.append(CallDelta(self._calls - 1, self._held[:end]))
            self._held = "" if end is None else self._held[end:]
            if end is not None:
                self._value = None
        return deltas

    def _begin_call(self, name: str) -> CallDelta:
        self._calls += 1
        return CallDelta(self._calls - 1, id=new_call_id(), name=name)

    # --- a free answer ---------------------------------------------------------------------------

    def _spoken(self, said: list[str], _: list[CallDelta]) -> bool:
        """Find the beginning of a call in the held text; true if there is more to do."""
        marker = self._form.marker
        if self._fresh:
            rest, undecided = self._strip_dressing()
            if undecided:
                return False
            if not marker and rest[0] in "{[":
                self._begin(len(self._held) - len(rest))
                return True
            self._fresh = False
            self._held = rest if self._calls else self._held
        if marker:
            return self._find_marker(said)
        said.append(self._held)
        self._held = ""
        return False

    def _strip_dressing(self, *, final: bool = False) -> tuple[str, bool]:
        """Held text without dressing; and true if that may continue, unless *final*."""
        rest, dressing = self._held.lstrip(), sorted(self._form.dressing, key=len, reverse=True)
        while rest:
            if not final and any(one != rest and one.startswith(rest) for one in dressing):
                return rest, True
            found = next((one for one in dressing if rest.startswith(one)), "")
            if not found:
                return rest, False
            rest = rest[len(found) :].lstrip()
        return "", True

    def _find_marker(self, said: list[str]) -> bool:
        marker = self._form.marker
        before, found, _ = self._held.partition(marker)
        if found:
            said.append(before.rstrip())
            self._held = self._held[len(said[-1]) :]
            marked = self._held.index(marker) + len(marker)
            begin = marked
            if "[ARGS]" in self._form.head:
                begin = self._held.find("[ARGS]") + len("[ARGS]")
                if begin < marked:
                    return False
            begin = _SPACE.match(self._held, begin).end()  # type: ignore[union-attr]
            if begin == len(self._held):
                return False
            if self._held[begin] in "{[":
                self._begin(begin)
            else:
                self._give_up(said, marked)
            return True
        # The possible beginning of a marker is held back, with the space before it.
        sure = before[: len(before) - overlap(before, marker)].rstrip()
        said.append(sure)
        self._held = before[len(sure) :]
        return False

    def _begin(self, at: int) -> None:
        self._value, self._seen, self._fresh = _Value(), at, False
        self._at = at

    def _read_call(self, said: list[str], deltas: list[CallDelta]) -> bool:
        """Read a call up to its end; true if there is more to do."""
        assert self._value is not None
        fresh = self._held[self._seen :]
        end = self._value.end(fresh)
        if end is None:
            self._seen = len(self._held)
            return False
        end += self._seen
        whole, self._value = self._held[:end], None
        calls = self._read(whole)
        if calls is None:
            self._give_up(said, end)
            return True
        self._held, self._fresh = self._held[end:], True
        for name, arguments in calls:
            if self._rules.parallel or not self._calls:
                begun = self._begin_call(name)
                deltas += [begun, CallDelta(begun.index, arguments)]
        return True

    def _give_up(self, said: list[str], end: int) -> None:
        """Treat a supposed call, up to *end*, as text."""
        said.append(self._held[:end])
        self._held = self._held[end:]

    def _read(self, text: str) -> list[tuple[str, str]] | None:
        """Names and arguments of the calls in *text*; ``None`` if it is not a call."""
        if "[ARGS]" in self._form.head:
            name = text[: self._at].strip().removeprefix(self._form.marker)
            name = name.partition("[ARGS]")[0].partition("[CALL_ID]")[0].strip()
            arguments = text[self._at :]
            calls = [(name, arguments)] if _is_object(arguments) else None
        else:
            calls = _calls_in(text[self._at :])
        if not calls or any(name not in self._rules.names for name, _ in calls):
            return None
        return calls


def _calls_in(text: str) -> list[tuple[str, str]] | None:
    """Names and arguments of the calls in *text*, JSON; ``None`` if it has something else.

    Arguments are as they are spelled: parsing and writing would change numbers.
    """
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls: list[tuple[str, str]] = []
    at = int(isinstance(whole, list))
    for call in whole if isinstance(whole, list) else [whole]:
        if not isinstance(call, dict) or not isinstance(name := call.get("name", ""), str):
            return None
        spelled, at = _spell_members(text, at)
        key = next((key for key in ("arguments", "parameters") if key in call), "")
        value, raw = call[key] if key else None, spelled.get(key, "{}")
        if isinstance(value, str) and _is_object(value):  # JSON in JSON
            raw = value
        elif value is None:
            raw = "{}"
        elif not isinstance(value, dict):
            return None
        calls.append((name, raw))
    return calls


def _spell_members(text: str, at: int) -> tuple[dict[str, str], int]:
    """The members of the object behind *at* in valid JSON, as they are spelled, and its end."""

    def skip(at: int) -> int:
        return _BETWEEN.match(text, at).end()  # type: ignore[union-attr]

    members = {}
    at = skip(at) + 1
    while text[at := skip(at)] != "}":
        key, at = _JSON.raw_decode(text, at)
        begin = skip(at)
        _, at = _JSON.raw_decode(text, begin)
        members[key] = text[begin:at]
    return members, at + 1


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
