"""Texts encoded by several threads have the ids that one thread finds."""

import random
from dataclasses import replace

import pytest
from vocabularies import PACKED, SMALL, spec, text

from bitnet.base import native
from bitnet.base.errors import InvalidFormat
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer.spec import AddedToken, Step, TokenizerSpec
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

pytestmark = pytest.mark.skipif(native.module() is None, reason="no native module")
LONG = 140_000  # bytes, more than two of the parts of 64 KiB that threads share
REAL = [
    "tokenizers/llama3/tokenizer.json",
    "tokenizers/phi3/tokenizer.json",
    "tokenizers/llama2/tokenizer.model",
    "vocab/ggml-vocab-bert-bge.gguf",
    "vocab/ggml-vocab-qwen2.gguf",
]
# Names of pre-tokenizers with several kinds of steps.
PRES = ("llama-bpe", "qwen2", "gpt-4o", "deepseek-v3", "falcon", "bloom", "mmbert")


def long_text(rng, size=LONG):
    """A random text of at least *size* bytes."""
    parts = []
    length = 0
    while length < size:
        parts.append(text(rng))
        length += len(parts[-1].encode())
    return "".join(parts)


def check(found, rng, *, second_long=False):
    """Assert that threads give the ids of one thread, for long texts between short ones.

    With *second_long* there is one more long text.
    """
    engine = Tokenizer.from_spec(found)._engine._engine
    texts = [text(rng), long_text(rng), "", text(rng), long_text(rng, LONG if second_long else 1)]
    texts += ["x" * 20, texts[1][::-1]]
    for special in (True, False):
        by_one_thread = [engine.encode(each_text, special) for each_text in texts]
        for threads in (1, 2, 5):
            assert engine.encode_many(texts, special, threads) == by_one_thread


@pytest.fixture(scope="module", params=[*PACKED, *SMALL])
def any_spec(request, tmp_path_factory):
    """The specification of each vocabulary."""
    return spec(request.param, tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """The specification of GPT-2's vocabulary."""
    return spec("gpt-2", tmp_path_factory.mktemp("gpt2"))


def test_threads_change_no_id(any_spec):
    check(any_spec, random.Random(7))


@pytest.mark.parametrize("name", PRES)
def test_threads_change_no_id_whatever_cuts_the_text(name, gpt2):
    pre = PRE_TOKENIZERS[name]
    own = {"pre_tokenizer": pre.steps, "normalizer": pre.normalizer, "fingerprint": ""}
    check(replace(gpt2, **own), random.Random(13))


def test_threads_change_no_id_of_added_tokens(gpt2):
    added = (
        AddedToken(5, "x y"),
        AddedToken(6, "the", special=False, single_word=True),
        AddedToken(7, ".", normalized=True, rstrip=True),
    )
    check(replace(gpt2, added=added, normalizer=(Step("NFC"),), fingerprint=""), random.Random(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_threads_change_no_id_of_real_vocabularies(test_data, name):
    path = test_data / name
    found = spec_from_gguf(GGUF.open(path)) if path.suffix == ".gguf" else spec_from_file(path)
    check(found, random.Random(11), second_long=True)


def test_a_text_without_a_token_in_one_part_is_refused_by_any_thread():
    words = TokenizerSpec(
        model="wordlevel", tokens=["a", "b"], pre_tokenizer=(Step("WhitespaceSplit"),)
    )
    tokenizer = Tokenizer.from_spec(words)
    good = "a b " * LONG
    assert tokenizer.encode(good) == [0, 1] * LONG
    with pytest.raises(InvalidFormat, match="no token"):
        tokenizer.encode(good + "c " + good)
    with pytest.raises(InvalidFormat, match="no token"):
        tokenizer.encode_batch([good, "c", good])
    assert tokenizer.encode_batch([good, "b"]) == [[0, 1] * LONG, [1]]


def test_a_text_that_costs_too_much_is_stopped_in_every_thread(gpt2):
    engine = Tokenizer.from_spec(
        replace(
            gpt2,
            pre_tokenizer=(Step("Split", {"pattern": {"Regex": "(x+x+)+y"}, "behavior": "Removed",
                                          "invert": False}),),
            fingerprint="",
        )
    )._engine._engine  # fmt: skip
    with pytest.raises(native.module().OverBudget):
        engine.encode_many(["a", "x" * LONG, "b"], True, 3)
    assert engine.encode_many(["a", "b"], True, 3) == [engine.encode(one, True) for one in "ab"]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_together_have_the_steps_of_one_text(threads):
    tokens = ["[UNK]", "a", "##a", "b" * 100]  # every length up to 100 is looked up
    words = TokenizerSpec(
        model="wordpiece", tokens=tokens, pre_tokenizer=(Step("WhitespaceSplit"),), unknown_id=0,
        continuing_prefix="##", max_chars_per_word=200, source="costly",
    )  # fmt: skip
    engine = Tokenizer.from_spec(words)._engine._engine
    with pytest.raises(native.module().OverBudget):  # about twice what its bytes may cost
        engine.encode_many([f"{'a' * 100} " * 1300], False, threads)
    ids = engine.encode_many([f"{'a' * 60} " * 2150], False, threads)
    assert ids == [[1, *[2] * 59] * 2150]
