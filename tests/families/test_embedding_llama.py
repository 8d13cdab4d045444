"""GGUF files of Llama that make vectors of texts, whose positions may see those behind them."""

from dataclasses import replace

import pytest
from engine_vectors import smallest_cosine, vectors_by_llama_cpp
from tiny_models import tiny, write_model

from bitnet import load
from bitnet.base.errors import InvalidFormat
from bitnet.formats.containers import open_checkpoint
from bitnet.models.load import config_from

TEXTS = ["one", "another", "a last"]
MAX_ANGLE = 1e-4


def written(path, causal):
    """A tiny model that pools by the mean, with the key of *causal* attention if it is not None."""
    model = tiny("llama-embed", **{"attention.causal": False})
    keys = {**model.metadata, "llama-embed.pooling_type": 1}
    keys["llama-embed.attention.causal"] = causal
    if causal is None:
        del keys["llama-embed.attention.causal"]
    return write_model(path, replace(model, metadata=keys))


@pytest.mark.parametrize("causal", [False, True])
def test_positions_see_those_behind_them_where_a_key_says_so(causal, tmp_path):
    config = config_from(open_checkpoint(written(tmp_path / "model.gguf", causal)))
    assert config.causal is causal
    assert not config.writes
    assert config.pooling == "mean"


def test_a_file_that_does_not_say_what_positions_see_is_refused(tmp_path):
    checkpoint = open_checkpoint(written(tmp_path / "model.gguf", None))
    with pytest.raises(InvalidFormat, match=r"llama-embed\.attention\.causal is missing"):
        config_from(checkpoint)


@pytest.mark.parametrize("causal", [False, True])
def test_vectors_are_those_of_llama_cpp(causal, tmp_path):
    pytest.importorskip("xllamacpp", reason="pip install 'bitnet-xtask[crossval]'")
    file = written(tmp_path / "model.gguf", causal)
    with load(file) as model:
        ours = model.embed(TEXTS)
    assert smallest_cosine(ours, vectors_by_llama_cpp(file, TEXTS)) > 1 - MAX_ANGLE
