"""Ids as an array: the ids of ``encode`` for every vocabulary, engine, text and option."""

import random
import re
from itertools import product

import numpy as np
import pytest
from small_specs import byte_level
from vocabularies import PACKED, SMALL, spec, text

from bitnet.base import native
from bitnet.base.errors import UsageError, WrongType
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.load import mock_tokenizer

OPTIONS = [
    {"add_special": add_special, "parse_special": parse_special, "at_most": at_most}
    for add_special, parse_special, at_most in product(
        (True, False), (True, False), (None, 0, 1, 2, 3, 7)
    )
]


def check(tokenizer, whole, options):
    """Assert that the array and the list of the ids of *whole* are equal, or both refused alike."""
    try:
        expected = tokenizer.encode(whole, **options)
    except UsageError as refusal:  # BOS and EOS alone are more ids than at_most
        with pytest.raises(UsageError, match=re.escape(refusal.message)):
            tokenizer.encode_array(whole, **options)
        return
    ids = tokenizer.encode_array(whole, **options)
    assert isinstance(ids, np.ndarray)
    assert ids.dtype == np.int32
    assert ids.tolist() == expected, (whole, options)


@pytest.mark.parametrize("name", [*PACKED, *SMALL])
def test_an_array_has_the_ids_of_the_list_whatever_the_options(name, engine, tmp_path):
    tokenizer = Tokenizer.from_spec(spec(name, tmp_path))
    assert tokenizer.engine == engine
    tokens = [tokenizer.token_bytes(id).decode(errors="replace") for id in tokenizer.special_ids]
    rng = random.Random(49)
    for options in OPTIONS:
        check(tokenizer, "", options)
        whole = text(rng)
        check(tokenizer, whole, options)
        if tokens:
            check(tokenizer, rng.choice(tokens) + whole + rng.choice(tokens), options)


def test_a_mock_tokenizer_gives_arrays_of_its_ids(engine):
    tokenizer = mock_tokenizer()
    assert tokenizer.engine == engine
    for whole, options in product(("", "a", "She was — é"), OPTIONS):
        check(tokenizer, whole, options)


@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
@pytest.mark.parametrize("threads", ["1", "3"])
def test_an_array_of_a_text_that_threads_share_has_the_ids_of_the_list(threads, monkeypatch):
    monkeypatch.setenv("BITNET_THREADS", threads)
    tokenizer = Tokenizer.from_spec(byte_level())
    assert tokenizer.engine == "native"
    rng = random.Random(50)
    whole = " ".join(rng.choices(["hello", "aaaa", "é", "日本", "1811", "\n"], k=60_000))
    ids = tokenizer.encode_array(whole, add_special=False)
    assert ids.tolist() == tokenizer.encode(whole, add_special=False)
    assert tokenizer.decode(ids) == whole


def test_an_array_may_be_changed_and_outlives_its_tokenizer(engine):
    tokenizer = Tokenizer.from_spec(byte_level())
    assert tokenizer.engine == engine
    ids = tokenizer.encode_array("hello", add_special=False)
    expected = tokenizer.encode("hello", add_special=False)
    again = tokenizer.encode_array("hello", add_special=False)
    del tokenizer
    ids[0] += 1
    assert again.tolist() == expected


def test_arrays_and_lists_are_refused_for_the_same_texts(engine):
    tokenizer = Tokenizer.from_spec(byte_level())
    assert tokenizer.engine == engine
    for whole, error in (("ab\ud800", UsageError), (3, WrongType), (b"ab", WrongType)):
        messages = []
        for encode in (tokenizer.encode, tokenizer.encode_array):
            with pytest.raises(error) as raised:
                encode(whole)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
