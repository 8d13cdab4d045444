"""One pass over a batch of sequences: the same as each alone, and every step of it by name."""

import numpy as np
import pytest
from tiny_keys import FAMILIES, LAYERS, UNGATED
from tiny_models import in_encoding, tiny

from bitnet.base import native
from bitnet.base.errors import InferenceError, UsageError
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model

needs_native = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)
SEQUENCES = ([5, 9, 33, 2, 61], [17], [8, 40, 8])
# Names of the traced values of a block, in order.
BLOCK_MARKS = (
    "attn_norm Qcur Kcur Vcur kqv_out attn_out ffn_norm ffn_gate ffn_up ffn_act ffn_out l_out"
)


def alone(model, tokens, wanted="all"):
    """Logits of *tokens* run by themselves, for all positions or the *wanted* ones."""
    return model.run([Segment(tokens, KVCache(model.config, 32), wanted)])[0]


def together(model, wanted="all"):
    """Logits of each of SEQUENCES run as one batch, and the segments of the batch."""
    segments = [Segment(ids, KVCache(model.config, 32), wanted) for ids in SEQUENCES]
    return model.run(segments), segments


@needs_native
@pytest.mark.parametrize("encoding", ["F32", "Q8_0", "Q4_K", "I2_S"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_batch_gives_each_sequence_the_bits_it_gets_alone(architecture, encoding):
    model = load_model(in_encoding(tiny(architecture), encoding), ops=NativeOps())
    batched, _ = together(model)
    for ids, logits in zip(SEQUENCES, batched, strict=True):
        np.testing.assert_array_equal(logits, alone(model, ids))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_batch_on_the_reference_backend_gives_each_sequence_its_logits(architecture):
    model = load_model(tiny(architecture), ops=ReferenceOps(dtype=np.float64))
    batched, _ = together(model)
    for ids, logits in zip(SEQUENCES, batched, strict=True):
        np.testing.assert_allclose(logits, alone(model, ids), rtol=1e-9)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gemma4"])
def test_a_batch_returns_the_states_of_the_wanted_positions_only(architecture):
    model = load_model(tiny(architecture), ops=ReferenceOps(dtype=np.float64))
    everything, _ = together(model)
    segments = [
        Segment(ids, KVCache(model.config, 32), wanted)
        for ids, wanted in zip(SEQUENCES, ("last", "none", "all"), strict=True)
    ]
    hidden = model.hidden(segments)
    assert [rows.shape for rows in hidden] == [(1, 256), (0, 256), (3, 256)]
    assert [segment.cache.length for segment in segments] == [5, 1, 3]
    np.testing.assert_allclose(model.head(hidden[0]), everything[0][-1:], rtol=1e-9)
    np.testing.assert_allclose(model.head(hidden[2]), everything[2], rtol=1e-9)


@needs_native
def test_a_batch_without_wanted_rows_only_fills_the_caches():
    model = load_model(tiny("llama"), ops=NativeOps())
    cache = KVCache(model.config, 32)
    (rows,) = model.run([Segment([5, 9, 33], cache, "none")])
    assert rows.shape == (0, 64)  # no positions, and a vocabulary of 64
    continued = model.forward([2], cache)
    np.testing.assert_array_equal(continued, alone(model, [5, 9, 33, 2], "last"))


@pytest.mark.parametrize("ops", [ReferenceOps, pytest.param(NativeOps, marks=needs_native)])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_trace_names_every_step_and_ends_in_the_logits(architecture, ops):
    model = load_model(tiny(architecture), ops=ops())
    steps = [(name, value.copy()) for name, value in model.trace([5, 9], KVCache(model.config, 8))]
    marks = BLOCK_MARKS.replace("ffn_gate ", "") if architecture in UNGATED else BLOCK_MARKS
    blocks = [f"{name}-{layer}" for layer in range(LAYERS) for name in marks.split()]
    values = dict(steps)
    assert len(values) == len(steps)
    named = ["embed", *blocks, "result_norm", "result_output"]
    assert [name for name in values if name in named] == named
    assert all(len(value) == 2 and np.isfinite(value).all() for value in values.values())
    assert values["Kcur-0"].shape == (2, 128)  # 2 positions; 2 key heads of 64
    np.testing.assert_array_equal(values["result_output"], alone(model, [5, 9]))


@needs_native
def test_a_trace_of_the_two_backends_agrees_step_by_step():
    checkpoint = tiny("gemma3")
    exact = load_model(checkpoint, ops=ReferenceOps(dtype=np.float64))
    model = load_model(checkpoint, ops=NativeOps())
    traces = (runner.trace([5, 9, 33], KVCache(runner.config, 8)) for runner in (exact, model))
    for (name, expected), (found_name, found) in zip(*traces, strict=True):
        assert name == found_name
        # The compiled module sums in float32 and rounds queries, keys and values to 16 bits.
        np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected).max())


def test_two_segments_of_one_cache_are_refused():
    model = load_model(tiny("llama"))
    cache = KVCache(model.config, 8)
    with pytest.raises(UsageError, match="share a cache"):
        model.run([Segment([1], cache), Segment([2], cache)])


def test_no_cache_changes_when_one_segment_does_not_fit():
    model = load_model(tiny("llama"))
    first = KVCache(model.config, 8)
    second = KVCache(model.config, 1)
    with pytest.raises(InferenceError, match="2 positions, the context holds 1"):
        model.run([Segment([1], first), Segment([2, 3], second)])
    assert first.length == second.length == 0


@needs_native
def test_the_compiled_backend_counts_the_kernels_that_run():
    ops = NativeOps()
    model = load_model(in_encoding(tiny("llama"), "Q8_0"), ops=ops)
    before = ops.counters()
    alone(model, [5, 9])
    calls = {name: n - before.get(name, 0) for name, n in ops.counters().items()}
    level = native.module().kernel_level()
    # Seven matrices in each layer; the head is the embedding, in float32.
    assert calls[f"linear/Q8_0_R16/{level}/decode"] == 7 * LAYERS
    assert calls[f"linear/F32_R16/{level}/decode"] == 1
    assert calls[f"attention/{level}"] == LAYERS
    assert calls[f"embed/F32_R16/{level}"] == 1


def test_the_reference_backend_counts_its_operations():
    ops = ReferenceOps()
    before = ops.counters()
    alone(load_model(in_encoding(tiny("bitnet"), "I2_S"), ops=ops), [5, 9])
    calls = {name: n - before.get(name, 0) for name, n in ops.counters().items()}
    assert calls["linear/ternary/numpy"] == 7 * LAYERS
    assert calls["linear/float32/numpy"] == 1
    assert calls["attention/numpy"] == LAYERS
