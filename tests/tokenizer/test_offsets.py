"""Characters that ids stand for: the library's own offsets, and the same from both engines."""

import json
import random

import pytest
import tokenizers
from vocabularies import PACKED, SMALL, spec, text

from bitnet.base import native
from bitnet.tokenizer import Tokenizer, TokenSpan
from bitnet.tokenizer.load import load_spec

NEEDS_NATIVE = pytest.mark.skipif(native.module() is None, reason="no native module")
# Vocabularies in the form of a ``tokenizer.json``, which the library opens.
OF_LIBRARY = ("llama", "gemma", "wordpiece")


@pytest.fixture(params=["native", "reference"])
def _backend(request, monkeypatch):
    """Run the test with each engine."""
    if request.param == "native" and native.module() is None:
        pytest.skip("no native module")
    monkeypatch.setenv("BITNET_BACKEND", request.param)


@pytest.mark.usefixtures("_backend")
@pytest.mark.parametrize("name", OF_LIBRARY)
def test_offsets_are_those_of_the_library(name, tmp_path):
    ours = Tokenizer.from_spec(spec(name, tmp_path))
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rng = random.Random(17)
    for _ in range(300):
        whole = text(rng)
        _same(ours, library, whole)


def _same(ours, library, whole):
    """Assert that *ours* gives the ids and offsets of *library* for *whole*."""
    spans = ours.spans(whole, add_special=False)
    expected = library.encode(whole, add_special_tokens=False)
    assert [span.id for span in spans] == expected.ids, whole
    assert [(span.start, span.stop) for span in spans] == expected.offsets, whole


@NEEDS_NATIVE
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3", "phi3"])
def test_offsets_of_real_files_are_those_of_the_library(test_data, name):
    path = test_data / "tokenizers" / name / "tokenizer.json"
    ours = Tokenizer.from_spec(load_spec(path))
    assert ours.engine == "native"
    library = tokenizers.Tokenizer.from_file(str(path))
    rng = random.Random(19)
    for _ in range(1500):
        _same(ours, library, text(rng))


def test_offsets_with_a_space_that_a_step_adds_are_those_of_the_library(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(_bytes_model()))
    ours = Tokenizer.from_spec(load_spec(path))
    library = tokenizers.Tokenizer.from_file(str(path))
    rng = random.Random(23)
    for _ in range(300):
        _same(ours, library, text(rng))


def _bytes_model():
    """A byte-level ``tokenizer.json`` that puts a space before a text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = {character: id for id, character in enumerate(alphabet)}
    tokens["Ġt"] = 256
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    return {
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": tokens, "merges": ["Ġ t"]},
    }


@NEEDS_NATIVE
@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}], ids=["as it is", "normalized"])
@pytest.mark.parametrize("fuses", [False, True], ids=["apart", "fused"])
def test_offsets_of_unknown_characters_among_bytes_are_those_of_the_library(
    tmp_path, fuses, normalizer
):
    rng = random.Random(31)
    for _ in range(20):
        missing = {rng.choice([0xC3, 0xA9, 0xE3, 0x80, 0xE5, 0xF0]) for _ in range(2)}
        bytes_left = [f"<0x{byte:02X}>" for byte in range(256) if byte not in missing]
        vocabulary = {token: id for id, token in enumerate(["<unk>", "a", "é", *bytes_left])}
        model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"}
        model |= {"fuse_unk": fuses, "byte_fallback": True}
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({"added_tokens": [], "normalizer": normalizer, "model": model}))
        ours = Tokenizer.from_spec(load_spec(path))
        assert ours.engine == "native"
        library = tokenizers.Tokenizer.from_file(str(path))
        for _ in range(20):
            _same(ours, library, "".join(rng.choices("aéßñ\u3000字😀", k=rng.randrange(9))))


@NEEDS_NATIVE
@pytest.mark.parametrize("name", [*PACKED, *SMALL])
def test_both_engines_give_the_same_spans_and_the_ids_of_encode(name, tmp_path, monkeypatch):
    specification = spec(name, tmp_path)
    tokenizers_of_both = []
    for backend in ("native", "reference"):
        monkeypatch.setenv("BITNET_BACKEND", backend)
        tokenizers_of_both.append(Tokenizer.from_spec(specification))
    assert [tokenizer.engine for tokenizer in tokenizers_of_both] == ["native", "portable"]
    rng = random.Random(29)
    for _ in range(150):
        whole = text(rng)
        for options in ({}, {"add_special": False}, {"parse_special": False}):
            spans = tokenizers_of_both[0].spans(whole, **options)
            assert spans == tokenizers_of_both[1].spans(whole, **options), whole
            assert [span.id for span in spans] == tokenizers_of_both[0].encode(whole, **options)
            assert all(0 <= span.start <= span.stop <= len(whole) for span in spans)


def test_bos_stands_for_no_characters_of_the_text(tmp_path):
    tokenizer = Tokenizer.from_spec(spec("spm", tmp_path))
    spans = tokenizer.spans("the fox")
    assert spans[0] == TokenSpan(tokenizer.bos_id, 0, 0)
    assert "".join("the fox"[span.start : span.stop] for span in spans) == "the fox"
