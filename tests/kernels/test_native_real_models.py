"""Errors of the native backend on real weights, compared with those of llama.cpp."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_models import seeing

from bitnet.base import native
from bitnet.formats.containers import open_checkpoint
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.models.transformer import Model
from bitnet.tokenizer import resolve_tokenizer

MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
}
PROMPTS = 4  # of the recorded ones
LONG = 640  # tokens of a text that is longer than Gemma 3's window of 512
LAST = 32  # tokens at its end whose logits are compared
MAX_MEAN_KL = 8e-3  # nats per token: the error of activations in eight bits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.module() is None, reason="the compiled module is not installed"),
]


def log_probabilities(model, ids, dtype):
    """Log-probabilities at every position of *ids*, ``(T, vocab_size)``."""
    cache = KVCache(model.config, 256, dtype=dtype)
    logits = model.forward(ids, cache, all_positions=True).astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def with_others(log_p):
    """*log_p* of some tokens, and the log-probability of all others together."""
    return np.append(log_p, np.log(max(1 - np.exp(log_p).sum(), 1e-12)))


def divergence(exact, other):
    """Kullback-Leibler divergence of *other* from *exact*, in nats, summed over positions."""
    return float((np.exp(exact) * (exact - other)).sum())


def last_of(model, ids, chunk):
    """Log-probabilities of the last positions of *ids*, read in pieces of *chunk*."""
    cache = KVCache(model.config, LONG)
    for begin in range(0, len(ids) - LAST, chunk):
        model.forward(ids[begin : min(begin + chunk, len(ids) - LAST)], cache)
    logits = model.forward(ids[-LAST:], cache, all_positions=True).astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_windows_are_right_in_a_text_that_is_longer_than_a_window(test_models):
    path = test_models / MODELS["gemma3"]
    if not path.exists():
        pytest.skip(f"{path.name} is not in the folder BITNET_TEST_MODELS names")
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    ids = list(resolve_tokenizer(path).encode(text))[:LONG]
    assert len(ids) == LONG
    checkpoint = open_checkpoint(path)
    expected = last_of(load_model(checkpoint), ids, 304)
    model = load_model(checkpoint, ops=NativeOps())
    windowed = last_of(model, ids, 100)
    np.testing.assert_array_equal(windowed, last_of(model, ids, 608))
    assert divergence(expected, windowed) / LAST < MAX_MEAN_KL
    without_windows = seeing(model.config, (0,) * model.config.n_layers)
    unlimited = last_of(Model(checkpoint, without_windows, ops=NativeOps()), ids, 304)
    # Without windows the text has other logits, so the comparison above sees wrong ones.
    assert divergence(expected, unlimited) / LAST > 10 * MAX_MEAN_KL


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_closer_to_exact_arithmetic_than_those_of_llama_cpp(
    name, test_data, test_models
):
    path = test_models / MODELS[name]
    if not path.exists():
        pytest.skip(f"{path.name} is not in the folder BITNET_TEST_MODELS names")
    prompts = json.loads((test_data / "goldens" / f"{name}.json").read_text())["prompts"]
    checkpoint = open_checkpoint(path)
    exact_model = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))
    native_model = load_model(checkpoint, ops=NativeOps())
    ours = []
    theirs = []
    for prompt in prompts[:PROMPTS]:
        exact = log_probabilities(exact_model, prompt["ids"], np.float64)
        computed = log_probabilities(native_model, prompt["ids"], np.int16)
        for exact_row, row, position in zip(exact, computed, prompt["positions"], strict=True):
            expected = with_others(exact_row[position["ids"]])
            ours.append(divergence(expected, with_others(row[position["ids"]])))
            recorded = np.array(position["logits"]) - position["lse"]
            theirs.append(divergence(expected, with_others(recorded)))
    assert len(ours) > 40
    assert np.mean(ours) < np.mean(theirs)
