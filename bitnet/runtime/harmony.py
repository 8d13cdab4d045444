"""The messages of an answer in harmony, gpt-oss's format: text and function calls.

An answer is a sequence of messages; the prompt ends where the header of the first one begins::

    <|channel|>analysis<|message|>REASONING<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{}<|call|>
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>

A recipient (``to=``) may also come before the channel. The format is described in
https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bitnet.runtime.piece import CallDelta, new_call_id
from bitnet.runtime.tool_blocks import overlap, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bitnet.runtime.tool_formats import CallRules

_MESSAGE, _START = "<|message|>", "<|start|>"
_BEGINNINGS = (_START, "<|channel|>", "to=")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_END = re.compile("|".join(map(re.escape, _ENDS)))
_CALL = re.compile(r"to=functions\.([\w.-]+)")
_ROUTED = re.compile(r"to=|<\|channel\|>analysis")  # not to the user


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

    def push(self, text: str) -> tuple[str, list[CallDelta]]:
        """Text and calls that are certain after the next part, *text*."""
        return self._take(text, final=False)

    def finish(self) -> tuple[str, list[CallDelta]]:
        """The remaining text and calls."""
        return self._take("", final=True)

    def _take(self, text: str, *, final: bool) -> tuple[str, list[CallDelta]]:
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
        arguments = read_json(content, {})
        if arguments is None or name not in self._rules.names:
            return False
        if self._rules.parallel or not self._calls:
            deltas.append(CallDelta(self._calls, arguments, new_call_id(), name))
            self._calls += 1
        return True


def one_call_each(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """*messages* in which a message has one call, followed by its result, as templates write it."""
    waiting: list[dict[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls")
        if message["role"] == "tool" and waiting:
            its = next(
                (
                    it
                    for it in waiting
                    if it["tool_calls"][0].get("id") == message.get("tool_call_id")
                ),
                waiting[0],
            )
            waiting.remove(its)
            yield its
            yield message
            continue
        yield from waiting
        waiting = []
        if isinstance(calls, list) and len(calls) > 1:
            first, *others = calls
            waiting = [{**message, "tool_calls": [first]}]
            waiting += [{"role": "assistant", "content": "", "tool_calls": [it]} for it in others]
        else:
            yield message
    yield from waiting
