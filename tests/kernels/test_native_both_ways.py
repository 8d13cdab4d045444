"""Compiled attention in both directions, with ALiBi or position biases, and rows of tables."""

import numpy as np
import pytest
from kernel_levels import each_level

from bitnet.base import native
from bitnet.families.blocks import Attention, Branch, KeysValues, ModelConfig
from bitnet.kernels.instructions import Attend, Embed, Lookup
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Interpreter, Pass, Program, Register, Segment
from bitnet.kernels.reference import ReferenceOps
from bitnet.quants import types
from bitnet.quants.weight import Weight

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")

NMSE = 1e-7  # normalized squared error: queries, keys, weights and values are rounded to 16 bits
HEADS = 6
KV_HEADS = 3
HEAD_DIM = 40
HEADS_OF = (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("out", HEADS))


def attend(ops, dtype, tokens, *, window, causal, slopes, reach=0):
    """Attention on *ops* over *tokens* random positions; *reach* is that of a bias by distance."""
    draw = np.random.default_rng(tokens)
    q, k, v, out = (Register(name, heads * HEAD_DIM) for name, heads in HEADS_OF)
    kind = KeysValues(KV_HEADS, HEAD_DIM, window)
    attention = Attention(
        HEADS, KV_HEADS, HEAD_DIM, rope=None, scale=0.2, alibi=8.0 if slopes else 0.0
    )
    slope = np.array(attention.slopes, dtype=np.float32) if slopes else None
    names = {"distances": "bias"} if reach else {}
    step = Attend(out, q, k, v, 0, kind, 0.2, 0.0, causal, "", slope, **names)
    bias = draw.standard_normal((HEADS, 2 * reach + 1)).astype(np.float32)
    config = ModelConfig(
        "test", HEAD_DIM, 8, 512, 1e-5, blocks=((Branch("", (attention,)),),), kv_type="f16"
    )
    cache = KVCache(config, 512, dtype=dtype)
    on = Pass(
        Program((step,), (kind,), out), {"bias": bias}, ops, [Segment([0] * tokens, cache, "all")]
    )
    for register in (q, k, v):
        values = draw.standard_normal((tokens, register.width))
        on.registers[register] = values.astype(np.float64 if dtype == np.float64 else np.float32)
    ops.run(step, on)
    return on.registers[out]


def attend_at_every_level(tokens, **how):
    """Results of the kernels at each level of this machine, the slowest first."""
    return [attend(NativeOps(threads=2), np.int16, tokens, **how) for _level in each_level()]


@pytest.mark.parametrize("tokens", [1, 9, 70, 300])
@pytest.mark.parametrize("window", [0, 5, 100])
@pytest.mark.parametrize(("causal", "slopes"), [(False, False), (False, True), (True, True)])
def test_attention_is_near_the_reference_with_the_same_bits_at_every_level(
    tokens, window, causal, slopes
):
    how = {"window": window, "causal": causal, "slopes": slopes}
    expected = attend(ReferenceOps(dtype=np.float64), np.float64, tokens, **how)
    results = attend_at_every_level(tokens, **how)
    assert np.sum((results[0] - expected) ** 2) / np.sum(expected**2) < NMSE
    assert len({result.tobytes() for result in results}) == 1


@pytest.mark.parametrize("tokens", [1, 70, 300])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [1, 40, 200])
def test_biases_by_distance_are_near_the_reference_with_the_same_bits_at_every_level(
    tokens, causal, reach
):
    how = {"window": 0, "causal": causal, "slopes": False, "reach": reach}
    exact = attend(ReferenceOps(dtype=np.float64), np.float64, tokens, **how)
    results = attend_at_every_level(tokens, **how)
    assert np.sum((results[0] - exact) ** 2) / np.sum(exact**2) < NMSE
    assert len({result.tobytes() for result in results}) == 1


def test_alibi_slopes_are_those_of_the_paper():
    def slopes(heads):
        return Attention(heads, heads, 8, rope=None, scale=1.0, alibi=8.0).slopes

    assert slopes(8) == tuple(2.0 ** -(head + 1) for head in range(8))
    assert slopes(6) == tuple(2.0**-power for power in (2, 4, 6, 8, 1, 3))
    assert Attention(4, 4, 8, rope=None, scale=1.0).slopes == ()


def test_rows_of_tables_are_selected_by_position_or_by_text():
    ops = NativeOps()
    rows = np.arange(5 * 8, dtype="<f4").reshape(5, 8)
    table = Weight("t", (5, 8), types.by_name("F32"), rows.reshape(-1).view(np.uint8))
    weights = {"table": ops.prepare(table, looked_up=True)}
    config = ModelConfig("test", 8, 8, 5, 1e-5, blocks=((),))
    expected = {"position": [0, 1, 2, 3], "text": [0, 0, 1, 1]}
    out = Register("out", 8)
    for by, numbers in expected.items():
        # Lookup replaces the rows of Embed, without which a graph refuses every token.
        steps = Embed(out, "table", 1.0), Lookup(out, "table", by, 5)
        program = Program(steps, (), out)
        for run in (ops.compile(program, weights), Interpreter(program, weights, ops).run):
            # The second text begins with the third token.
            segment = Segment([0] * 4, KVCache(config, 64), "all", second=2)
            np.testing.assert_array_equal(run([segment]), rows[numbers])


def test_a_position_without_a_row_is_refused():
    ops = NativeOps()
    table = Weight("t", (5, 8), types.by_name("F32"), np.zeros(40, "<f4").view(np.uint8))
    out = Register("out", 8)
    program = Program((Lookup(out, "table", "position", 5),), (), out)
    run = ops.compile(program, {"table": ops.prepare(table, looked_up=True)})
    config = ModelConfig("test", 8, 8, 5, 1e-5, blocks=((),))
    with pytest.raises(ValueError, match="behind the last"):
        run([Segment([0] * 6, KVCache(config, 64), "all")])
