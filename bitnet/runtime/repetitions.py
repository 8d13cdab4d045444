"""DRY: tokens that would prolong a repetition of the text become less likely.

Formulas are those of llama.cpp (``src/llama-sampler.cpp`` of b11434: ``dry``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bitnet.runtime.chain_options import BREAKERS, WHOLE_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bitnet.runtime.chain_options import ChainOptions
    from bitnet.tokenizer import Tokenizer

    #: By the first token of each sequence that ends a repetition, the tokens that follow it.
    Breakers = Mapping[int, Sequence[tuple[int, ...]]]

LONGEST_BREAKER = 40  # bytes of a text that ends repetitions
LONGEST_TAIL = 20  # tokens after the first one
MAX_PENALTY_LOG = 88.7228391  # natural logarithm of the largest float32


class Repetitions:
    """The repetitions at the end of one text."""

    def __init__(self, options: ChainOptions, breakers: Breakers, prompt: Sequence[int]) -> None:
        """Repetitions of *prompt*, to which tokens are added."""
        self._options = options
        self._breakers = breakers
        window = options.dry_penalty_last_n
        recent = prompt if window == WHOLE_TEXT else prompt[max(0, len(prompt) - window) :]
        self._text = np.zeros(max(64, 2 * len(recent)), dtype=np.int64)
        # for each position, how many tokens before it equal the tokens at the end of the text
        self._matches = np.zeros_like(self._text)
        self._count = len(recent)  # tokens in the two arrays
        self._text[: self._count] = recent
        self._matches[: self._count] = _matches_of(list(recent))

    def add(self, token: int) -> None:
        """Record that *token* follows."""
        count = self._count
        if count + 1 == len(self._text):
            self._text = np.concatenate((self._text, np.zeros_like(self._text)))
            self._matches = np.concatenate((self._matches, np.zeros_like(self._matches)))
        is_same = self._text[:count] == token
        self._matches[1 : count + 1] = np.where(is_same, self._matches[:count] + 1, 0)
        self._text[count] = token
        self._count = count + 1

    def penalties(self) -> dict[int, float]:
        """Numbers to subtract from the logits of tokens, by their ids."""
        options = self._options
        count = self._count
        if options.dry_penalty_last_n != WHOLE_TEXT:
            count = min(count, options.dry_penalty_last_n)
        if count <= options.dry_allowed_length:
            return {}
        longest = self._find_limit(count)
        if longest < options.dry_allowed_length:
            return {}

        begin = self._count - count
        places = np.arange(begin + 1, self._count)
        lengths = np.minimum(self._matches[places], places - begin)
        lengths = np.minimum(lengths, longest)
        by_token: dict[int, int] = {}
        for at in np.flatnonzero(lengths >= options.dry_allowed_length):
            token = int(self._text[places[at]])
            by_token[token] = max(by_token.get(token, 0), int(lengths[at]))
        return {
            token: self._penalty(length)
            for token, length in by_token.items()
            if () not in self._breakers.get(token, ())
        }

    def _penalty(self, length: int) -> float:
        """Penalty of a token that prolongs a repetition of *length* tokens."""
        options = self._options
        exponent = length - options.dry_allowed_length
        if options.dry_base > 1.000001:
            largest = int(MAX_PENALTY_LOG / math.log(options.dry_base))
            exponent = min(exponent, largest) if largest > 0 else exponent
        return float(options.dry_multiplier * options.dry_base**exponent)

    def _find_limit(self, count: int) -> int:
        """Most tokens that a repetition among the last *count* may have: those after a breaker."""
        text = self._text[self._count - count : self._count].tolist()
        for back in range(count):
            head = count - 1 - back
            matching = [
                len(tail)
                for tail in self._breakers.get(text[head], ())
                if len(tail) <= back and tuple(text[head + 1 : head + 1 + len(tail)]) == tail
            ]
            if matching:
                return back - max(matching)
        return count


def _matches_of(text: list[int]) -> list[int]:
    """For each position of *text*, how many tokens before it equal those at the end of *text*.

    It is the Z-function of the text from its end to its beginning, in linear time.
    """
    count = len(text)
    back = text[::-1]
    common = [0] * count  # tokens that the text from each place of *back* shares with its beginning
    # Of the parts of *back* known to equal the beginning of *back*, the one that ends last.
    begin = end = 0
    for at in range(1, count):
        length = min(end - at, common[at - begin]) if at < end else 0
        while at + length < count and back[length] == back[at + length]:
            length += 1
        common[at] = length
        if at + length > end:
            begin = at
            end = at + length
    return [0, *common[:0:-1]][:count]


def find_breakers(tokenizer: Tokenizer, texts: Sequence[str] = ()) -> Breakers:
    """Sequences of tokens that contain one of *texts*, else of llama.cpp's; see :data:`Breakers`.

    A token that contains the whole text ends a repetition alone. One that ends with a beginning of
    the text ends it if the tokens of the rest of the text follow.
    """
    marks = [text.encode()[:LONGEST_BREAKER] for text in texts or BREAKERS]
    tails: dict[bytes, tuple[int, ...]] = {}
    breakers: dict[int, list[tuple[int, ...]]] = {}
    for token in range(tokenizer.vocab_size):
        raw = tokenizer.token_bytes(token)
        for mark in marks:
            if mark in raw:
                breakers.setdefault(token, []).append(())
                continue
            for rest in _find_rests(raw, mark):
                if rest not in tails:
                    text = rest.decode("utf-8", "replace")
                    ids = tokenizer.encode(text, add_special=False, parse_special=False)
                    tails[rest] = tuple(ids[:LONGEST_TAIL])
                tails_of_token = breakers.setdefault(token, [])
                if tails[rest] not in tails_of_token:
                    tails_of_token.append(tails[rest])
    return breakers


def _find_rests(raw: bytes, mark: bytes) -> Iterable[bytes]:
    """Rests of *mark*, each after a beginning of it with which *raw* ends."""
    for length in range(min(len(raw), len(mark) - 1), 0, -1):
        if raw.endswith(mark[:length]):
            yield mark[length:]
