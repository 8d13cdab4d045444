"""The tokenizer that everything else uses, on both engines."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from small_specs import byte_level

from bitnet.base.errors import UsageError
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.spec import AddedToken, TokenizerSpec


@pytest.fixture
def tokenizer(engine):
    """A byte-level tokenizer on each engine."""
    made = Tokenizer.from_spec(byte_level())
    assert made.engine == engine
    return made


def _plain():
    """A SentencePiece vocabulary with byte fallback, which puts a space before a text."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "h", "i", "\u2581h", "\u2581hi"]
    types = [2, 3, 3, *([6] * 256), *([1] * 5)]
    return TokenizerSpec(
        model="spm",
        tokens=tokens,
        token_types=types,
        scores=[0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0],
        added=(AddedToken(1, "<s>"), AddedToken(2, "</s>")),
        byte_fallback=True,
        add_space_prefix=True,
        unknown_id=0,
        bos_id=1,
        add_bos=True,
    )


def test_bos_is_added_once(tokenizer):
    bos = tokenizer.bos_id
    plain = tokenizer.encode("hello", add_special=False)
    assert tokenizer.encode("hello") == [bos, *plain]
    assert tokenizer.encode("<s>hello") == [bos, *plain]


def test_an_empty_text_is_bos_alone(tokenizer):
    assert tokenizer.encode("") == [tokenizer.bos_id]
    assert tokenizer.encode("", add_special=False) == []


def test_the_text_of_a_special_token_is_plain_text_when_not_parsed(tokenizer):
    ids = tokenizer.encode("<s>", add_special=False, parse_special=False)
    assert tokenizer.bos_id not in ids
    assert tokenizer.decode(ids) == "<s>"


def test_special_tokens_can_be_left_out(tokenizer):
    ids = tokenizer.encode("hello</s>")
    assert tokenizer.decode(ids) == "<s>hello</s>"
    assert tokenizer.decode(ids, skip_special=True) == "hello"


def test_half_a_surrogate_pair_is_an_error_that_names_it(tokenizer):
    with pytest.raises(UsageError, match=r"character 2 is U\+D800"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize("id", [-1, 10**6, 2**32])
def test_an_id_outside_of_the_vocabulary_is_an_error(tokenizer, id):
    with pytest.raises(UsageError, match="not in the vocabulary"):
        tokenizer.decode([id])


def test_the_space_that_encoding_adds_is_taken_off(engine):
    tokenizer = Tokenizer.from_spec(_plain())
    assert tokenizer.engine == engine
    ids = tokenizer.encode("hi hi\né")
    assert tokenizer.decode(ids, skip_special=True) == "hi hi\né"
    assert tokenizer.decode(ids) == "<s> hi hi\né"
    assert tokenizer.token_bytes(3 + 10) == b"\n"  # byte 10, after three special tokens


def test_ids_may_be_an_array(tokenizer):
    ids = np.array(tokenizer.encode("hello", add_special=False))
    assert tokenizer.decode(ids) == "hello"


def test_a_tokenizer_that_is_pickled_raises_an_error_with_the_way_out(tokenizer):
    with pytest.raises(TypeError, match="make it again"):
        pickle.dumps(tokenizer)


def test_threads_share_one_tokenizer(tokenizer):
    texts = [f"hello {i} aaaa é" * 20 for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == [tokenizer.encode(t) for t in texts]


@pytest.mark.parametrize("name", ["encode", "encode_array"])
def test_no_more_ids_are_returned_than_at_most(tokenizer, name):
    spec = byte_level(add_eos=True)
    encode = getattr(Tokenizer.from_spec(spec), name)
    plain = list(encode("hello hello", add_special=False))
    for at_most in range(2, 20):
        ids = list(encode("hello hello", at_most=at_most))
        assert ids == [spec.bos_id, *plain[: at_most - 2], spec.eos_id]
        begun = list(encode("<s>hello hello", at_most=at_most))  # the text has its own BOS
        assert begun == ids
    for at_most in range(20):
        ids = list(encode("hello hello", add_special=False, at_most=at_most))
        assert ids == plain[:at_most]


@pytest.mark.parametrize("name", ["encode", "encode_array"])
@pytest.mark.parametrize(
    ("at_most", "message"),
    [
        (1, "at_most is 1, and 2 ids are put around a text"),
        (0, "at_most is 0, and 2 ids are put around a text"),
        (-1, "at_most is -1, expected 0 or more"),
        (1.5, "at_most is of type float"),
        (True, "at_most is of type bool"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(tokenizer, name, at_most, message):
    encode = getattr(Tokenizer.from_spec(byte_level(add_eos=True)), name)
    with pytest.raises(UsageError, match=message):
        encode("hello", at_most=at_most)
    with pytest.raises(UsageError, match=message):
        encode("<s>hello", at_most=at_most)
    if at_most not in (0, 1):
        with pytest.raises(UsageError, match=message):
            encode("hello", add_special=False, at_most=at_most)
