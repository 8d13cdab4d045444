"""A cache of 8-bit keys and values: half the memory, and the same bits however the work is cut."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_keys import FAMILIES, HYBRIDS, LAYERED
from tiny_models import tiny

import bitnet
from bitnet.base import native
from bitnet.base.errors import UsageError
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Interpreter, Segment
from bitnet.models.hidden_program import hidden_program
from bitnet.models.load import config_from, load_model
from bitnet.models.transformer import bind
from bitnet.runtime.request import Request
from bitnet.runtime.scheduler import Scheduler

compiled = pytest.mark.skipif(
    native.module() is None, reason="the compiled module is not installed"
)
IDS = [5, 9, 3, 44, 12, 13, 60, 30, 20, 21, 7, 8, 63, 2, 17, 33, 41, 29, 11, 50, 6, 38, 24]
#: Families with keys and values, which Mamba does not have.
WITH_KEYS = sorted({*FAMILIES, *LAYERED, *HYBRIDS} - {"mamba", "mamba2"})
# Seeds of the random weights where seed 0 does not do: with it, two experts are nearly equal at one
# position, and 8 bits choose the other one.
OTHER_SEEDS = {"bailingmoe3": 1}


def q8(architecture):
    """A tiny checkpoint that is run with 8-bit keys and values."""
    return replace(tiny(architecture), kv_type="q8")


@compiled
@pytest.mark.parametrize("architecture", WITH_KEYS)
def test_a_compiled_pass_has_the_bits_of_its_operations(architecture):
    """In every family: windows, sinks, caches that layers share, states beside keys and values."""
    ops = NativeOps()
    checkpoint = q8(architecture)
    config = config_from(checkpoint)
    weights = bind(checkpoint, config, ops)
    program = hidden_program(config, weights)
    results = []
    for run in (ops.compile(program, weights), Interpreter(program, weights, ops).run):
        cache = KVCache(config, 64)
        parts = [run([Segment(part, cache, "all")]) for part in (IDS[:9], IDS[9:10], IDS[10:])]
        results.append(np.concatenate(parts))
    np.testing.assert_array_equal(*results)


@compiled
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt-oss", "gemma4"])
def test_logits_have_the_same_bits_in_any_batch_chunk_and_number_of_threads(architecture):
    model = load_model(q8(architecture), ops=NativeOps(threads=1))
    whole = model.forward(IDS, KVCache(model.config, 64), all_positions=True)
    for threads in (1, 3):
        model = load_model(q8(architecture), ops=NativeOps(threads=threads))
        for chunk in (1, 5):
            cache = KVCache(model.config, 64)
            parts = [IDS[at : at + chunk] for at in range(0, len(IDS), chunk)]
            found = [model.forward(part, cache, all_positions=True) for part in parts]
            np.testing.assert_array_equal(np.concatenate(found), whole)
        segments = [Segment(IDS[:n], KVCache(model.config, 64), "all") for n in (len(IDS), 4, 17)]
        for found, n in zip(model.run(segments), (len(IDS), 4, 17), strict=True):
            np.testing.assert_array_equal(found, whole[:n])


@pytest.mark.parametrize("architecture", WITH_KEYS)
def test_8_bit_keys_and_values_are_near_float64_and_16_bits_are_nearer(architecture):
    """Relative error of the logits of random models, with the interpreter's arithmetic."""
    exact = load_model(tiny(architecture, seed=OTHER_SEEDS.get(architecture, 0)))
    config = exact.config
    wide = exact.forward(IDS, KVCache(config, 64, dtype=np.float64), all_positions=True)

    def error(kv_type):
        cache = KVCache(replace(config, kv_type=kv_type), 64)
        found = exact.forward(IDS, cache, all_positions=True)
        return np.sqrt(np.sum((found - wide) ** 2) / np.sum(wide**2))

    assert error("f16") < error("q8") < 0.03


@compiled
def test_a_copied_or_truncated_prefix_continues_with_the_same_bits():
    model = load_model(q8("llama"), ops=NativeOps())
    whole = KVCache(model.config, 64)
    expected = model.forward(IDS, whole)
    other = KVCache(model.config, 64)
    other.copy_prefix(whole, 11)
    np.testing.assert_array_equal(model.forward(IDS[11:], other), expected)
    whole.truncate(8)
    np.testing.assert_array_equal(model.forward(IDS[8:], whole), expected)


def test_drafts_do_not_change_an_answer():
    """A text that repeats itself is drafted, checked against the same cache, and cut back."""
    model = load_model(q8("llama"))
    answers = []
    drafted = []
    for lookup in (0, 8):
        engine = Scheduler(model)
        # The prompt repeats itself, so that drafts are found in it.
        sequence = engine.prepare(IDS[:6] * 3, Request(max_tokens=40, lookup=lookup))
        answers.append([piece.token for piece in engine.run(sequence)])
        drafted.append(sequence.drafted)
    assert answers[0] == answers[1]
    assert drafted[0] == 0 < drafted[1]


def test_8_bit_keys_and_values_take_half_the_memory():
    config = config_from(tiny("llama"))
    costs = [
        KVCache(replace(config, kv_type=kv_type), 640).cost(640, 1) for kv_type in ("f16", "q8")
    ]
    assert 2 * costs[1] == costs[0]


def test_loading_refuses_another_kv_type():
    with pytest.raises(UsageError, match="kv_type is 'q4', expected f16 or q8"):
        bitnet.load("model.gguf", kv_type="q4")
