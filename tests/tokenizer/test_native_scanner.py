"""Scanners of the common expressions, against the engine for any expression."""

import random
import re

import pytest
from vocabularies import GPT2_PATTERN

from bitnet.base import native
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

module = native.module()
pytestmark = pytest.mark.skipif(module is None, reason="the native module is not built")

# cl100k's expression without possessive quantifiers.
CL100K_SHORT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)


def _patterns():
    """Expressions that have a scanner, by the name of a tokenizer with it."""
    found = {GPT2_PATTERN: "gpt-2", CL100K_SHORT: "cl100k"}
    for name, pre in PRE_TOKENIZERS.items():
        for step in pre.steps:
            pattern = step.options.get("pattern", {})
            if isinstance(pattern, dict) and "Regex" in pattern:
                found.setdefault(pattern["Regex"], name)
    names = {p: name for p, name in found.items() if module and module.scan_all(p, "") is not None}
    return {name: pattern for pattern, name in names.items()}


PATTERNS = _patterns()
_CONTRACTIONS = re.compile(r"(?:'[a-z]+\|)+|\(\?i:(?:'[a-z]+\|?)+\)\||'\(\?i:[^)]*\)\|")
_DIGITS = re.compile(r"\|(\\p\{N\}(?:\{1,3\}|\{1\}|\+)?)\|")


def _recombined():
    """Expressions that join the contractions of one of PATTERNS, or none, to the rest of another.

    Those with a scanner, also with another number of digits.
    """
    beginnings = {""}
    rests = set()
    for pattern in PATTERNS.values():
        match = _CONTRACTIONS.match(pattern)
        beginnings |= {match[0]} if match else set()
        rest = pattern[match.end() :] if match else pattern
        rests |= {rest}
        if digits := _DIGITS.search(rest):
            before, behind = rest[: digits.start()], rest[digits.end() :]
            rests |= {f"{before}|{new}|{behind}" for new in (r"\p{N}", r"\p{N}{1,3}", r"\p{N}+")}
    joined = {beginning + rest for beginning in beginnings for rest in rests}
    return sorted(pattern for pattern in joined if module.scan_all(pattern, "") is not None)


# Characters of every class that the expressions distinguish, with exceptions such as the long s.
CHARACTERS = (
    "aZsStTrRvVeEmMlLdDfF'’\u017f 0179\u00bd\u0663.,!?/\\#<|>_-\n\r\t\v\f\x85\xa0\u2003\u3000"
    "éÉßǅʰªºжЖ中文あア한ไทย\u0301\u0e31\u094d\u20dd😀👩\u200d\ufe0f\U000e0041\U000f0000\U0010ffff\x00\x1c"
)
UNITS = [
    *(
        "'s",
        "'S",
        "'ſ",
        "'ll",
        "'LL",
        "'re",
        "I'm",
        " the",
        "  ",
        "\n\n",
        " \n",
        "\r\n",
        "ABC",
        "abC",
    ),
    *(
        "Abc",
        "A中b",
        "中A",
        "123",
        "12345",
        "...",
        "?!\n",
        "//\n/",
        " .",
        " 中",
        "e\u0301",
        " \u0301",
    ),
]


def _text(rng):
    """A random text of these characters and units, half of the time in ASCII."""
    pools = [CHARACTERS, UNITS, rng.sample(CHARACTERS, 4), "aA中\u0301' "]
    if rng.randrange(2):  # scanners read sixteen bytes of ASCII at a time
        pools = [[unit for unit in pool if unit.isascii()] or ["a"] for pool in pools]
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(1, 40)))


def test_the_expressions_of_the_common_models_have_scanners():
    assert {"gpt-2", "llama3", "qwen2", "gpt-4o", "tekken", "qwen35"} <= set(PATTERNS)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_scanner_cuts_as_the_engine_does(name):
    pattern = PATTERNS[name]
    rng = random.Random(name)
    complete = 0
    for _ in range(3000):
        text = _text(rng)
        pieces, remainder = module.scan_all(pattern, text)
        expected = module.regex_find_all(pattern, text)
        assert "".join(expected) == text, "the expression does not cover every text"
        assert pieces == expected[: len(pieces)], repr(text)
        assert "".join(pieces) + remainder == text
        # A scanner may leave the rest of a text to the engine, but not of an ASCII text.
        assert not remainder or not text.isascii()
        complete += not remainder
    assert complete > 2000


def test_a_scanner_of_recombined_alternatives_cuts_as_the_engine_does():
    patterns = _recombined()
    assert len(patterns) > 2 * len(PATTERNS)
    assert any(pattern.startswith(r" ?\p{L}+") for pattern in patterns)  # GPT-2's without the first
    rng = random.Random(1)
    for pattern in patterns:
        for _ in range(200):
            text = _text(rng)
            pieces, _remainder = module.scan_all(pattern, text)
            expected = module.regex_find_all(pattern, text)
            assert pieces == expected[: len(pieces)], (pattern, text)


@pytest.mark.parametrize("name", PATTERNS)
def test_cutting_a_text_where_threads_do_changes_no_piece(name):
    rng = random.Random(name)
    tried = 0
    for _ in range(1500):
        text = _text(rng)
        whole = module.regex_find_all(PATTERNS[name], text)
        for at in module.scan_parts(text):
            sides = (module.regex_find_all(PATTERNS[name], side) for side in (text[:at], text[at:]))
            assert [piece for side in sides for piece in side] == whole, repr(
                (text[:at], text[at:])
            )
            tried += 1
    assert tried > 1000


@pytest.mark.parametrize("change", ["+", "|x", ")", "\\p{N}"])
def test_an_expression_that_is_nearly_a_known_one_has_no_scanner(change):
    for pattern in PATTERNS.values():
        assert module.scan_all(pattern + change, "text") is None
        assert module.scan_all(change + pattern, "text") is None
