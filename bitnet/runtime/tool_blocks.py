"""Readers of function calls that are not one JSON object.

A block is the text from an opening mark to a closing one. Its arguments are JSON (DeepSeek),
``<parameter=...>`` elements (Qwen3-Coder), or FunctionGemma's notation, in which ``<escape>``
stands for the quotes of a text. The forms are those of the chat templates.

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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bitnet.runtime.piece import CallDelta, new_call_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from bitnet.runtime.tool_formats import CallFormat, CallRules

_ELEMENT = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_BARE = re.compile(r"[^,\[\]{}:]+")
_JSON = json.JSONDecoder()
ESCAPE = "<escape>"
_MESSAGE, _START = "<|message|>", "<|start|>"
_BEGINNINGS = (_START, "<|channel|>", "to=")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_END = re.compile("|".join(map(re.escape, _ENDS)))
_CALL = re.compile(r"to=functions\.([\w.-]+)")
_ROUTED = re.compile(r"to=|<\|channel\|>analysis")  # not to the user


class BlockReader:
    """Splits the text of an answer into text and calls, each reported when its block is complete.

    A block that is not a call of a known function stays text, unless a grammar guides the answer.
    """

    def __init__(self, rules: CallRules) -> None:
        """Reads one answer."""
        self._rules = rules
        self._form = rules.form
        self._held = ""
        self._calls = 0

    def read(self, text: str, *, final: bool = False) -> tuple[str, list[CallDelta]]:
        """Text and calls that are certain after the next part, *text*; all if it is *final*."""
        self._held += text
        texts: list[str] = []
        deltas: list[CallDelta] = []
        marker, closing = self._form.marker, self._form.closing.strip()
        while True:
            before, opened, rest = self._held.partition(marker)
            body, closed, after = rest.partition(closing)
            if not opened or not (closed or final):
                break
            calls = _calls_in(self._form, marker + body, self._rules.schemas)
            texts.append(before.rstrip() if calls else before)
            self._held = after.lstrip() if calls else after
            if calls and all(name in self._rules.names for name, _ in calls):
                for name, arguments in calls[: None if self._rules.parallel else 1 - self._calls]:
                    deltas.append(CallDelta(self._calls, arguments, new_call_id(), name))
                    self._calls += 1
            else:
                texts.append(opened + body + closed)
        keep = 0 if final else len(self._held) if opened else overlap(self._held, marker)
        ready = self._held[: len(self._held) - keep]
        if not final:
            ready = ready.rstrip()  # a call may follow, and the space before it is not text
        self._held = self._held[len(ready) :]
        texts.append(ready)
        return "" if self._rules.guided else "".join(texts), deltas


class HarmonyReader:
    """Splits the text of an answer into text and calls, each reported when it is complete.

    Text is the content of the channels ``final`` and ``commentary``, and whole messages to others
    than the functions that may be called, unless a grammar guides the answer.
    """

    def __init__(self, rules: CallRules) -> None:
        """Reads one answer."""
        self._rules = rules
        self._held = ""
        self._header: str | None = None  # of the message that is read; None: its header is
        self._calls = 0

    def read(self, text: str, *, final: bool = False) -> tuple[str, list[CallDelta]]:
        """Text and calls that are certain after the next part, *text*; all if it is *final*."""
        self._held += text
        texts: list[str] = []
        deltas: list[CallDelta] = []
        while self._held:
            if self._header is None and not self._read_header(final=final):
                break
            if not self._read_content(texts, deltas, final=final):
                break
        return "" if self._rules.guided else "".join(texts), deltas

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
                keep = max(overlap(self._held, mark) for mark in _ENDS)
                certain = len(self._held) - keep
                texts.append(self._held[:certain])
                self._held = self._held[certain:]
            return False
        content, mark = (self._held, "") if end is None else (self._held[: end.start()], end[0])
        self._held = self._held[len(content) + (0 if mark == _START else len(mark)) :]
        self._header = None
        if not routed:
            texts.append(content)
        elif call is None or not self._add_call(call[1], content, deltas):
            texts.append(header.removeprefix(f"{_START}assistant") + content + mark)
        return True

    def _add_call(self, name: str, content: str, deltas: list[CallDelta]) -> bool:
        """True if *content* is the arguments of a function that may be called."""
        arguments = _read_json(content, {})
        if arguments is None or name not in self._rules.names:
            return False
        if self._rules.parallel or not self._calls:
            deltas.append(CallDelta(self._calls, arguments, new_call_id(), name))
            self._calls += 1
        return True


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of *text* with which *mark* begins."""
    lengths = range(min(len(mark), len(text)), -1, -1)
    return next(n for n in lengths if text.endswith(mark[:n]))


def _calls_in(
    form: CallFormat, block: str, schemas: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str]] | None:
    """Names and arguments, as JSON, of the calls in *block*; ``None`` if it is none."""
    calls = []
    for match in re.finditer(form.block, block):
        name = match["name"]
        arguments = _ARGUMENTS[form.arguments](block[match.end() :], schemas.get(name) or {})
        if arguments is None:
            return None
        calls.append((name, arguments))
    return calls or None


def _read_json(text: str, _schema: Mapping[str, Any]) -> str | None:
    """The JSON object with which *text* begins; ``None`` if it does not."""
    begin = len(text) - len(text.lstrip())
    try:
        value, end = _JSON.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    return text[begin:end] if isinstance(value, dict) else None


def _read_xml(text: str, schema: Mapping[str, Any]) -> str | None:
    body, closed, _ = text.partition("</function>")
    values, at = {}, 0
    properties = schema.get("properties") or {}
    while match := _ELEMENT.match(body, at):
        name, raw = match.groups()
        values[name] = _of_type(raw, properties.get(name))
        at = match.end()
    if not closed or body[at:].strip():
        return None
    return json.dumps(values, ensure_ascii=False)


def _of_type(raw: str, schema: Any) -> Any:
    """The value that *raw* spells: a text where the schema says so, else JSON if it is."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    choices = (schema.get("enum") or ()) if isinstance(schema, Mapping) else ()
    if kind == "string" or (choices and all(isinstance(choice, str) for choice in choices)):
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


def _read_notation(text: str, _schema: Mapping[str, Any]) -> str | None:
    try:
        value, _ = _notation(text, 0, 0)
    except (ValueError, IndexError):
        return None
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else None


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
_ARGUMENTS: dict[str, Callable[[str, Mapping[str, Any]], str | None]] = {
    "json": _read_json,
    "xml": _read_xml,
    "notation": _read_notation,
}
