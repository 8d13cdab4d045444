"""Families whose models llama.cpp loads only if all heads together are as wide as the model."""

import os
import re
from pathlib import Path

import pytest

from bitnet.families.family import families

# The output of attention, or its queries, with the model's width where the width of all heads
# belongs.
WIDTH = re.compile(
    r"ATTN_OUT.*\{n_embd, n_embd\}"
    r"|ATTN_Q\b.*\{n_embd, n_embd\}"
    r"|create_tensor_qkv\(\w+, \w+, n_embd, n_embd,"
)


@pytest.fixture
def loaders():
    """The source of llama.cpp's loader of each architecture, by its name."""
    source = os.environ.get("BITNET_LLAMA_CPP")
    if source is None:
        pytest.skip("BITNET_LLAMA_CPP does not name the source tree of llama.cpp")
    files = Path(source, "src", "models").glob("*.cpp")
    return {path.stem: path.read_text(encoding="utf-8") for path in files}


def test_each_architecture_with_the_models_width_in_llama_cpp_is_named_by_a_conversion(loaders):
    needing = [
        family
        for family in families()
        if family.llama_cpp and WIDTH.search(loaders.get(family.architecture, ""))
    ]
    assert len(needing) > 40
    assert [family.title for family in needing if not family.llama_cpp.only_whole_width] == []
