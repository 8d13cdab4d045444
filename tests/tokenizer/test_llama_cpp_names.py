"""Vocabularies as llama.cpp names them: each is run, or refused by name.

``tests/data/llama_cpp_vocabularies.json`` holds the names of one version. The job that builds the
other engines compares it with that version's source, so that a new name does not go unnoticed.
"""

import json
import os
import re
from pathlib import Path

import pytest

from bitnet.tokenizer import from_gguf
from bitnet.tokenizer.pretokenizers import PRE_TOKENIZERS

NAMES = json.loads((Path(__file__).parents[1] / "data/llama_cpp_vocabularies.json").read_text())
NO_TOKENIZER = {"no_vocab", "none", "test"}


def test_every_pre_tokenizer_of_llama_cpp_is_known():
    assert not set(NAMES["pre"]) - set(PRE_TOKENIZERS)


def test_every_kind_of_vocabulary_of_llama_cpp_is_run_or_refused_by_name():
    known = {*from_gguf._BUILDERS, *from_gguf._UNSUPPORTED} | NO_TOKENIZER
    assert not set(NAMES["model"]) - known


def test_the_names_are_those_of_the_source():
    source = os.environ.get("BITNET_LLAMA_CPP")
    if source is None:
        pytest.skip("BITNET_LLAMA_CPP does not name the source tree of llama.cpp")
    text = (Path(source) / "src/llama-vocab.cpp").read_text(encoding="utf-8")
    for key in ("pre", "model"):
        found = set(re.findall(rf'tokenizer_{key} == "([^"]+)"', text))
        assert found == set(NAMES[key])
