"""Cuts: parts of a text, encoded one by one, give the ids of the whole."""

import random
import re
from dataclasses import replace

import pytest
from vocabularies import PACKED, SMALL, spec, text

from bitnet import native
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.compiled import meta_of
from bitnet.tokenizer.cuts import cut_pattern, parts_of
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS
from bitnet.tokenizer.spec import AddedToken, Step

NEEDS_NATIVE = pytest.mark.skipif(native.module() is None, reason="no native module")
REAL = [
    "tokenizers/llama3/tokenizer.json",
    "tokenizers/phi3/tokenizer.json",
    "tokenizers/llama2/tokenizer.model",
    "vocab/ggml-vocab-bert-bge.gguf",
    "vocab/ggml-vocab-qwen2.gguf",
]


@pytest.fixture(scope="module", params=[*PACKED, *SMALL])
def any_spec(request, tmp_path_factory):
    return spec(request.param, tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return spec("gpt-2", tmp_path_factory.mktemp("gpt2"))


def _engines(found):
    if native.module() is None:
        pytest.skip("the libraries encode a text as a whole")
    return [Tokenizer.from_spec(found)._engine]


def _check(engine, pattern, whole):
    ids = engine.encode(whole, parse_special=True)
    places = [match.start() for match in pattern.finditer(whole)]
    for at in places:
        first = engine.encode(whole[:at], parse_special=True)
        second = engine.encode(whole[at:], parse_special=True, goes_on=True)
        assert first + second == ids, (whole, at)
    return len(places)


def test_a_cut_at_every_place_changes_nothing(any_spec):
    pattern = re.compile(cut_pattern(any_spec))
    for engine in _engines(any_spec):
        rng = random.Random(7)
        rounds = 400 if engine.name == "native" else 25
        assert sum(_check(engine, pattern, text(rng)) for _ in range(rounds)) > rounds / 4


@NEEDS_NATIVE
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_cut_at_every_place_changes_nothing_for_real_vocabularies(test_data, name):
    path = test_data / name
    found = spec_from_gguf(GGUF.open(path)) if path.suffix == ".gguf" else spec_from_file(path)
    engine = Tokenizer.from_spec(found)._engine
    assert engine.name == "native"
    pattern = re.compile(cut_pattern(found))
    rng = random.Random(11)
    assert sum(_check(engine, pattern, text(rng)) for _ in range(1500)) > 1000


@NEEDS_NATIVE
@pytest.mark.parametrize("name", [name for name, pre in PRE_TOKENIZERS.items() if pre.byte_level])
def test_every_known_pre_tokenizer_ends_a_piece_at_its_cuts(name, gpt2):
    pre = PRE_TOKENIZERS[name]
    own = replace(
        gpt2, pre_tokenizer=pre.steps, normalizer=pre.normalizer, fingerprint="", pre=name
    )
    pattern = cut_pattern(own)
    if not pattern:
        return
    engine = Tokenizer.from_spec(own)._engine
    rng = random.Random(13)
    found = sum(_check(engine, re.compile(pattern), text(rng)) for _ in range(60))
    assert found > 15


def test_added_tokens_in_the_way_forbid_a_cut(any_spec):
    def with_token(**flags):
        return cut_pattern(replace(any_spec, added=(AddedToken(1, **flags),)))

    space = cut_pattern(replace(any_spec, added=())).split("|")[0]
    assert " " in space
    assert with_token(text="<x>").split("|")[0] == space
    for blocking in (
        {"text": "new york"},
        {"text": "yes", "rstrip": True},
        {"text": "yes", "lstrip": True},
        {"text": " x", "single_word": True},
    ):
        assert space not in with_token(**blocking).split("|"), blocking


def test_what_is_seen_as_a_whole_is_not_cut(any_spec):
    whole = (
        replace(any_spec, model="unigram"),
        replace(any_spec, pre_tokenizer=(Step("Split", {"pattern": {"Regex": "a+b"}}),)),
        replace(any_spec, normalizer=(Step("Replace", {"pattern": {"Regex": "a b"}}),)),
    )
    assert [cut_pattern(one) for one in whole[:2]] == ["", ""]
    assert cut_pattern(whole[2]) == "" or any_spec.model == "spm"


def test_a_token_across_a_space_forbids_cuts_there(tmp_path):
    found = spec("gemma", tmp_path)
    joined = replace(found, tokens=[*found.tokens, "x\u2581y"])
    assert cut_pattern(found) != cut_pattern(joined)
    assert "(?=[ ]" not in cut_pattern(joined)


def test_parts_are_the_text_and_long_enough():
    pattern = re.compile("(?<=a)(?= )")
    whole = "xa y" * 100
    parts = list(parts_of(whole, pattern, 30))
    assert "".join(parts) == whole
    assert all(len(part) >= 30 for part in parts)
    assert list(parts_of(whole, None, 30)) == [whole]
    assert list(parts_of("x" * 100, pattern, 30)) == ["x" * 100]


def test_the_meta_of_a_tokenizer_says_where_it_is_cut(any_spec):
    assert meta_of(any_spec)["cut"] == cut_pattern(any_spec)
