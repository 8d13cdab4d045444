"""The end of the reasoning of an answer after a number of tokens, with the template's own mark."""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_DecodesUtf8 = getincrementaldecoder("utf-8")


@dataclass(frozen=True)
class BudgetRules:
    """Rules for ending the reasoning of an answer."""

    most: int  # tokens of reasoning
    opening: bytes  # text before the reasoning
    closing: bytes  # text after it
    forced: tuple[int, ...]  # tokens that end it: a message, if there is one, and *closing*
    begun: bool  # the prompt ends inside reasoning
    token_bytes: Callable[[int], bytes]


class ReasoningBudget:
    """Counts the reasoning tokens of one answer, and ends it when there are enough.

    Marks are searched in the text, since a model may spell them with other tokens than its
    tokenizer does. Reasoning never ends within a character.
    """

    def __init__(self, rules: BudgetRules) -> None:
        self._rules = rules
        self._left = rules.most  # tokens of reasoning that are still allowed
        self._is_inside = rules.begun
        self._text = b""  # end of the answer, which may contain the beginning of a mark
        self._decoder = _DecodesUtf8("replace")
        self._forced: tuple[int, ...] = ()  # tokens that must follow
        self._end_if_spent()

    @property
    def next_token(self) -> int | None:
        """The token that must follow; None if any may."""
        return self._forced[0] if self._forced else None

    def add(self, token: int) -> None:
        """Record that *token* follows."""
        if self._forced:
            self._forced = self._forced[1:]
            if not self._forced:
                self._is_inside = False
                self._text = b""
            return
        raw = self._rules.token_bytes(token)
        self._text += raw
        self._decoder.decode(raw)
        mark = self._rules.closing if self._is_inside else self._rules.opening
        before, matched, after = self._text.partition(mark)
        if self._is_inside and not matched:
            self._left -= 1
        if matched:
            self._is_inside = not self._is_inside
            self._text = after
        else:
            self._text = before[-len(mark) :]  # may contain the beginning of a mark
        self._end_if_spent()

    def _end_if_spent(self) -> None:
        is_whole = not self._decoder.getstate()[0]
        if self._is_inside and self._left <= 0 and is_whole:
            self._forced = self._rules.forced
