"""Texts made to take long: every built-in pattern stays within its steps, and the bound holds."""

import json
import sys
import threading

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from small_specs import byte_level, pieces, split, words
from vocabularies import GPT2_PATTERN

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.library import library_engine, tokenizer_json
from bitnet.tokenizer.spec import AddedToken
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

module = native.module()
needs_native = pytest.mark.skipif(module is None, reason="the native module is not installed")
# Bytes of a text. Quadratic work on so many is more than the steps that the engine allows: 20,000
# and 150 for each byte.
SIZE = 24_000
# Texts that are repeated, and ends of such runs.
UNITS = [
    *("1", "\u00b2", " ", "\n", "\r\n", "\t", "\u00a0", "a", "A", "\u0301", "\u5b57", "\u3042"),
    *("\U0001f600", "'", "'s", "A'", "-", "!/", "\u0531", "\u017f", "\uff9e", "\u0e01", "<"),
    *(" a", "a1", "1a", "1 ", " \n", "a\u0301", "AAAa", "IMGIMG", "\u5b57a", "\U0001f468\u200d"),
]
ENDS = ["", "x", "\u5b57", "!", "\n", "1", "\u0301"]


def _patterns():
    """The regular expressions of all built-in pre-tokenizers."""
    found = {GPT2_PATTERN}
    for kind in PRE_TOKENIZERS.values():
        for step in kind.steps:
            pattern = step.options.get("pattern")
            if isinstance(pattern, dict):
                found.add(pattern["Regex"])
    return sorted(found)


@needs_native
@pytest.mark.parametrize("pattern", _patterns())
def test_no_text_takes_a_built_in_pattern_beyond_its_steps(pattern):
    for unit in UNITS:
        run = unit * (SIZE // len(unit.encode()))
        for end in ENDS:
            assert sum(map(len, module.regex_find_all(pattern, run + end))) <= len(run + end)
        mixed = (run[:300] + "\u5b57!x ") * 60
        assert sum(map(len, module.regex_find_all(pattern, mixed))) <= len(mixed)


@needs_native
@pytest.mark.parametrize("pattern", ["(?:a|a)+b", "(?:a+)+b", "(?=(?:a|aa)+b)a"])
def test_patterns_that_backtracking_makes_exponential_end_within_their_steps(pattern):
    assert module.regex_find_all(pattern, "a" * SIZE + "c") is not None


@needs_native
def test_a_pattern_beyond_its_steps_is_stopped_and_the_next_text_runs():
    tokenizer = Tokenizer.from_spec(split("a{0,1000}a{0,1000}b"))
    with pytest.raises(Unsupported, match="steps") as caught:
        tokenizer.encode("a" * 100_000)
    assert "shorter" in caught.value.hint
    assert tokenizer.decode(tokenizer.encode("aab", add_special=False)) == "aab"


@needs_native
def test_other_threads_run_while_a_text_is_matched():
    may_run = threading.Event()
    has_run = threading.Event()

    def run():
        may_run.wait()
        has_run.set()

    text = "a" * 200_000
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60)  # the thread runs only while this one has released the GIL
    try:
        thread = threading.Thread(target=run)
        thread.start()
        may_run.set()
        for _ in range(20):  # a busy machine may start the thread late
            with pytest.raises(module.OverBudget):
                module.regex_find_all("a{0,1000}a{0,1000}b", text)
            if has_run.is_set():
                break
        ran_beside = has_run.is_set()
    finally:
        sys.setswitchinterval(interval_s)
    thread.join()
    assert ran_beside


@needs_native
@pytest.mark.parametrize("name", ["afmoe", "superbpe", "tiny_aya", "deepseek-llm"])
@pytest.mark.parametrize("count", [599, 600, 601, 1000, 3001])
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("a ", "a"), ("\u00b2", "\u00b2"), ("\u5b57", " x")]
)
def test_long_runs_are_cut_as_the_library_cuts_them(name, count, before, after):
    spec = byte_level(pre_tokenizer=PRE_TOKENIZERS[name].steps, added=())
    library = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(spec)))
    for unit in ("1", " "):
        text = before + unit * count + after
        expected = library.encode(text, add_special_tokens=False).ids
        assert Tokenizer.from_spec(spec).encode(text, add_special=False) == expected


@pytest.mark.parametrize("pattern", ["(a+)+x", r"\s+$", r"a*b*c"])
def test_a_pattern_of_unknown_cost_is_not_given_to_the_library(pattern):
    with pytest.raises(Unsupported, match="time without a bound"):
        library_engine(split(pattern))


def test_patterns_of_published_tokenizers_are_given_to_the_library_but_for_slow_ones():
    # The expressions of these take quadratic time in the library.
    slow = {"afmoe", "tiny_aya", "cohere2moe", "deepseek-llm", "superbpe"}
    for name in set(PRE_TOKENIZERS) - slow:
        library_engine(byte_level(pre_tokenizer=PRE_TOKENIZERS[name].steps, added=()))
    for name in slow:
        with pytest.raises(Unsupported, match="time without a bound"):
            library_engine(byte_level(pre_tokenizer=PRE_TOKENIZERS[name].steps, added=()))


def _one_piece(size):
    """A Unigram model with a piece of *size* bytes."""
    tokens = ["<unk>", "a", "a" * size]
    return pieces(tokens=tokens, scores=[0.0, -1.0, -2.0], token_types=[2, 1, 1])


@needs_native
def test_a_text_for_a_piece_of_the_greatest_length_is_stopped_at_its_steps():
    tokenizer = Tokenizer.from_spec(_one_piece(2048))  # the most bytes of a Unigram piece
    assert tokenizer.encode("a" * 40, add_special=False) == [1] * 40
    with pytest.raises(Unsupported, match="steps"):
        tokenizer.encode("a" * 200_000)


def test_a_piece_beyond_the_greatest_length_is_refused(engine):
    with pytest.raises(Unsupported, match="bytes in a token"):
        Tokenizer.from_spec(_one_piece(2049))


# Added tokens that are spaces, or take in the spaces beside them.
SPACED = (
    AddedToken(0, " ", special=False, lstrip=True, rstrip=True),
    AddedToken(1, "<m>", lstrip=True, rstrip=True),
    AddedToken(2, "\u3000", special=False, lstrip=True),
)


@settings(max_examples=200)
@given(text=st.text(st.sampled_from(" \u3000\n<m>ab"), max_size=40))
def test_both_engines_take_spaces_into_added_tokens_alike(text):
    spec = byte_level(added=SPACED)
    try:
        expected = library_engine(spec).encode(text)
    except InvalidFormat:  # the library fails where two of them take in the same spaces
        return
    assert Tokenizer.from_spec(spec).encode(text, add_special=False) == expected


def test_the_library_refuses_a_run_of_more_than_1024_spaces_that_are_tokens():
    library = library_engine(byte_level(added=SPACED[2:]))
    assert len(library.encode("\u3000" * 1024)) == 1024
    with pytest.raises(Unsupported, match="more than 1,024 spaces in a row"):
        library.encode("a" + "\u3000" * 30_000)


@needs_native
def test_many_added_tokens_in_one_run_of_spaces_do_not_walk_it_again():
    run = " " * 300_000
    swallows = Tokenizer.from_spec(byte_level(added=SPACED))
    assert swallows.encode(run, add_special=False) == [0]  # rstrip, as in the library
    left = (AddedToken(0, " ", special=False, lstrip=True),)
    assert (
        len(Tokenizer.from_spec(byte_level(added=left)).encode(run, add_special=False)) == 300_000
    )


@settings(max_examples=100)
@given(text=st.text(st.sampled_from("ab\u00e9\u5b57\U0001f600\u2581 "), max_size=30))
def test_both_engines_find_the_same_unigram_pieces(text):
    spec = pieces(tokens=["<unk>", "\u2581", "a", "\u5b57a", "aab", "ab\u00e9", "\u00e9"])
    expected = library_engine(spec).encode(text)
    assert Tokenizer.from_spec(spec).encode(text, add_special=False) == expected


@settings(max_examples=100)
@given(text=st.text(st.sampled_from("helo a\u5b57\U0001f600"), max_size=30))
def test_both_engines_cut_words_near_their_longest_length_alike(text):
    spec = words(max_chars_per_word=5)
    expected = library_engine(spec).encode(text)
    assert Tokenizer.from_spec(spec).encode(text, add_special=False) == expected
