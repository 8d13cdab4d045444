"""The engine of the libraries, without the compiled module."""

import base64
import json
import lzma
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from small_specs import pieces
from vocabularies import PACKED as VOCABULARIES
from vocabularies import SMALL, spec
from vocabularies import text as random_text

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.from_gguf import spec_from_gguf
from bitnet.tokenizer.library import library_engine, open_engine
from bitnet.tokenizer.probes import PROBES
from bitnet.tokenizer.spec import BYTE_TO_CHARACTER, AddedToken, Step, TokenizerSpec

PACKED = Path(__file__).parents[1] / "data" / "vocab" / "ggml-vocab-gpt-2.gguf.xz"
GPT2_REGEX = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """The specification of GPT-2's vocabulary."""
    path = tmp_path_factory.mktemp("vocab") / PACKED.stem
    path.write_bytes(lzma.decompress(PACKED.read_bytes()))
    with GGUF.open(path) as gguf:
        return spec_from_gguf(gguf)


@pytest.fixture(scope="module")
def ranks(gpt2):
    """Rank of each token of GPT-2, by its bytes."""
    byte = {char: byte for byte, char in enumerate(BYTE_TO_CHARACTER)}
    return {bytes(byte[char] for char in gpt2.tokens[id]): id for id in range(50256)}


@pytest.fixture(scope="module")
def oracle(ranks):
    """tiktoken with these ranks."""
    return tiktoken.Encoding(
        "gpt2",
        pat_str=GPT2_REGEX,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 50256},
    )


@pytest.fixture(scope="module")
def engine(gpt2):
    """The libraries with GPT-2's vocabulary."""
    return library_engine(gpt2)


@given(text=st.text(max_size=60))
def test_ids_are_those_of_tiktoken(engine, oracle, text):
    assert engine.encode(text, parse_special=False) == oracle.encode_ordinary(text)


def test_special_tokens_in_a_text_are_those_of_tiktoken_or_plain_text(engine, oracle):
    for text in ("a<|endoftext|> b", "<|endoftext|><|endoftext|>", "x<|endoftext"):
        assert engine.encode(text) == oracle.encode(text, allowed_special="all")
        assert engine.encode(text, parse_special=False) == oracle.encode_ordinary(text)


def test_random_joins_of_tokens_get_the_ids_of_tiktoken(engine, oracle, ranks):
    choose = random.Random(0)
    tokens = sorted(ranks)
    for _ in range(2000):
        text = b"".join(choose.choices(tokens, k=3)).decode("utf-8", "replace")
        assert engine.encode(text, parse_special=False) == oracle.encode_ordinary(text)


def test_a_rank_file_is_the_same_tokenizer(engine, ranks, tmp_path):
    path = tmp_path / "tokenizer.model"
    lines = [b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items()]
    path.write_bytes(b"".join(lines))
    spec = spec_from_file(path)
    assert spec.stop_ids == {50256}
    again = library_engine(spec)
    for text in PROBES:
        assert again.encode(text) == engine.encode(text)


def test_long_runs_of_a_character_get_the_ids_of_tiktoken(engine, oracle):
    for text in ("a" * 5000, " " * 5000, "漢字" * 2500, "\n" * 999, "1" * 3000):
        assert engine.encode(text) == oracle.encode_ordinary(text)


def test_metaspace_first_puts_its_symbol_before_the_first_part_only():
    spec = TokenizerSpec(
        model="bpe",
        tokens=["<unk>", "a", "\u2581", "<s>"],
        added=(AddedToken(3, "<s>"),),
        pre_tokenizer=(
            Step("Metaspace", {"replacement": "\u2581", "prepend_scheme": "first", "split": True}),
        ),
        unknown_id=0,
    )
    engine = library_engine(spec)
    assert engine.encode("a<s>a") == [2, 1, 3, 1]
    assert engine.encode("a") == [2, 1]


def test_a_token_of_the_last_character_does_not_take_other_text():
    last = "\U0010ffff"
    tokens = ["<unk>", "a", last]
    spec = TokenizerSpec(
        model="spm", tokens=tokens, scores=[0.0] * 3, unknown_id=0, added=(AddedToken(2, last),)
    )
    engine = library_engine(spec)
    assert engine.encode(f"a{last}a") == [1, 2, 1]


def test_an_added_token_of_one_character_is_not_a_byte_of_other_text(tmp_path):
    """The model lacks the byte E9, which is spelled as the added token is."""
    vocab = {char: id for id, char in enumerate(sorted({*BYTE_TO_CHARACTER} - {"\xe9"}))}
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    added = {"id": len(vocab), "content": "\xe9", "single_word": False, "lstrip": False}
    added |= {"rstrip": False, "normalized": False, "special": False}
    document = {
        "added_tokens": [added],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    spec = spec_from_file(path)
    library = tokenizers.Tokenizer.from_file(str(path))
    for text in ("\u9000", "\xe9", "a\xe9\u9000b"):
        expected = library.encode(text).ids
        assert library_engine(spec).encode(text) == expected
        assert open_engine(spec)[0].encode(text) == expected


def test_an_unknown_step_is_refused():
    spec = TokenizerSpec(model="bpe", tokens=["a"], pre_tokenizer=(Step("Sorcery"),))
    with pytest.raises(InvalidFormat, match="cannot be run"):
        library_engine(spec)


@pytest.mark.parametrize(
    "library",
    # Releases before 0.2.3 have the class, but not its method that gives offsets.
    [None, SimpleNamespace(SentencePieceProcessor=object)],
    ids=["absent", "too old"],
)
def test_a_sentencepiece_model_without_its_library_is_refused_by_name(monkeypatch, library):
    monkeypatch.setitem(sys.modules, "sentencepiece", library)
    with pytest.raises(Unsupported, match="the package sentencepiece"):
        library_engine(pieces())


@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
@pytest.mark.parametrize("name", [*VOCABULARIES, *SMALL])
def test_both_engines_give_the_same_spans(name, tmp_path):
    specification = spec(name, tmp_path)
    compiled = open_engine(specification)[0]
    library = library_engine(specification)
    assert (compiled.name, library.name) == ("native", "portable")
    rng = random.Random(29)
    added = [token.text for token in specification.added][:30] or ["the"]
    for _ in range(200):
        whole = random_text(rng) + rng.choice(added) + random_text(rng)
        for special in (True, False):
            spans = compiled.spans(whole, parse_special=special)
            assert library.spans(whole, parse_special=special) == spans
            assert compiled.encode(whole, parse_special=special) == [id for id, *_ in spans]
