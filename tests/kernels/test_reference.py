"""The reference operations against formulas written out element by element."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from single import compute

from bitnet.base.errors import UsageError
from bitnet.families.blocks import KeysValues
from bitnet.families.rope import Rope
from bitnet.kernels.instructions import Attend, Gate, Norm, Rotate
from bitnet.kernels.reference import ReferenceOps
from bitnet.quants import types
from bitnet.quants.registry import PACKED_U8, quantize
from bitnet.quants.weight import Weight

RNG = np.random.default_rng(0)
OPS = ReferenceOps(dtype=np.float64)
F32 = types.by_name("F32")


def weight(values):
    """An F32 weight of *values*."""
    values = np.asarray(values, dtype="<f4")
    return Weight("w", values.shape, F32, values.reshape(-1).view(np.uint8))


def test_linear_multiplies_by_the_transpose_and_adds_the_bias():
    matrix = OPS.prepare(weight([[1, 2, 3], [4, 5, 6]]))
    bias = OPS.prepare(weight([10, 20]))
    assert OPS.linear(np.array([[1.0, 0, -1]]), matrix, bias).tolist() == [[8, 18]]


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 3), (130, 129), (7, 8193), (8192, 1)])
@pytest.mark.parametrize("tokens", [0, 1, 5, 32, 33])
def test_linear_of_any_shape_is_near_the_float64_product(outputs, inputs, tokens):
    matrix = RNG.standard_normal((outputs, inputs)).astype(np.float32)
    x = RNG.standard_normal((tokens, inputs)).astype(np.float32)
    found = ReferenceOps().linear(x, matrix)
    expected = x.astype(np.float64) @ matrix.astype(np.float64).T
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * inputs)


def test_embed_returns_the_rows_of_the_ids():
    table = OPS.prepare(weight([[1, 2], [3, 4], [5, 6]]))
    assert OPS.embed(table, [2, 0, 2]).tolist() == [[5, 6], [1, 2], [5, 6]]


@pytest.mark.parametrize("encoding", ["I2_S", "PACKED_U8"])
def test_a_bitnet_linear_rounds_its_input_per_token(encoding):
    values = RNG.standard_normal((8, 128)).astype(np.float32)
    quant = PACKED_U8 if encoding == "PACKED_U8" else types.by_name(encoding)
    prepared = OPS.prepare(quantize("w", values, quant))
    x = RNG.standard_normal((3, 128)) * [[1], [100], [0]]  # each token has a step of its own
    magnitude = float(np.abs(values).mean(dtype=np.float32))
    codes = np.clip(np.rint(values / magnitude), -1, 1)
    expected = np.zeros((3, 8))
    for t in range(3):
        step = 127 / max(np.abs(x[t]).max(), 1e-5)
        rounded = [min(max(round(value * step), -128), 127) for value in x[t]]
        for row in range(8):
            total = sum(q * code for q, code in zip(rounded, codes[row], strict=True))
            expected[t, row] = total / step * magnitude
    np.testing.assert_allclose(OPS.linear(x, prepared), expected, rtol=1e-6)


def test_ternary_sums_are_exact_in_float32():
    codes = RNG.choice([-1.0, 1.0], (4, 8192)).astype(np.float32)
    ops = ReferenceOps()
    x = np.full((1, 8192), 127, dtype=np.float32)
    expected = codes.astype(np.int64).sum(axis=1) * 127
    prepared = ops.prepare(quantize("w", codes, types.by_name("I2_S")))
    np.testing.assert_array_equal(ops.linear(x, prepared)[0], expected)


def test_embed_decodes_rows_of_a_ternary_table():
    values = RNG.choice([-0.5, 0.5], (4, 128)).astype(np.float32)
    prepared = OPS.prepare(quantize("w", values, types.by_name("I2_S")))
    np.testing.assert_array_equal(OPS.embed(prepared, [3, 1]), values[[3, 1]])


def test_rms_norm_divides_by_the_root_of_the_mean_square():
    how = {"weight": np.array([1.0, 2.0]), "eps": 0.5}
    (found,) = compute(OPS, Norm, {"x": np.array([[3.0, 4.0]])}, {"out": 2}, **how)
    root = math.sqrt(12.5 + 0.5)
    np.testing.assert_allclose(found, [[3 / root, 8 / root]])


@pytest.mark.parametrize(
    ("style", "pairs"), [("interleaved", [(0, 1), (2, 3)]), ("half", [(0, 2), (1, 3)])]
)
def test_rope_rotates_each_pair_by_its_angle_and_scales_it(style, pairs):
    x = RNG.standard_normal((2, 3, 6))  # the last two elements are not rotated
    # Angles by position and pair; rotated pairs are scaled by 1.5.
    angles = np.arange(2)[:, None] * np.array([0.3, 1.7])
    rope = SimpleNamespace(style=style, regime=int, frequencies=lambda _: (angles[1], 1.5))
    rows = {"x": x.reshape(2, 18)}
    how = {"rotation": rope, "head_dim": 6}
    found = compute(OPS, Rotate, rows, {"out": 18}, **how)[0].reshape(x.shape)
    for t in range(2):
        for pair, (first, second) in enumerate(pairs):
            turned = (x[t, :, first] + 1j * x[t, :, second]) * 1.5 * np.exp(1j * angles[t, pair])
            np.testing.assert_allclose(found[t, :, first], turned.real)
            np.testing.assert_allclose(found[t, :, second], turned.imag)
    np.testing.assert_array_equal(found[..., 4:], x[..., 4:])


def attend(q, keys, values, scale, window, softcap, causal=True, sinks=None):
    """Attention of the reference; *keys* and *values* are ``(kv_heads, S, D)``."""
    kind = KeysValues(len(keys), q.shape[2], window)
    instruction = Attend(None, None, None, None, 0, kind, scale, softcap, causal)
    return instruction.attend(q, keys, values, sinks)


def gated(gate, up, activation):
    """The *activation* of *gate*, times *up*."""
    rows = {"gate": gate, "up": up}
    return compute(OPS, Gate, rows, {"out": up.shape[1]}, activation=activation)[0]


def attention_by_hand(q, keys, values, scale, window, softcap, causal, sinks):
    """Attention in Python's numbers, query by query and head by head."""
    t, heads, width = q.shape
    kv_heads, s, _ = keys.shape
    out = np.zeros((t, heads, width))
    for i in range(t):
        at = s - t + i
        last = at if causal else s - 1
        visible = [j for j in range(last + 1) if not window or abs(at - j) < window]
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = [float(q[i, head] @ keys[shared, j]) * scale for j in visible]
            if softcap:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            weights = [math.exp(score) for score in scores]
            total = sum(weights) + (0 if sinks is None else math.exp(sinks[head]))
            for share, j in zip(weights, visible, strict=True):
                out[i, head] += share / total * values[shared, j]
    return out.reshape(t, -1)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("t", [1, 4, 7])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (3, 1)])
def test_attention_is_that_computed_by_hand(heads, kv_heads, t, window, softcap, causal, sinks):
    q = RNG.standard_normal((t, heads, 8))
    keys, values = RNG.standard_normal((2, kv_heads, 7, 8))
    options = {"scale": 0.4, "window": window, "softcap": softcap, "causal": causal}
    options["sinks"] = RNG.standard_normal(heads) if sinks else None
    expected = attention_by_hand(q, keys, values, **options)
    np.testing.assert_allclose(attend(q, keys, values, **options), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(("at", "seen_by"), [(0, []), (2, [0]), (5, [2, 3]), (6, [3])])
def test_a_value_that_is_not_finite_affects_only_the_queries_that_see_it(at, seen_by, bad):
    """Four queries at positions 3 to 6, each of which sees two of them."""
    q = RNG.standard_normal((4, 4, 8))
    keys, values = RNG.standard_normal((2, 2, 7, 8))
    options = {"scale": 0.4, "window": 2, "softcap": 0.0}
    expected = attend(q, keys, values, **options).reshape(q.shape)
    values[1, at, 3] = bad
    computed = attend(q, keys, values, **options).reshape(q.shape)
    affected = ~np.isfinite(computed).all(axis=(1, 2))
    assert np.flatnonzero(affected).tolist() == seen_by
    np.testing.assert_array_equal(computed[~affected], expected[~affected])
    np.testing.assert_array_equal(computed[:, :2], expected[:, :2])  # the other key head


def test_gates_are_their_formulas():
    gate = np.array([[-2.0, 0.5, 3.0]])
    up = np.array([[1.0, 2.0, -1.0]])

    def gelu(x):
        return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    expected = {
        "silu": [x / (1 + math.exp(-x)) for x in gate[0]],
        "gelu_tanh": [gelu(x) for x in gate[0]],
        "gelu": [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in gate[0]],
        "gelu_quick": [x / (1 + math.exp(-1.702 * x)) for x in gate[0]],
        "relu_squared": [0, 0.25, 9],
        "relu": [0, 0.5, 3],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(gated(gate, up, name), [values * up[0]])


def test_clamped_gates_are_their_formulas():
    gate = np.array([[-9.0, 0.5, 7.5, 8.0]])
    up = np.array([[1.0, 7.5, -9.0, 2.0]])
    # Gates are at most 7, and the other factors between -7 and 7.
    g = [-9.0, 0.5, 7.0, 7.0]
    u = [1.0, 7.0, -7.0, 2.0]
    silu = [x / (1 + math.exp(-x)) * y for x, y in zip(g, u, strict=True)]
    oai = [x / (1 + math.exp(-1.702 * x)) * (y + 1) for x, y in zip(g, u, strict=True)]
    np.testing.assert_allclose(gated(gate, up, "silu_clamped"), [silu])
    np.testing.assert_allclose(gated(gate, up, "swiglu_oai"), [oai])


def test_silu_of_a_large_negative_number_is_zero():
    gate = np.array([[-1000.0]], dtype=np.float32)
    assert gated(gate, gate, "silu") == 0


def test_a_soft_cap_bounds_large_values():
    np.testing.assert_allclose(OPS.softcap(np.array([1e9, 0.1]), 30.0), [30, 0.1], rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_stay_in_the_chosen_precision(dtype):
    ops = ReferenceOps(dtype=dtype)
    x = ops.embed(ops.prepare(weight(RNG.standard_normal((4, 8)))), [1, 2])
    ones = ops.prepare(weight(np.ones(8)))
    (x,) = compute(ops, Norm, {"x": x}, {"out": 8}, weight=ones, eps=1e-5)
    x = ops.linear(x, ops.prepare(weight(RNG.standard_normal((8, 8)))))
    (x,) = compute(ops, Rotate, {"x": x}, {"out": 8}, rotation=Rope(4, 10.0, "half"), head_dim=4)
    heads = x.reshape(2, 2, 4)
    cached = heads.transpose(1, 0, 2).astype(np.float16)
    x = attend(heads, cached, cached, 0.5, 0, 50.0)
    x = ops.softcap(gated(x, x, "gelu_tanh"), 30.0)
    assert x.dtype == dtype


def test_another_precision_is_refused():
    with pytest.raises(UsageError, match="float16"):
        ReferenceOps(dtype=np.float16)
