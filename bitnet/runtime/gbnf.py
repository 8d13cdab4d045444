r"""Grammars in llama.cpp's form, GBNF, translated to the Lark form of the library llguidance.

A rule is ``name ::= "text" [a-z] (other | rule)* .{1,3}``; the answer follows the rule ``root``.
The syntax is that of llama.cpp's ``grammars/README.md`` and of its parser
(``src/llama-grammar.cpp`` of b11434), and so is the language: each character is a lexeme of the
library, so that its lexer decides nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bitnet.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    #: Id of the token that a text is, if it is one.
    FindToken = Callable[[str], int | None]

    #: Inclusive ranges of code points, ascending.
    Ranges = tuple[tuple[int, int], ...]

MAX_TIMES = 2000  # of a repetition, as in llama.cpp
MAX_NESTING = 100  # of parentheses
MAX_COPIES = 10_000  # of all items of a rule, with their repetitions
LAST = 0x10FFFF  # code point
SURROGATES = (0xD800, 0xDFFF)  # not characters
LIBRARY = "%llguidance"  # begins a grammar in the library's own form, for llama.cpp as well

_NOTHING = '""'  # an item that is the empty text; llama.cpp refuses to repeat it
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"} | {char: char for char in '\\"[]-'}
_HEX = {"x": 2, "u": 4, "U": 8}
_NAME = re.compile(r"[A-Za-z0-9-]+")
_TOKEN = re.compile(r"(!?)<(?:\[([0-9]{1,10})\]|[^>]*)>", re.DOTALL)
_TIMES = re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]*)\s*)?\}")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")


def to_lark(
    text: str, find_token: FindToken, stop_ids: Iterable[int] = (), *, vocab_size: int | None = None
) -> str:
    """The grammar *text* in the Lark form of the library.

    Args:
        text: in GBNF; or in the library's form, which begins with ``%llguidance`` and is unchanged.
        find_token: finds the tokens that the grammar names.
        stop_ids: tokens that end an answer, which cannot be a part of it.
        vocab_size: number of tokens; None if it is not known.
    """
    if text.startswith(LIBRARY):
        return text
    return _Parser(text, find_token, sorted(stop_ids), vocab_size).parse()


@dataclass
class _Parser:
    """Reads a grammar in GBNF from its beginning to its end, and writes the library's rules."""

    text: str
    find_token: FindToken
    stop_ids: list[int]
    vocab_size: int | None
    at: int = 0
    rules: dict[str, str] = field(default_factory=dict)  # right side of each rule, by name
    used: dict[str, int] = field(default_factory=dict)  # where a rule is first used
    terminals: dict[Ranges, str] = field(default_factory=dict)  # name of each terminal
    copies: int = 0  # items of the current rule so far, with their repetitions

    def parse(self) -> str:
        self.skip(lines=True)
        while self.at < len(self.text):
            self.parse_rule()
            self.skip(lines=True)
        if "root" not in self.rules:
            raise UsageError(
                "grammar: it has no rule root",
                hint='for example: root ::= "yes" | "no"',
                field="grammar",
            )
        for name, used_at in self.used.items():
            if name not in self.rules:
                self.at = used_at
                raise self.error(f"there is no rule {name[:40]!r}")
        lines = ["start: " + _rule("root")]
        lines += [f"{_rule(name)}: {right}" for name, right in self.rules.items()]
        lines += [
            f"{name}: /{_character_class(ranges)}/" for ranges, name in self.terminals.items()
        ]
        return "\n".join(lines)

    def parse_rule(self) -> None:
        name = self.expect(_NAME, "the name of a rule")
        self.skip()
        if not self.text.startswith("::=", self.at):
            raise self.error("expected ::=")
        self.at += 3
        self.skip(lines=True)
        self.copies = 0
        self.rules[name] = self.parse_alternatives(0)
        if self.at < len(self.text) and self.text[self.at] not in "\r\n":
            raise self.error("expected the end of the line")

    def parse_alternatives(self, depth: int) -> str:
        sequences = [self.parse_sequence(depth)]
        while self.text.startswith("|", self.at):
            self.at += 1
            self.skip(lines=True)
            sequences.append(self.parse_sequence(depth))
        return " | ".join(sequences)

    def parse_sequence(self, depth: int) -> str:
        """The items up to the end of an alternative; the empty text if there are none."""
        items: list[str] = []
        copies_before = self.copies  # the count without the last item, which a sign may repeat
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "*+?{":
                if not items or items[-1] == _NOTHING:
                    raise self.error(f"there is nothing before {char}")
                repeated, times = self.parse_times()
                items[-1] = f"({items[-1]}){repeated}" if times else _NOTHING
                self.copies = copies_before + times * (self.copies - copies_before)
                if self.copies > MAX_COPIES:
                    raise self.error(f"a rule has at most {MAX_COPIES:,} items, repeated ones too")
            else:
                copies_before = self.copies
                item = self.parse_item(char, depth)
                if item is None:
                    break
                items.append(item)
                self.copies += 1
            self.skip(lines=depth > 0)
        return " ".join(items) or _NOTHING

    def parse_item(self, char: str, depth: int) -> str | None:
        """The item that begins with *char*; None if none does."""
        if char == '"':
            return self.parse_literal()
        if char == "[":
            return self.parse_class()
        if char == ".":
            self.at += 1
            return self.terminal(((0, LAST),))
        if char in "<!":
            return self.parse_token()
        if char == "(":
            return self.parse_group(depth + 1)
        if _NAME.match(char):
            start = self.at
            name = self.expect(_NAME, "a name")
            self.used.setdefault(name, start)
            return _rule(name)
        return None

    def parse_group(self, depth: int) -> str:
        if depth > MAX_NESTING:
            raise self.error(f"parentheses are nested more than {MAX_NESTING} deep")
        self.at += 1
        self.skip(lines=True)
        inner = self.parse_alternatives(depth)
        if not self.text.startswith(")", self.at):
            raise self.error("expected )")
        self.at += 1
        return f"({inner})"

    def parse_literal(self) -> str:
        self.at += 1
        characters = []
        while not self.text.startswith('"', self.at):
            code = self.parse_character()
            characters.append(self.terminal(((code, code),)))
        self.at += 1
        return f"({' '.join(characters)})" if characters else _NOTHING

    def parse_class(self) -> str:
        self.at += 1
        is_negated = self.text.startswith("^", self.at)
        self.at += is_negated
        ranges = []
        while not self.text.startswith("]", self.at):
            low = high = self.parse_character()
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self.parse_character()
            ranges.append((low, high))
        self.at += 1
        if not ranges:
            return _NOTHING  # as llama.cpp reads it
        return self.terminal(_negate(ranges) if is_negated else tuple(ranges))

    def parse_character(self) -> int:
        """Code point of the next character, which may be escaped."""
        if self.at >= len(self.text):
            raise self.error("the text ends inside quotation marks or brackets")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return ord(char)
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        digits = self.text[self.at : self.at + _HEX.get(kind, 0)]
        if kind not in _HEX or not re.fullmatch(f"[0-9a-fA-F]{{{_HEX[kind]}}}", digits):
            self.at -= 2
            raise self.error("there is no such escape")
        self.at += len(digits)
        code = int(digits, 16)
        if code > LAST or SURROGATES[0] <= code <= SURROGATES[1]:
            raise self.error(f"{digits} is not a character")
        return code

    def parse_token(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise self.error("expected a token, such as <[7]> or <think>")
        negation = match[1]
        number = match[2]
        token = int(number) if number else self.find_token(match[0][len(negation) :])
        if token is None:
            raise self.error(f"{match[0][:40]} is not one token of the model")
        if self.vocab_size is not None and token >= self.vocab_size:
            raise self.error(f"there is no token {token}: the model has {self.vocab_size:,}")
        if negation:
            self.at = match.end()
            return f"<[^{','.join(map(str, {token, *self.stop_ids}))}]>"
        if token in self.stop_ids:
            raise self.error(f"{match[0][:40]} ends an answer, and cannot be a part of it")
        self.at = match.end()
        return f"<[{token}]>"

    def parse_times(self) -> tuple[str, int]:
        """The next sign of repetition, as the library has it, and the copies that it makes."""
        char = self.text[self.at]
        if char != "{":
            self.at += 1
            return char, 1
        match = _TIMES.match(self.text, self.at)
        if match is None:
            raise self.error("expected a number of times, such as {2} or {1,3}")
        low_digits, comma, high_digits = match.groups(default="")
        low = _count_of(low_digits)
        high = _count_of(high_digits)
        most = high if comma else low
        if max(low, most) > MAX_TIMES:
            raise self.error(f"a repetition has at most {MAX_TIMES:,} times")
        if comma and high_digits and high < low:
            raise self.error(f"{low} times at least are more than {high} at most")
        self.at = match.end()
        times = max(low, most)
        if comma and not high_digits:  # without an upper limit
            return f"{{{low},}}", max(times, 1)
        return f"{{{low}{comma}{high if comma else ''}}}", times

    def terminal(self, ranges: Ranges) -> str:
        """Name of the terminal for a character in one of *ranges*."""
        characters = _characters(ranges)
        if not characters:
            raise self.error("no character is in these brackets")
        return self.terminals.setdefault(characters, f"T{len(self.terminals)}")

    def expect(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected {what}")
        self.at = match.end()
        return match[0]

    def skip(self, *, lines: bool = False) -> None:
        """Skip spaces and comments, and ends of *lines*."""
        match = (_SPACE_AND_LINES if lines else _SPACE).match(self.text, self.at)
        assert match is not None, "it may be empty"
        self.at = match.end()

    def error(self, reason: str) -> UsageError:
        """The error at the current place."""
        before = self.text[: self.at]
        line = before.count("\n") + 1
        column = self.at - (before.rfind("\n") + 1) + 1
        return UsageError(
            f"grammar: line {line:,}, column {column:,}: {reason}",
            hint="see https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md",
            field="grammar",
        )


def _rule(name: str) -> str:
    """Name of a rule for the library, which knows underscores and no capitals."""
    return "r_" + "".join(
        char if char.islower() or char.isdigit() else f"_{ord(char):x}_" for char in name
    )


def _count_of(digits: str) -> int:
    """The number that *digits* spell, 0 if there are none; any above MAX_TIMES is one more."""
    digits = digits.lstrip("0")
    if len(digits) > len(str(MAX_TIMES)):  # Python refuses to read thousands of digits
        return MAX_TIMES + 1
    return int(digits or "0")


def _negate(ranges: list[tuple[int, int]]) -> Ranges:
    """Code points that are in none of *ranges*."""
    gaps = []
    begin = 0
    for low, high in sorted(ranges):
        if low > high:
            continue
        if begin < low:
            gaps.append((begin, low - 1))
        begin = max(begin, high + 1)
    return (*gaps, (begin, LAST)) if begin <= LAST else tuple(gaps)


def _characters(ranges: Ranges) -> Ranges:
    """*ranges* in order, without empty ones and without surrogates."""
    pieces = []
    low_surrogate, high_surrogate = SURROGATES
    for low, high in ranges:
        pieces.append((low, min(high, low_surrogate - 1)))
        pieces.append((max(low, high_surrogate + 1), high))
    return tuple(sorted({(low, high) for low, high in pieces if low <= high}))


def _character_class(ranges: Ranges) -> str:
    """A regular expression for one character in *ranges*."""
    inner = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges)
    return f"[{inner}]"
