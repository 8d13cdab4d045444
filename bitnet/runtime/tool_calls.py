"""Function calls in the text of an answer, found while it is generated.

A block is the text from an opening mark to a closing one, or to the end of the answer. It holds
calls as JSON, or for each call a head and its arguments: JSON (DeepSeek, Mistral),
``<parameter=...>`` elements (Qwen3-Coder), pairs of ``<arg_key>`` and ``<arg_value>`` (GLM), or
FunctionGemma's notation, in which ``<escape>`` stands for the quotes of a text. The forms are those
of the chat templates.

gpt-oss writes messages (harmony); the prompt ends where the header of the first one begins::

    <|channel|>analysis<|message|>REASONING<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

A recipient (``to=``) may also come before the channel. The format is described in
https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bitnet.runtime.piece import CallDelta
from bitnet.runtime.tool_formats import ESCAPE, NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.runtime.tool_formats import CallFormat, CallRules

_ELEMENT = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_PAIR = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_BARE = re.compile(r"[^,\[\]{}:]+")
_JSON = json.JSONDecoder()
_NEVER = re.compile(r"(?!)")
_MESSAGE, _START = "<|message|>", "<|start|>"
_BEGINNINGS = (_START, "<|channel|>", "to=")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_END = re.compile("|".join(map(re.escape, _ENDS)))
_CALL = re.compile(r"to=functions\.([\w.-]+)")
_ROUTED = re.compile(r"to=|<\|channel\|>analysis")  # not to the user


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


def call_reader(rules: CallRules) -> CallReader:
    """A reader of the calls in one answer."""
    if rules.guided and rules.form.arguments == "json":
        return GuidedReader(rules)
    return HarmonyReader(rules) if rules.form.channels else BlockReader(rules)


class CallReader:
    """Splits the text of an answer into text and calls."""

    def __init__(self, rules: CallRules) -> None:
        self._rules, self._form = rules, rules.form
        self._held = ""
        self._calls = 0

    def read(self, text: str, *, final: bool = False) -> tuple[str, list[CallDelta]]:
        """Text and calls that are certain after the next part, *text*; all if it is *final*."""
        self._held += text
        texts: list[str] = []
        deltas: list[CallDelta] = []
        self._read(texts, deltas, final=final)
        return "" if self._rules.guided else "".join(texts), deltas

    def _read(self, texts: list[str], deltas: list[CallDelta], *, final: bool) -> None:
        raise NotImplementedError

    def _begin_call(self, deltas: list[CallDelta], name: str, arguments: str = "") -> None:
        if self._rules.parallel or not self._calls:
            call_id = secrets.token_hex(5)[:9]  # nine letters and digits, as Mistral's templates
            deltas.append(CallDelta(self._calls, arguments, call_id, name))
            self._calls += 1


class GuidedReader(CallReader):
    """Reads calls to which a grammar restricts the answer; reports them as they are generated."""

    def __init__(self, rules: CallRules) -> None:
        super().__init__(rules)
        head = re.escape(self._form.head).replace(re.escape(NAME), r"([\w.-]+)")
        opening = "" if self._form.listed else re.escape(self._form.opening)
        self._head = re.compile(opening + head)
        self._arguments: str | None = None  # of the call that is read, so far

    def _read(self, _texts: list[str], deltas: list[CallDelta], *, final: bool) -> None:  # noqa: ARG002 - of the others
        while self._held:
            if self._arguments is None:
                begin = self._head.search(self._held)
                if begin is None:
                    return
                self._begin_call(deltas, begin[1])
                self._held, self._arguments = self._held[begin.end() :], ""
                continue
            whole, end = self._arguments + self._held, None
            if "}" in self._held:
                with suppress(ValueError):  # it goes on
                    end = _decode(whole, 0)[1]
            deltas.append(CallDelta(self._calls - 1, whole[len(self._arguments) : end]))
            self._held = "" if end is None else whole[end:]
            self._arguments = whole if end is None else None


class BlockReader(CallReader):
    """Reports the calls of a block when it is complete.

    A block that is not calls of known functions stays text.
    """

    def __init__(self, rules: CallRules) -> None:
        super().__init__(rules)
        self._closing = self._form.closing.strip().lstrip("]")
        self._after_call = False  # spaces that follow are not text
        begin = "|".join(map(re.escape, ("{", "[", *self._form.dressing)))
        self._opening = re.compile(re.escape(self._form.marker) or rf"\A\s*(?={begin})")

    def _read(self, texts: list[str], deltas: list[CallDelta], *, final: bool) -> None:
        if self._after_call:
            self._held = self._held.lstrip()
            self._after_call = not self._held
        while opened := self._opening.search(self._held):
            before, rest = self._held[: opened.start()], self._held[opened.end() :]
            parts = rest.partition(self._closing) if self._closing else (rest, "", "")
            body, closed, after = parts
            if not (closed or final):
                break
            calls = _calls_in(self._form, body, self._rules.schemas)
            self._held = after
            if calls and all(name in self._rules.schemas for name, _ in calls):
                texts.append(before.rstrip())
                self._held = after.lstrip()
                self._after_call = not self._held
                for name, arguments in calls:
                    self._begin_call(deltas, name, arguments)
            else:
                texts.append(before + opened[0] + body + closed)
        keep = 0 if final else self._count_undecided(opened)
        ready = self._held[: len(self._held) - keep]
        # A call may follow, and the space before it is not text.
        ready = ready if final else ready.rstrip()
        self._held = self._held[len(ready) :]
        texts.append(ready)

    def _count_undecided(self, opened: re.Match[str] | None) -> int:
        """Length of the end of the held text that is, or may become, a block."""
        if opened:
            return len(self._held) - opened.start()
        if self._form.marker:
            return overlap(self._held, self._form.marker)
        begin = self._held.lstrip()
        if not begin or any(mark.startswith(begin) for mark in self._form.dressing):
            return len(self._held)
        self._opening = _NEVER  # without a marker, a call is the beginning of the answer
        return 0


class HarmonyReader(CallReader):
    """Reports each call when its message is complete.

    Text is the content of the channels ``final`` and ``commentary``, and whole messages to others
    than the functions that may be called.
    """

    _header: str | None = None  # of the message that is read; None: its header is

    def _read(self, texts: list[str], deltas: list[CallDelta], *, final: bool) -> None:
        while self._held:
            if self._header is None and not self._read_header(final=final):
                break
            if not self._read_content(texts, deltas, final=final):
                break

    def _read_header(self, *, final: bool) -> bool:
        """True if what follows is the content of a message."""
        begin = self._held.lstrip()
        begun = begin.startswith(_BEGINNINGS)
        header, found, rest = begin.partition(_MESSAGE) if begun else (begin, "", "")
        if found:
            self._header, self._held = header + found, rest
        elif final or not (begun or any(mark.startswith(begin) for mark in _BEGINNINGS)):
            self._header = ""  # it has none
        return self._header is not None

    def _read_content(self, texts: list[str], deltas: list[CallDelta], *, final: bool) -> bool:
        """True if the message is complete."""
        header = self._header or ""
        routed, call = _ROUTED.search(header), _CALL.search(header)
        end = _END.search(self._held)
        if end is None and not final:
            if not routed:
                certain = len(self._held) - max(overlap(self._held, mark) for mark in _ENDS)
                texts.append(self._held[:certain])
                self._held = self._held[certain:]
            return False
        content, mark = (self._held, "") if end is None else (self._held[: end.start()], end[0])
        self._held = self._held[len(content) + (0 if mark == _START else len(mark)) :]
        self._header = None
        if not routed:
            texts.append(content)
            return True
        try:
            if call is None or call[1] not in self._rules.schemas:
                raise ValueError("not a function that may be called")
            self._begin_call(deltas, call[1], _read_json(content, {}))
        except ValueError:
            texts.append(header.removeprefix(f"{_START}assistant") + content + mark)
        return True


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of *text* with which *mark* begins."""
    lengths = range(min(len(mark), len(text)), -1, -1)
    return next(n for n in lengths if text.endswith(mark[:n]))


# --- names and arguments; a ValueError where the text is something else ---------------------------


def _calls_in(
    form: CallFormat, body: str, schemas: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Names and arguments, as JSON, of the calls in a block; none if it has something else."""
    try:
        if not form.block:
            return _json_calls(form, body)
        read = _ARGUMENTS[form.arguments]
        heads = [(head["name"], head.end()) for head in re.finditer(form.block, body)]
        return [(name, read(body[end:], schemas.get(name) or {})) for name, end in heads]
    except (ValueError, IndexError):
        return []


def _json_calls(form: CallFormat, body: str) -> list[tuple[str, str]]:
    marks = map(re.escape, filter(None, (*form.dressing, form.marker)))
    dressing = re.compile(rf"(?:\s|{'|'.join(marks)})*")
    calls, at = [], 0
    while (at := dressing.match(body, at).end()) < len(body):  # type: ignore[union-attr]
        value, at = _decode(body, at)
        for call in value if isinstance(value, list) else [value]:
            if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
                raise ValueError("not a call")
            arguments = call.get("arguments", call.get("parameters")) or {}
            if isinstance(arguments, str):  # JSON in JSON
                arguments, _ = _decode(arguments, 0)
            calls.append((name, _write(arguments)))
    return calls


def _decode(text: str, at: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, at)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _write(arguments: Any) -> str:
    if not isinstance(arguments, dict):
        raise ValueError("not an object")
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _read_json(text: str, _schema: Mapping[str, Any]) -> str:
    begin = len(text) - len(text.lstrip())
    value, end = _decode(text, begin)
    _write(value)
    return text[begin:end]


def _read_xml(text: str, schema: Mapping[str, Any]) -> str:
    body, closed, _ = text.partition("</function>")
    values, at = {}, 0
    properties = schema.get("properties") or {}
    while match := _ELEMENT.match(body, at):
        name, raw = match.groups()
        values[name] = _of_type(raw, properties.get(name))
        at = match.end()
    if not closed or body[at:].strip():
        raise ValueError("not parameters alone")
    return _write(values)


def _read_keys(text: str, schema: Mapping[str, Any]) -> str:
    values, at = {}, 0
    properties = schema.get("properties") or {}
    while match := _PAIR.match(text, at):
        name, raw = match.groups()
        values[name.strip()] = _of_type(raw, properties.get(name.strip()))
        at = match.end()
    if text[at:].strip():
        raise ValueError("not pairs of keys and values alone")
    return _write(values)


def _of_type(raw: str, schema: Any) -> Any:
    """The value that *raw* spells: a text where the schema says so, else JSON if it is."""
    schema = schema if isinstance(schema, Mapping) else {}
    choices = schema.get("enum") or ()
    if schema.get("type") == "string" or (
        choices and all(isinstance(choice, str) for choice in choices)
    ):
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


def _read_notation(text: str, _schema: Mapping[str, Any]) -> str:
    return _write(_notation(text, 0, 0)[0])


def _notation(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value at *at* in FunctionGemma's notation, and its end."""
    if depth > 100:
        raise ValueError("nested too deep")
    if text.startswith(ESCAPE, at):
        end = text.index(ESCAPE, at + len(ESCAPE))
        return text[at + len(ESCAPE) : end], end + len(ESCAPE)
    if text[at] not in "{[":
        bare = _BARE.match(text, at)
        if bare is None:
            raise ValueError("a value is missing")
        return _of_type(bare[0].strip(), None), bare.end()
    is_object = text[at] == "{"
    values: dict[str, Any] = {}
    items: list[Any] = []
    at += 1
    while text[at] not in "}]":
        if is_object:
            end = text.index(":", at)
            key, at = text[at:end].strip().replace(ESCAPE, ""), end + 1
            values[key], at = _notation(text, at, depth + 1)
        else:
            item, at = _notation(text, at, depth + 1)
            items.append(item)
        at += text[at] == ","
    return (values if is_object else items), at + 1


#: How arguments are read, by the name of the notation.
_ARGUMENTS: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
    "json": _read_json,
    "xml": _read_xml,
    "notation": _read_notation,
    "keys": _read_keys,
    "key-lines": _read_keys,
}
