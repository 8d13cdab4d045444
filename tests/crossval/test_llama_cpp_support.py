"""Models that llama.cpp does not load, as the table of families says."""

import importlib.util

import pytest
from cases_of_engines import THEIRS
from edited_files import with_head
from engine_logits import REFUSED, llama_cpp_of_each
from llama_cpp_models import IDS, written
from tiny_keys import DIM, ENCODERS

from bitnet.families.family import families, of_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None,
        reason="xllamacpp is not installed: an extra of crossval",
    ),
]

_SUPPORTED = {family.architecture: family.llama_cpp for family in families() if family.llama_cpp}
_KEYS: dict[str, dict[str, object]] = {}
for _architecture, _keys in THEIRS.values():
    _KEYS.setdefault(_architecture, _keys)
# Heads that together are not as wide as the model, DIM.
_WIDE = {"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32}


@pytest.mark.parametrize(
    "architecture",
    sorted(family.architecture for family in families() if family.in_gguf and not family.llama_cpp),
)
def test_llama_cpp_does_not_load_an_architecture_of_our_own(architecture, tmp_path):
    written(tmp_path / "a.gguf", architecture, {})
    assert llama_cpp_of_each([tmp_path / "a.gguf"], IDS, tmp_path) == [REFUSED]


@pytest.mark.parametrize(
    "architecture", sorted(name for name, engine in _SUPPORTED.items() if engine.only_whole_width)
)
def test_llama_cpp_does_not_load_models_wider_or_narrower_than_their_heads(architecture, tmp_path):
    checkpoint = written(tmp_path / "a.gguf", architecture, _KEYS.get(architecture, {}) | _WIDE)
    assert checkpoint.value("attention.head_count") * 32 != DIM
    assert llama_cpp_of_each([tmp_path / "a.gguf"], IDS, tmp_path) == [REFUSED]


@pytest.mark.parametrize("architecture", sorted(_SUPPORTED.keys() & _KEYS.keys() - set(ENCODERS)))
def test_the_head_is_the_embedding_or_a_matrix_as_the_table_says(architecture, tmp_path):
    written(tmp_path / "a.gguf", architecture, _KEYS[architecture])
    files = [
        with_head(tmp_path / "a.gguf", tmp_path / f"{tied}.gguf", tied=tied)
        for tied in (True, False)
    ]
    tied, own = llama_cpp_of_each(files, IDS, tmp_path)  # a text is a refusal
    engine = of_gguf(architecture).llama_cpp
    assert isinstance(tied, str) == (not engine.tied or "output.weight" in engine.required)
    assert isinstance(own, str) == (not "output.weight".endswith(engine.tensors))
