"""GGUF files of Llama that make vectors of texts, with causal attention or without."""

from dataclasses import replace

import pytest
from engine_vectors import smallest_cosine, vectors_by_llama_cpp
from tiny_models import tiny, write_model

from bitnet import load
from bitnet.base.errors import InvalidFormat
from bitnet.formats.containers import open_checkpoint
from bitnet.models.load import config_from

TEXTS = ["one", "another", "a last"]
MAX_COSINE_DISTANCE = 1e-4  # llama.cpp adds products in another order


def write_tiny(path, causal):
    """The path of a tiny model with mean pooling; *causal* is its key, None leaves it out."""
    model = tiny("llama-embed", **{"attention.causal": False})
    keys = {**model.metadata, "llama-embed.pooling_type": 1}  # mean
    keys["llama-embed.attention.causal"] = causal
    if causal is None:
        del keys["llama-embed.attention.causal"]
    return write_model(path, replace(model, metadata=keys))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_causal_where_the_key_says_so(causal, tmp_path):
    config = config_from(open_checkpoint(write_tiny(tmp_path / "model.gguf", causal)))
    assert config.causal is causal
    assert not config.writes  # it generates no text
    assert config.pooling == "mean"


def test_a_file_without_the_key_of_causal_attention_is_refused(tmp_path):
    checkpoint = open_checkpoint(write_tiny(tmp_path / "model.gguf", None))
    with pytest.raises(InvalidFormat, match=r"llama-embed\.attention\.causal is missing"):
        config_from(checkpoint)


@pytest.mark.parametrize("causal", [False, True])
def test_vectors_are_those_of_llama_cpp(causal, tmp_path):
    pytest.importorskip("xllamacpp", reason="pip install 'bitnet-xtask[crossval]'")
    file = write_tiny(tmp_path / "model.gguf", causal)
    with load(file) as model:
        ours = model.embed(TEXTS)
    assert smallest_cosine(ours, vectors_by_llama_cpp(file, TEXTS)) > 1 - MAX_COSINE_DISTANCE
