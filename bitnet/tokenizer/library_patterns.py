r"""Regular expressions that are safe for the ``tokenizers`` library.

Oniguruma backtracks without a time limit. Patterns of ours that are quadratic in it have
equivalents here that find the same matches in linear time; a pattern from a file is refused if it
can take exponential time. The native engine needs neither: it counts its steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitnet.errors import Unsupported
from bitnet.tokenizer.limits import PATTERN_DEPTH, PATTERN_PROGRAM
from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from bitnet.tokenizer.spec import Step

__all__ = ["linear_steps"]

# \G is where the search begins, which is where the last match ended: behind a digit the rest of the
# run is whole threes. Where a run of spaces fails at its first one, it fails at all of them.
_TWINS = {
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))": (
        r"\G(?<=\p{N})\p{N}{3}|\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
    ),
    r"\d{1,3}(?=(?:\d{3})*\b)": r"\G(?<=\d)\d{3}|(?<!\d)\d{1,3}(?=(?:\d{3})*\b)",
    r"\s+$": r"(?<!\s)\s+$",
}
_CHOICES = 8  # in sequence, repeated as a whole
# References to what was matched, calls of groups, conditions, absent texts.
_UNBOUNDED = re.compile(r"\\[1-9]|\\[kg]|\(\?(?:\(|~|<\w+>|R)|\\K")
_TOKEN = re.compile(
    r"\\p\{[^}]*\}|\\x\{[^}]*\}|\\.|(?P<open>\((?:\?(?:[-imx]+:|:|=|!|>|<=|<!|<\w+>|[-imx]+(?=\))))?)"
    r"|(?P<close>\))|(?P<or>\|)|(?P<class>\[)"
    r"|(?P<quantifier>[*+?]|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\})|.",
    re.DOTALL,
)


def linear_steps(steps: tuple[Step, ...], source: str = "") -> tuple[Step, ...]:
    """*steps* with patterns that the library matches in acceptable time.

    Raises:
        Unsupported: a pattern from a file can take exponential time.
    """
    known = {_regex(step) for pre in PRE_TOKENIZERS.values() for step in pre.steps}
    out = []
    for step in steps:
        regex = _regex(step)
        if regex in _TWINS:
            pattern = {"Regex": _TWINS[regex]}
            step = type(step)(step.type, {**step.options, "pattern": pattern})
        elif regex is not None and regex not in known and (reason := _explosive(regex)):
            raise Unsupported(
                f"{source or 'the decoder'} has a pattern with {reason}, which takes time without a"
                " bound",
                hint="name another tokenizer of the model with --tokenizer FILE",
            )
        out.append(step)
    return tuple(out)


def _regex(step: Step) -> str | None:
    pattern = step.options.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    return regex if isinstance(regex, str) else None


@dataclass
class _Part:
    """Properties of a group, or of its last element."""

    choices: int = 0  # alternatives or repetitions
    quantifiers: int = 0  # in sequence
    size: int = 1  # copies of a character with repetitions expanded


def _explosive(regex: str) -> str:
    """The reason why *regex* is dangerous; empty if it is not."""
    groups = [_Part(size=0)]
    last = _Part()
    at = 0
    while at < len(regex):
        match = _TOKEN.match(regex, at)
        assert match is not None  # the last alternative is any character
        at = _class_end(regex, at) if match["class"] else match.end()
        if unbounded := _UNBOUNDED.match(regex, match.start()):
            return f"{unbounded[0]!r}"
        if match["open"]:
            groups.append(_Part(size=0))
            if len(groups) > PATTERN_DEPTH:
                return "groups that deep"
        elif match["close"]:
            if len(groups) == 1:
                return "an unmatched )"
            last = groups.pop()
            groups[-1].choices = max(groups[-1].choices, last.choices)
            groups[-1].size += last.size
        elif match["or"]:
            groups[-1].choices = max(groups[-1].choices, 1)
        elif match["quantifier"]:
            repeated = _repeated(match)
            last.quantifiers += 1
            if last.quantifiers > PATTERN_DEPTH:
                return "quantifiers that deep"
            if last.choices and (repeated is None or last.choices * repeated > _CHOICES):
                return "a repetition of what repeats or chooses"
            last.choices = last.choices * (repeated or 1) or int(repeated != 1)
            groups[-1].choices = max(groups[-1].choices, last.choices)
            extra = last.size * ((repeated or 1) - 1)
            groups[-1].size += extra
            last.size += extra
        else:
            last = _Part()
            groups[-1].size += 1
        if groups[-1].size > PATTERN_PROGRAM:
            return "repetitions that long"
    return ""


def _repeated(match: re.Match[str]) -> int | None:
    """Largest number of repetitions of a quantifier, ``None`` if unbounded."""
    if match["quantifier"][0] != "{":
        return 1 if match["quantifier"] == "?" else None
    if match["high"]:
        return int(match["high"])
    return None if match["comma"] else int(match["low"] or 1)


def _class_end(regex: str, at: int) -> int:
    depth = 0
    while at < len(regex):
        if regex[at] == "\\":
            at += 1
        elif regex[at] == "[":
            depth += 1
        elif regex[at] == "]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return at
