"""Every recorded string of every vocabulary, on both engines."""

import functools
import gzip
import json
import random

import pytest
import tokenizers

from bitnet.base import native
from bitnet.base.errors import Unsupported
from bitnet.formats.gguf import GGUF
from bitnet.tokenizer import Tokenizer
from bitnet.tokenizer.from_files import spec_from_file
from bitnet.tokenizer.from_gguf import spec_from_gguf

VOCABULARIES = [
    *("bert-bge", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder"),
]
# Name of a recording, the file with the same vocabulary, and True if special tokens were parsed.
EXPECTED = [
    ("llama3", "tokenizers/llama3/tokenizer.json", True),
    ("llama3", "vocab/ggml-vocab-llama-bpe.gguf", True),
    ("llama3_meta_ordinary", "tokenizers/llama3/tokenizer.model", False),
    ("llama2", "tokenizers/llama2/tokenizer.model", False),
    ("llama2", "vocab/ggml-vocab-llama-spm.gguf", False),
    ("gpt2", "tokenizers/gpt2", True),
    ("gpt2", "vocab/ggml-vocab-gpt-2.gguf", True),
    ("phi3", "tokenizers/phi3/tokenizer.json", True),
    ("phi3", "vocab/ggml-vocab-phi-3.gguf", True),
    ("bert", "vocab/ggml-vocab-bert-bge.gguf", True),
]
SEPARATOR = "\n__ggml_vocab_test__\n"  # of the texts in llama.cpp's files


@functools.cache
def _spec(path):
    """The specification of the file or folder at *path*."""
    if path.suffix == ".gguf":
        with GGUF.open(path) as gguf:
            return spec_from_gguf(gguf)
    if path.is_dir():
        return spec_from_file(path / "vocab.json")
    return spec_from_file(path)


def _tokenizer(path, engine):
    """The tokenizer of the file or folder at *path*, which runs on *engine*."""
    tokenizer = Tokenizer.from_spec(_spec(path))
    assert tokenizer.engine == engine
    return tokenizer


@pytest.mark.parametrize("name", VOCABULARIES)
def test_all_recorded_cases_of_a_gguf_vocabulary_pass(test_data, name, engine):
    path = test_data / f"vocab/ggml-vocab-{name}.gguf"
    # The library takes quadratic time for an expression of this vocabulary.
    if (name, engine) == ("deepseek-llm", "portable"):
        with pytest.raises(Unsupported, match="time without a bound"):
            _tokenizer(path, engine)
        return
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_suffix(".gguf.out").read_text().split("\n")
    expected = [[int(word) for word in line.split()] for line in lines]
    tokenizer = _tokenizer(path, engine)
    wrong = [
        text
        for text, ids in zip(texts, expected, strict=True)
        if tokenizer.encode(text, add_special=False) != ids
    ]
    assert not wrong


@pytest.mark.parametrize(("oracle", "source", "parse_special"), EXPECTED)
def test_all_strings_of_an_oracle_get_its_ids(test_data, oracle, source, parse_special, engine):
    with gzip.open(test_data / f"expected/{oracle}.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    tokenizer = _tokenizer(test_data / source, engine)
    wrong = [
        row["text"]
        for row in rows
        if tokenizer.encode(row["text"], add_special=False, parse_special=parse_special)
        != row["ids"]
    ]
    assert not wrong


@pytest.mark.slow
def test_cl100k_gets_the_ids_of_tiktoken(test_data, test_models, engine):
    ranks = test_models / "cl100k_base.tiktoken"
    if not ranks.exists():
        pytest.skip(f"{ranks} is not there: OpenAI's file, which the package litellm has too")
    with gzip.open(test_data / "expected/cl100k.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    tokenizer = _tokenizer(ranks, engine)
    wrong = [
        row["text"]
        for row in rows
        if tokenizer.encode(row["text"], add_special=False, parse_special=False) != row["ids"]
    ]
    assert not wrong


@pytest.mark.slow
def test_a_hundred_thousand_joins_of_tokens_get_the_ids_of_the_library(test_data):
    path = test_data / "tokenizers/llama3/tokenizer.json"
    tokenizer = _tokenizer(path, "native" if native.module() is not None else "portable")
    oracle = tokenizers.Tokenizer.from_file(str(path))
    draw = random.Random(20)
    pieces = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
    for _ in range(20):
        texts = [
            b"".join(draw.choices(pieces, k=draw.randint(2, 6))).decode("utf-8", "replace")
            for _ in range(5_000)
        ]
        expected = [
            encoding.ids for encoding in oracle.encode_batch(texts, add_special_tokens=False)
        ]
        assert [tokenizer.encode(text, add_special=False) for text in texts] == expected


@pytest.mark.parametrize(
    ("oracle", "source"),
    [
        ("phi3", "tokenizers/phi3/tokenizer.json"),
        ("phi3", "vocab/ggml-vocab-phi-3.gguf"),
        ("llama2", "tokenizers/llama2/tokenizer.model"),
    ],
)
def test_a_text_that_is_merged_part_by_part_gets_the_ids_of_the_libraries(
    test_data, oracle, source, monkeypatch
):
    if native.module() is None:
        pytest.skip("the native module is not installed")
    with gzip.open(test_data / f"expected/{oracle}.jsonl.gz", "rt") as file:
        strings = [json.loads(line)["text"] for line in file]
    draw = random.Random(49)
    texts = [draw.choice(["", " ", "  ", "\n"]).join(draw.sample(strings, 60)) for _ in range(8)]
    compiled = _tokenizer(test_data / source, "native")
    # Twice: ids of parts that were met before are kept.
    cold = [compiled.encode(text) for text in texts]
    cached = [compiled.encode(text) for text in texts]
    monkeypatch.setenv("BITNET_BACKEND", "reference")
    libraries = _tokenizer(test_data / source, "portable")
    assert cold == cached == [libraries.encode(text) for text in texts]
