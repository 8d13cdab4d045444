"""Files of mixtures of experts, as llama.cpp computes them."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from engine_logits import distance, llama_cpp
from tiny_models import MIXTURES, tiny, write_model

from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.quants import types
from bitnet.quants.registry import quantize
from bitnet.runtime.kv_cache import KVCache

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None,
        reason="the extra `crossval` is not installed",
    ),
]
# Of the range of the logits: its cache holds float16.
SAME = 3e-3
IDS = np.random.default_rng(3).integers(3, 60, 40).tolist()
COMPLETE = {"attention.head_count_kv": 4, "vocab_size": 64}
DELTA_NET = {  # keys as wide as values, and the epsilon that llama.cpp has for them
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_sections": [3, 3, 2, 0],
    "ssm.inner_size": 4 * 32,
}


@pytest.mark.parametrize("architecture", MIXTURES)
def test_a_file_is_computed_as_in_llama_cpp(architecture, tmp_path):
    own = DELTA_NET if architecture == "qwen35moe" else {}
    checkpoint = tiny(architecture, **COMPLETE, **own)
    values = np.random.default_rng(4).standard_normal((64, 256)).astype(np.float32) * 0.1
    head = quantize("output.weight", values, types.by_name("F32"))
    checkpoint = replace(checkpoint, weights=checkpoint.weights | {"output.weight": head})
    path = write_model(tmp_path / "model.gguf", checkpoint)
    theirs = llama_cpp(path, [IDS], tmp_path)
    assert theirs is not None
    model = load_model(open_checkpoint(path), ops=ReferenceOps())
    ours = model.forward(IDS, KVCache(model.config, 64), all_positions=True)
    assert distance(ours, theirs[0]) < SAME
