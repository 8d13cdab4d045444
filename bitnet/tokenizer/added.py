"""Find added tokens in a text as Hugging Face's ``AddedVocabulary`` does.

The leftmost match wins, then the longest. A match can include white space around it and can be
restricted to whole words. Every engine uses this one implementation, so they cannot disagree.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokenizers.pre_tokenizers import PreTokenizer

    from bitnet.tokenizer.spec import AddedToken

__all__ = ["AddedTokens"]

# Unicode White_Space; Python's \s also has U+001C..U+001F, which are not in it.
_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACES = re.compile(f"[{_SPACE}]+")
_IS_SPACE = re.compile(f"[{_SPACE}]").match


class AddedTokens:
    """Added tokens of one stage: those found in raw text, or those found in normalized text.

    Args:
        tokens: the added tokens of the vocabulary.
        normalized: the stage; tokens of the other one are ignored.
        sentencepiece: true for a SentencePiece model.
    """

    def __init__(
        self,
        tokens: Iterable[AddedToken],
        *,
        normalized: bool = False,
        sentencepiece: bool = False,
    ) -> None:
        chosen = [token for token in tokens if token.normalized is normalized and token.text]
        self._all = _Matcher(chosen)
        self._ordinary = self._all
        if sentencepiece:  # finds added tokens in the text of control tokens too
            self._ordinary = _Matcher([token for token in chosen if not token.special])

    def split(self, text: str, *, parse_special: bool = True) -> list[int | str]:
        """Ids of the added tokens in *text*, and the unchanged text between them.

        Args:
            text: raw or normalized text, depending on the stage.
            parse_special: recognise special tokens too; other added tokens always are. The text of
                a token that is not recognised stays in one stretch.
        """
        parts = self.cut(text, parse_special=parse_special)
        return [text[start:stop] if id is None else id for id, start, stop in parts]

    def cut(
        self, text: str, *, parse_special: bool = True
    ) -> Iterator[tuple[int | None, int, int]]:
        """As :meth:`split`, in characters: id or ``None``, start, end."""
        return (self._all if parse_special else self._ordinary).cut(text, special=parse_special)


class _Matcher:
    """Tokens behind one regular expression, longest alternative first."""

    def __init__(self, tokens: list[AddedToken]) -> None:
        self._by_text: dict[str, AddedToken] = {}
        for token in tokens:
            self._by_text.setdefault(token.text, token)
        texts = sorted(self._by_text, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def cut(self, text: str, *, special: bool) -> Iterator[tuple[int | None, int, int]]:
        done = 0
        runs = _Runs(text)
        for match in self._pattern.finditer(text) if self._pattern is not None else ():
            token = self._by_text[match.group()]
            if token.special and not special:
                continue
            start, stop = match.span()
            if token.single_word and not _is_whole_word(text, start, stop):
                continue
            if token.lstrip:
                start = runs.start(start)
            if token.rstrip:
                stop = runs.stop(stop)
            if token.lstrip:
                start = max(start, done)
            if done < start:
                yield None, done, start
            if start < stop:  # else it is within the white space of the token before
                yield token.id, start, stop
            done = stop
        if done < len(text):
            yield None, done, len(text)


class _Runs:
    """Bounds of runs of spaces; each run is scanned once, however many tokens it contains."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._begin = self._known = self._end = 0

    def start(self, at: int) -> int:
        """Start of the spaces before *at*, which must not decrease from call to call."""
        begin = at
        while begin > self._known and _IS_SPACE(self._text, begin - 1):
            begin -= 1
        self._begin = self._begin if begin == self._known else begin
        self._known = at
        return self._begin

    def stop(self, at: int) -> int:
        """End of the spaces from *at* on, which must not decrease from call to call."""
        at = max(at, self._end)
        spaces = _SPACES.match(self._text, at)
        self._end = spaces.end() if spaces else at
        return self._end


def _is_whole_word(text: str, start: int, stop: int) -> bool:
    before = start > 0 and _is_word(text[start - 1])
    after = stop < len(text) and _is_word(text[stop])
    return not before and not after


@cache
def _is_word(character: str) -> bool:
    r"""True if *character* is in ``\w`` of Rust's regex crate.

    Python's tables are older and its ``\w`` is a different set, so the library is asked.
    """
    if character.isascii():
        return character.isalnum() or character == "_"
    return not _word_splitter().pre_tokenize_str(character)


@cache
def _word_splitter() -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    word = r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]"
    return Split(Regex(word), "removed")
