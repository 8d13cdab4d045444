"""The native regular expressions against Oniguruma as the ``tokenizers`` library uses it."""

import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from bitnet.base import native
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

module = native.module()
pytestmark = pytest.mark.skipif(module is None, reason="the native module is not installed")

# Expressions that are not valid or that the native engine does not compute exactly.
UNSUPPORTED = [
    "(?<=a)b",
    "[[:alpha:]]",
    "(a",
    "a)",
    "a{2000}",
    "[z-a]",
    "(?i:ß)",
    # Oniguruma lets these match a sharp s or a ligature.
    *("(?i:ss)", "(?i:SS)", "(?i:aSt)", "(?i:fI)"),
    # Oniguruma takes them for other text than a code point, or refuses them.
    *(r"\u", r"\u41", r"\x", r"\x{}", r"\x{4g}", r"[\x]"),
]
# Supported constructs, by expressions that use them.
CONSTRUCTS = [
    r"\p{L}*",
    r"\bx|\b.\B",
    r"(?=[aeiou])",
    *(r"a{1,2}+", r"a++b?", r"(?:ab|a)(?:bc|c)?", r"(?>a|ab)c?", r"a+?b", r"[^\S\n]+", r"a$"),
    *(r"(?i:'s|k)+", r"[\p{Han}&&[^一]]+", r"\P{L}+", r"\p{^L}+", r"[^(\s|[.,])]+", r"\x{41}|\d"),
    *(r"(?!b)\w", r"(?=..)[ab]", r"\Aa|b\z", r".+", r"(?:a{2}|b){2,3}", r"[a-c\-\]]+", r"a|^b"),
]
LONG = {
    name: text * 100_000 + "x" for name, text in [("spaces", " "), ("lines", "\n"), ("cjk", "字")]
}
mixed = st.text(
    st.one_of(
        st.sampled_from("abcAsSkKxyz'- .,\r\n\t 019]一二字ſ\u212aé\u0301²Ⅷ\u3000"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=40,
)
# Parts of expressions in which the case of letters or the length of an escape matters. U+212A, the
# Kelvin sign, equals K if case is ignored.
_ATOMS = st.one_of(
    st.sampled_from([*"sSfFitTkKla'ſ\u212aé"]),
    st.sampled_from(
        ["[sS]", "[sf]", "[^s]", "[a-t]", "[s&&[^t]]", r"\p{L}", r"\p{Lu}", r"\s", "."]
    ),
    st.builds(
        str.format,
        st.sampled_from([r"\x{{{}}}", r"\x{}", r"\u{}", r"[\x{{{}}}]", r"[\u{}]"]),
        st.text("04156fFsg", max_size=5),
    ),
)
_QUANTIFIED = st.builds("".join, st.tuples(_ATOMS, st.sampled_from(["", "", "", "+", "?", "{2}"])))
_GROUPS = st.builds(
    str.format,
    st.sampled_from(["(?i:{})", "(?:{})", "(?i){}", "{}|a", "(?i:{}|s)"]),
    st.lists(_QUANTIFIED, min_size=1, max_size=3).map("".join),
)
patterns = st.lists(_GROUPS, min_size=1, max_size=2).map("".join)
folded = st.text("sSſßẞfFiItTkK\u212alaAéÉ'ﬀﬁﬂﬆﬅ\x04A\x41\0 ", max_size=20)


def _expressions():
    """Names and expressions of the known pre-tokenizers that the native engine supports."""
    found = {}
    for name, kind in PRE_TOKENIZERS.items():
        for step in kind.steps:
            pattern = step.options.get("pattern")
            if isinstance(pattern, dict) and "Regex" in pattern:
                found.setdefault(pattern["Regex"], name)
    return [(name, pattern) for pattern, name in found.items() if _is_supported(pattern)]


def _is_supported(pattern):
    """True if the native engine compiles *pattern*."""
    try:
        module.regex_find_all(pattern, "")
    except ValueError:
        return False
    return True


def _oracle(pattern, text):
    """Matches of *pattern* in *text* by Oniguruma, without empty ones."""
    step = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return [piece for piece, _ in step.pre_tokenize_str(text)]


@pytest.mark.parametrize("pattern", CONSTRUCTS)
@given(text=mixed)
def test_a_construct_matches_what_oniguruma_matches(pattern, text):
    # The library shows pieces of the text, and an empty match is not a piece.
    assert [match for match in module.regex_find_all(pattern, text) if match] == _oracle(
        pattern, text
    )


@given(patterns, folded)
def test_an_expression_matches_what_oniguruma_matches_or_is_refused(pattern, text):
    assume(_is_supported(pattern))
    assert [match for match in module.regex_find_all(pattern, text) if match] == _oracle(
        pattern, text
    )


@pytest.mark.slow
def test_known_pre_tokenizers_match_what_oniguruma_matches():
    expressions = _expressions()
    assert len(expressions) > 30

    @given(text=mixed)
    def check(text):
        for name, pattern in expressions:
            assert module.regex_find_all(pattern, text) == _oracle(pattern, text), name

    check()


@pytest.mark.parametrize("pattern", UNSUPPORTED)
def test_an_expression_that_is_not_computed_exactly_is_refused(pattern):
    with pytest.raises(ValueError, match="regular expression"):
        module.regex_find_all(pattern, "text")


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_run_is_matched_within_the_step_limit_of_the_engine(text):
    for name in ("llama-bpe", "deepseek-llm", "gpt-4o"):
        for step in PRE_TOKENIZERS[name].steps:
            pattern = step.options.get("pattern")
            if not isinstance(pattern, dict):
                continue
            regex = pattern["Regex"]
            # From each space, Oniguruma looks for the end of the spaces again, for minutes.
            is_slow = regex == r"\s+$" and text == LONG["spaces"]
            expected = [] if is_slow else _oracle(regex, text)
            assert module.regex_find_all(regex, text) == expected, (name, regex)


@pytest.mark.parametrize("name", ["L", "N", "P", "S", "M", "Lu", "Ll", "Lo", "Nd", "Han", "Hangul"])
def test_properties_are_those_of_the_library(name):
    # Every 61st code point, but for surrogates.
    codes = [c for c in range(0, sys.maxunicode, 61) if not 0xD800 <= c < 0xE000]
    text = "".join(map(chr, codes))
    pattern = rf"\p{{{name}}}"
    assert module.regex_find_all(pattern, text) == _oracle(pattern, text)
