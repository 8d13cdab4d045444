"""Function calls in the text of an answer, found while it is generated.

A block is the text from an opening mark to a closing one, or to the end of the answer. It holds
calls as JSON, or for each call a head and its arguments in the notation of the format.

Some models write messages with headers; the prompt ends where the header of the first one begins.
gpt-oss (harmony)::

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
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from bitnet.runtime.piece import CallDelta, Piece, TextDelta
from bitnet.runtime.tool_arguments import (
    check_end,
    decode,
    dump,
    item_texts,
    key_of_arguments,
    read_arguments,
    value_texts,
    write_arguments,
)
from bitnet.runtime.tool_formats import ID, INDEX, NAME, fill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bitnet.runtime.piece import Part
    from bitnet.runtime.tool_formats import CallFormat, CallRules

_NEVER = r"(?!)"  # matches no text
_CALL_ID = re.compile(r"[\w.:-]{1,160}", re.ASCII)  # functions.NAME:0, in some formats

_SPACES = re.compile(r"\s*")


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
    if rules.guided and rules.form.notation.kind == "json":
        return GuidedReader(rules)
    return MessageReader(rules) if rules.form.headers else BlockReader(rules)


class CallReader:
    """Splits the text of an answer into text and calls, in their order.

    Text that follows a call begins with a line break if it would join the text before the call.
    """

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self._form = rules.form
        self._held = rules.opening_in_prompt
        self._ids: set[str] = set()  # of the calls so far
        self._after_call = False  # True if a call is the last part
        self._last_char = ""  # of the text so far

    def read(self, text: str, *, final: bool = False) -> tuple[str, list[CallDelta]]:
        """As :meth:`read_parts`, but all text as one, and the calls."""
        piece = Piece(None, parts=tuple(self.read_parts(text, final=final)))
        return piece.text, [*piece.calls]

    def read_parts(self, text: str, *, final: bool = False) -> list[Part]:
        """Text and calls that are certain after the next part, *text*; all if it is *final*."""
        self._held += text
        parts: list[Part] = []
        self._read(parts, final=final)
        return parts

    def _read(self, parts: list[Part], *, final: bool) -> None:
        raise NotImplementedError

    def _add_text(self, parts: list[Part], text: str) -> None:
        """Add *text* to *parts* if it is not empty."""
        if not text:
            return
        if self._after_call and self._last_char.strip() and not text[0].isspace():
            text = f"\n{text}"
        self._after_call = False
        self._last_char = text[-1]
        parts.append(TextDelta(text))

    def _begin_call(self, parts: list[Part], call: _Call) -> None:
        """Add *call* to *parts*; only the first one counts if calls are not *parallel*."""
        self._after_call = True
        if self._ids and not self._rules.parallel:
            return
        call_id = call.id
        if not _CALL_ID.fullmatch(call_id) or call_id in self._ids:
            call_id = secrets.token_hex(5)[:9]  # nine letters and digits, as Mistral's templates
        parts.append(CallDelta(len(self._ids), call.arguments, call_id, call.name))
        self._ids.add(call_id)


class GuidedReader(CallReader):
    """Reads calls to which a grammar restricts the answer; reports them as they are generated."""

    def __init__(self, rules: CallRules) -> None:
        super().__init__(rules)
        self._head = _head_pattern(self._form)
        self._arguments: str | None = None  # of the current call so far; None: read its head next

    def _read(self, parts: list[Part], *, final: bool) -> None:  # noqa: ARG002 - other readers need it
        while self._held:
            if self._arguments is None:
                begin = self._head.search(self._held)
                if begin is None:
                    return
                self._begin_call(parts, _Call(begin["name"], "", _id_in(self._form, begin)))
                self._held = self._held[begin.end() :]
                self._arguments = ""
                continue
            arguments_so_far = (self._arguments + self._held).lstrip()
            end = None
            if "}" in self._held:
                with suppress(ValueError):  # the arguments go on
                    end = decode(arguments_so_far, 0)[1]
            arguments = arguments_so_far[len(self._arguments) : end]
            parts.append(CallDelta(len(self._ids) - 1, arguments))
            self._held = "" if end is None else arguments_so_far[end:]
            self._arguments = arguments_so_far if end is None else None


class BlockReader(CallReader):
    """Reports the calls of a block when it is complete.

    A block that is not calls of known functions stays text. Spaces beside a call are text only if
    there is other text before and after it.
    """

    def __init__(self, rules: CallRules) -> None:
        super().__init__(rules)
        form = self._form
        self._closing = form.end
        self._spaces = ""  # after the text so far; not passed on, as a call may follow
        begin = "|".join(map(re.escape, ("{", "[", *form.dressing)))
        opening = re.escape(form.marker) or rf"\A\s*(?={begin})"
        skipped = "|".join(map(re.escape, form.skipped)) or _NEVER
        self._mark = re.compile(rf"(?P<skipped>{skipped})|(?P<opening>{opening})")

    def _read(self, parts: list[Part], *, final: bool) -> None:
        while mark := self._mark.search(self._held):
            before = self._held[: mark.start()]
            rest = self._held[mark.end() :]
            if mark["opening"] is None:
                self._add_text(parts, before)
                self._held = rest
                continue
            if not final and self._may_be_skipped(mark.start()):
                break
            block = rest.partition(self._closing) if self._closing else (rest, "", "")
            body, closed, after = block
            if not (closed or final):
                break
            calls, remaining = _calls_in(self._form, mark[0] + body, self._rules.schemas)
            if calls and all(call.name in self._rules.schemas for call in calls):
                self._add_text(parts, before)
                self._held = remaining + after
                for call in calls:
                    self._begin_call(parts, call)
            else:
                self._add_text(parts, before + mark[0] + body + closed)
                self._held = after
        keep = 0 if final else self._count_undecided(mark)
        ready = self._held[: len(self._held) - keep]
        self._held = self._held[len(ready) :]
        self._add_text(parts, ready)
        if final and not self._after_call:
            super()._add_text(parts, self._spaces)

    def _add_text(self, parts: list[Part], text: str) -> None:
        text = self._spaces + text
        if self._after_call and not self._last_char:
            text = text.lstrip()
        certain = text.rstrip()
        self._spaces = text[len(certain) :]
        super()._add_text(parts, certain)

    def _may_be_skipped(self, at: int) -> bool:
        """True if what begins at index *at* may become one of the texts to skip."""
        begun = self._held[at:]
        return any(text.startswith(begun) for text in self._form.skipped)

    def _count_undecided(self, mark: re.Match[str] | None) -> int:
        """Length of the end of the held text that may still become a block or a skipped mark.

        *mark* is the opening mark of a block that is not complete, if there is one.
        """
        if mark:
            return len(self._held) - mark.start()
        form = self._form
        skipped = max((overlap(self._held, text) for text in form.skipped), default=0)
        if form.marker:
            return max(skipped, overlap(self._held, form.marker))
        begin = self._held.lstrip()
        if not begin or any(text.startswith(begin) for text in form.dressing):
            return len(self._held)
        self._mark = re.compile(_NEVER)  # without a marker, a call is the beginning of the answer
        return skipped


class MessageReader(CallReader):
    """Reports each call when its message is complete.

    The content of messages to the user is text. So are whole messages, with their headers, that are
    neither to the user nor to a function that may be called.
    """

    _header: str | None = None  # of the current message; None: the header is read next

    def __init__(self, rules: CallRules) -> None:
        super().__init__(rules)
        assert rules.form.headers is not None
        self._headers = rules.form.headers
        self._end = re.compile("|".join(map(re.escape, self._headers.ends)))

    def _read(self, parts: list[Part], *, final: bool) -> None:
        while self._held or (final and self._header is not None):
            if self._header is None and not self._read_header(parts, final=final):
                break
            if not self._read_content(parts, final=final):
                break

    def _read_header(self, parts: list[Part], *, final: bool) -> bool:
        """Read a header; True if the content of its message follows."""
        begins = self._headers.begins
        begin = self._held.lstrip()
        has_header = begin.startswith(begins)
        header, mark, rest = begin.partition(self._headers.message)
        if has_header and mark:
            self._header = header + mark
            self._held = rest
        elif has_header and final:
            self._read_unfinished_header(parts)
            self._header = ""
        elif not has_header and (final or not any(text.startswith(begin) for text in begins)):
            self._header = ""  # the message has no header
        return self._header is not None

    def _read_unfinished_header(self, parts: list[Part]) -> None:
        """Read a header that the end of the answer, or of its message, cut off.

        It is text, except ``Headers.dropped`` before it, which is not part of the header.
        """
        spaces = len(self._held) - len(self._held.lstrip())
        # The mark with which it begins may be one that ends messages; it does not end this one.
        end = self._end.search(self._held, spaces + 1)
        length = len(self._held) if end is None else end.start()
        header = self._held[:length]
        self._held = self._held[length:]
        begin = header.lstrip()
        dropped = self._headers.dropped
        if begin.startswith(dropped):
            self._add_text(parts, begin.removeprefix(dropped))
        elif not dropped.startswith(begin):
            self._add_text(parts, header)

    def _read_content(self, parts: list[Part], *, final: bool) -> bool:
        """Read content of the current message; True if the message is complete."""
        header = self._header or ""
        routed = re.search(self._headers.routed, header)
        end = self._end.search(self._held)
        if end is None and not final:
            if not routed:
                undecided = max(overlap(self._held, text) for text in self._headers.ends)
                certain = len(self._held) - undecided
                self._add_text(parts, self._held[:certain])
                self._held = self._held[certain:]
            return False
        content = self._held
        mark = ""
        if end is not None:
            content = self._held[: end.start()]
            mark = end[0]
        if mark in self._headers.begins:
            mark = ""  # it is the beginning of the next message
        self._held = self._held[len(content) + len(mark) :]
        self._header = None
        if not routed:
            self._add_text(parts, content)
            return True
        try:
            self._begin_call(parts, self._call_of(header, content))
        except ValueError:
            self._add_text(parts, header.removeprefix(self._headers.dropped) + content + mark)
        return True

    def _call_of(self, header: str, content: str) -> _Call:
        """The call in a message; a ValueError if it is not a call of one of the functions."""
        recipient = re.search(self._headers.call, header)
        if recipient is None or recipient[1] not in self._rules.schemas:
            raise ValueError("not a function that may be called")
        name = recipient[1]
        if self._form.notation.kind == "json":
            arguments, end = read_arguments(self._form.notation, content, 0, {})
            check_end(content, end)
            return _Call(name, arguments)
        head = self._form.head.partition(self._headers.message)[0].replace(NAME, name)
        calls, _ = _calls_in(
            self._form, f"{head}{self._headers.message}{content}", self._rules.schemas
        )
        if len(calls) != 1:
            raise ValueError("not one call")
        return calls[0]


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of *text* that is a beginning of *mark*."""
    lengths = range(min(len(mark), len(text)), -1, -1)
    return next(n for n in lengths if text.endswith(mark[:n]))


def write_calls(form: CallFormat, calls: Sequence[Any]) -> str:
    """The text of *calls*, those of one message, in the format *form*."""
    written = []
    for number, call in enumerate(calls):
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        if form.notation.kind != "json" and isinstance(arguments, str):
            arguments = json.loads(arguments)
        if not isinstance(arguments, str):
            arguments = write_arguments(form.notation, arguments)
        call_id = str(call.get("id") or number)
        head = fill(form.head, {NAME: function["name"], ID: call_id, INDEX: str(number)})
        written.append(f"{head}{arguments}{form.tail}")
    if form.listed:
        return f"{form.opening}{form.between.join(written)}{form.closing}"
    return form.between.join(f"{form.opening}{each}{form.closing}" for each in written)


# --- the calls in a block -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    name: str
    arguments: str  # as JSON
    id: str = ""  # as the model wrote it; empty if it did not


def _calls_in(
    form: CallFormat, body: str, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[list[_Call], str]:
    """The calls in a block, and the text after them; no calls if the block has other content."""
    read = _json_calls if form.has_json_calls else _block_calls
    try:
        return read(form, body, schemas)
    except ValueError:
        return [], ""


def _block_calls(
    form: CallFormat, body: str, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[list[_Call], str]:
    """Calls that are a head and its arguments, one after another, and the text after them.

    A ValueError if they are not.
    """
    head = _head_pattern(form)
    dressing = _dressing(form)
    tail = form.tail.strip()
    calls: list[_Call] = []
    at = dressing.match(body, 0).end()  # type: ignore[union-attr]
    while at < len(body):
        begin = head.match(body, at)
        if begin is None:
            if calls and not form.closing:
                return calls, body[len(body[:at].rstrip()) :]
            raise ValueError("not a call")
        schema = schemas.get(begin["name"]) or {}
        arguments, at = read_arguments(form.notation, body, begin.end(), schema)
        calls.append(_Call(begin["name"], arguments, _id_in(form, begin)))
        at = _SPACES.match(body, at).end()  # type: ignore[union-attr]
        if body.startswith(tail, at):
            at += len(tail)
        elif form.notation.kind != "json":
            raise ValueError("not only arguments")
        at = dressing.match(body, at).end()  # type: ignore[union-attr]
    return calls, ""


def _json_calls(
    form: CallFormat, body: str, _schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[list[_Call], str]:
    """Calls that are JSON objects, one by one or in a list; a ValueError if they are not."""
    dressing = _dressing(form)
    calls: list[_Call] = []
    at = dressing.match(body, 0).end()  # type: ignore[union-attr]
    while at < len(body):
        value, end = decode(body, at)
        written = body[at:end]
        if isinstance(value, list):
            calls += map(partial(_call_of_object, form), value, item_texts(written))
        else:
            calls.append(_call_of_object(form, value, written))
        at = dressing.match(body, end).end()  # type: ignore[union-attr]
    return calls, ""


def _call_of_object(form: CallFormat, call: Any, text: str) -> _Call:
    """The call that *call* is, read from the JSON *text*; its arguments stay as they are there."""
    if not isinstance(call, dict):
        raise ValueError("not a call")
    written = value_texts(text)
    if form.head.startswith(f'{{"{NAME}"'):  # the name is the key of the arguments
        if len(call) != 1:
            raise ValueError("not one call")
        ((name, value),) = call.items()
        arguments = written[name]
    else:
        name = call.get("name", call.get("tool_name"))
        key = key_of_arguments(call)
        value = call[key] if key else {}
        arguments = written[key] if key else "{}"
    if not isinstance(name, str):
        raise ValueError("not a call")
    if isinstance(value, str):  # JSON in JSON
        arguments = value.strip()
        value, end = decode(arguments, 0)
        check_end(arguments, end)
    dump(value)
    return _Call(name, arguments)


@lru_cache(maxsize=64)
def _dressing(form: CallFormat) -> re.Pattern[str]:
    """Regular expression of the marks and spaces that may surround the calls of a block."""
    marks = {form.marker, *form.dressing, *form.skipped}
    for text in (form.opening, form.between, form.tail):
        # Those of JSON calls are JSON themselves, which the decoder reads.
        marks.add(text.strip() if not form.has_json_calls else "")
    if form.closing.strip() != form.end:  # the calls are in a list, whose bracket *end* leaves out
        marks.add("]")
    marks = {mark for mark in marks if mark and not form.head.startswith(mark)}
    escaped = [re.escape(mark) for mark in sorted(marks, key=len, reverse=True)]
    either = "|".join([r"\s", *escaped])
    return re.compile(f"(?:{either})*")


@lru_cache(maxsize=64)
def _head_pattern(form: CallFormat) -> re.Pattern[str]:
    """Regular expression of a call up to its arguments; spaces at line breaks may be missing."""
    if form.pattern:
        return re.compile(form.pattern)
    text = re.escape(form.head.strip())
    text = re.sub(r"(?:\\[ \n])+", lambda spaces: r"\s*" if "\n" in spaces[0] else r"\s+", text)
    text = text.replace(re.escape(NAME), r"(?P<name>[\w.-]+)", 1)
    text = text.replace(re.escape(NAME), r"(?P=name)")
    text = text.replace(re.escape(ID), r"(?P<id>[^<>\[\]\s]*)")
    text = text.replace(re.escape(INDEX), r"(?P<index>\d+)")
    if form.head != form.head.rstrip():
        # A name that only a space ends is complete when the space is there.
        is_name_last = form.head.rstrip().endswith(NAME) and form.notation.kind == "json"
        text += r"\s+" if is_name_last else r"\s*"
    return re.compile(text)


def _id_in(form: CallFormat, head: re.Match[str]) -> str:
    """The id in the *head* of a call; empty if the format has none or the model left it out."""
    parts = head.groupdict()
    written = parts.get("index") or parts.get("id")
    if not form.call_id or not written:
        return ""
    return fill(form.call_id, {NAME: head["name"], ID: written, INDEX: written})
