"""GGUF files of Llama that make vectors of texts, whose positions see those behind them."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import tiny, write_model

from bitnet import load
from bitnet.formats.containers import open_checkpoint
from bitnet.models.load import config_from

TEXTS = ["one", "another", "a last"]
MAX_ANGLE = 1e-4


def written(path):
    """A tiny model that pools by the mean."""
    model = tiny("llama-embed")
    pooled = {"llama-embed.pooling_type": 1}
    return write_model(path, replace(model, metadata={**model.metadata, **pooled}))


def test_positions_see_those_behind_them(tmp_path):
    config = config_from(open_checkpoint(written(tmp_path / "model.gguf")))
    assert not config.causal
    assert not config.writes
    assert config.pooling == "mean"


def test_vectors_are_those_of_llama_cpp(tmp_path):
    xllamacpp = pytest.importorskip("xllamacpp", reason="not installed: an extra of crossval")
    file = written(tmp_path / "model.gguf")
    with load(file) as model:
        ours = model.embed(TEXTS)
    settings = xllamacpp.CommonParams()
    settings.model.path = str(file)
    settings.embedding = True
    settings.n_ctx = 64
    settings.warmup = False
    answer = xllamacpp.Server(settings).handle_embeddings({"input": TEXTS, "model": "it"})
    theirs = np.array([entry["embedding"] for entry in answer["data"]])
    cosines = (ours * theirs).sum(axis=1)
    cosines /= np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    assert cosines.min() > 1 - MAX_ANGLE
