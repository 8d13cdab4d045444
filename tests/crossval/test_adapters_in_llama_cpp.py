"""Adapters for each kind of matrix of each architecture, beside llama.cpp.

Where its graph multiplies by a matrix without the adapter's addition, its logits are those of the
model alone: NOT_ADAPTED lists these matrices. With all others they are the same as here.
"""

import importlib.util

import numpy as np
import pytest
from adapter_files import adapter_file, factors
from cases_of_engines import DECODERS
from engine_logits import distance, llama_cpp_with_each, own_logits
from llama_cpp_models import IDS, written

from bitnet.formats.containers import open_checkpoint
from bitnet.models.adapted import with_adapters
from bitnet.models.hidden_program import layout
from bitnet.models.load import config_from

# Of the range of the logits: both compute in float32, in another order.
SAME = 5e-3
_LATENT = {"attn_kv_a_mqa", "attn_q", "attn_q_a", "attn_q_b"}
_DELTA = {"attn_gate", "attn_k", "attn_output", "attn_v", "ssm_beta"}
_DELTA |= {f"ssm_{part}" for part in ("f_a", "f_b", "g_a", "g_b")}
#: Matrices of an architecture that llama.cpp b11549 multiplies without their adapters.
NOT_ADAPTED = {
    "bailingmoe3": _LATENT | _DELTA,
    "deepseek2": _LATENT,
    "gemma3n": {"altup_router", "per_layer_model_proj"},
    "gemma4": {"per_layer_model_proj"},
    "kimi-linear": _LATENT | _DELTA,
    "mistral4": _LATENT,
    "nemotron_h_moe": {"ffn_latent_down", "ffn_latent_up"},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None,
        reason="xllamacpp is not installed: an extra of crossval",
    ),
]


def matrices_of_each_kind(checkpoint):
    """Name of one matrix of each kind that an adapter may change, by its end: ``attn_q``."""
    products = layout(config_from(checkpoint)).products & checkpoint.weights.keys()
    kinds = {}
    for name in sorted(products):
        if len(checkpoint.weights[name].shape) == 2:
            kinds.setdefault(name.split(".")[-2], name)
    return kinds


def adapter_of(name, checkpoint, alone, path):
    """Path of an adapter for the matrix *name*, its logits, and their distance from *alone*.

    The factors grow until the distance is well beyond SAME, in at most three steps: where a bound
    limits scores of attention, it may stay small.
    """
    a, b = factors(*checkpoint.weights[name].shape)
    for scale in (1, 8, 64):
        path.unlink(missing_ok=True)
        pairs = {name: (a, b * np.float32(scale))}
        adapter_file(path, pairs, architecture=checkpoint.architecture)
        adapted = own_logits(with_adapters(checkpoint, [(path, 1.0)]), IDS)
        effect = distance(adapted, alone)
        if effect > 4 * SAME:
            break
    return path, adapted, effect


@pytest.mark.parametrize("case", DECODERS)
def test_an_adapter_does_what_it_does_in_llama_cpp(case, tmp_path):
    file = tmp_path / "tiny.gguf"
    written(file, *DECODERS[case])
    checkpoint = open_checkpoint(file)
    alone = own_logits(checkpoint, IDS)
    adapters = {
        kind: adapter_of(name, checkpoint, alone, tmp_path / f"{kind}.lora.gguf")
        for kind, name in matrices_of_each_kind(checkpoint).items()
    }
    assert adapters
    paths = [path for path, _, _ in adapters.values()]
    theirs = llama_cpp_with_each(file, paths, IDS, tmp_path)
    left_out = NOT_ADAPTED.get(checkpoint.architecture, set())
    for (kind, (_, adapted, effect)), expected in zip(adapters.items(), theirs, strict=True):
        assert not isinstance(expected, str), (kind, expected)
        ours = alone if kind in left_out else adapted
        # Nearer than a quarter of the effect, or the adapter could have been left out as well.
        assert distance(ours, expected) < min(SAME, effect / 4), kind
