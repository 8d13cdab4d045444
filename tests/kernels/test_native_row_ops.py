"""Norms, RoPE, gates and states of the compiled module against float64 NumPy."""

import itertools
import math

import numpy as np
import pytest
from kernel_levels import each_level
from single import compute

from bitnet.base import native
from bitnet.kernels.instructions import Center, Clamp, Gate, Norm, Xielu
from bitnet.kernels.mixer_instructions import (
    Blend,
    Convolve,
    Cutoff,
    DeltaRule,
    MatchMagnitude,
    SelectiveScan,
)
from bitnet.kernels.native import NativeOps
from bitnet.kernels.reference import ReferenceOps

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")

# Bound on the normalized squared error of float32 sums of up to a few thousand terms, and of an
# exponential within 2 ulp.
NMSE = 1e-12
GATES = {
    "silu": lambda g: g / (1 + np.exp(-g)),
    "gelu_tanh": lambda g: g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))),
    "gelu": lambda g: g * np.vectorize(math.erfc)(-g * 0.5**0.5) / 2,
    "gelu_quick": lambda g: g / (1 + np.exp(-1.702 * g)),
    "relu_squared": lambda g: np.maximum(g, 0) ** 2,
    "relu": lambda g: np.maximum(g, 0),
    "tanh": np.tanh,
}


def random(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def norm(ops, x, weight, eps):
    """RMS norm of *x* on *ops*."""
    return compute(ops, Norm, {"x": x}, {"out": x.shape[1]}, weight=weight, eps=eps)[0]


def gated(ops, gate, up, activation):
    """The *activation* of *gate*, times *up*, on *ops*."""
    rows = {"gate": gate, "up": up}
    return compute(ops, Gate, rows, {"out": up.shape[1]}, activation=activation)[0]


def nmse(got, expected):
    """Squared error relative to the squares of *expected*."""
    return np.sum((got - expected) ** 2) / np.sum(expected**2)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 576), (70, 2560)])
def test_norms_are_near_those_of_float64(shape, level):
    x = random(*shape)
    w = random(shape[1], seed=2)
    out = norm(NativeOps(), x, w, 1e-5)
    exact = x.astype(np.float64)
    expected = exact / np.sqrt(np.mean(exact**2, axis=1, keepdims=True) + 1e-5) * w
    assert nmse(out, expected) < NMSE


@pytest.mark.parametrize("parts", [1, 4])
def test_a_layer_norm_subtracts_means_and_adds_its_bias(parts, level):
    x = random(5, 96)
    w = random(96, seed=2)
    b = random(96, seed=3)
    ops = NativeOps()
    size = 96 // parts
    (centered,) = compute(ops, Center, {"x": x}, {"out": 96}, width=size)
    how = {"weight": w, "bias": b, "eps": 1e-5, "parts": parts}
    (out,) = compute(ops, Norm, {"x": centered}, {"out": 96}, **how)
    groups = x.astype(np.float64).reshape(5, parts, size)
    deviation = groups - groups.mean(axis=2, keepdims=True)
    normed = deviation / np.sqrt(np.mean(deviation**2, axis=2, keepdims=True) + 1e-5)
    assert nmse(out, normed.reshape(5, 96) * w + b) < NMSE


def test_a_blend_is_the_weighted_sum_of_its_operands(level):
    x = random(3, 33)
    y = random(3, 33, seed=2)
    shares = {"x_share": 0.25, "y_share": -2.0}
    (out,) = compute(NativeOps(), Blend, {"x": x, "y": y}, {"out": 33}, **shares)
    np.testing.assert_array_equal(out, x * np.float32(0.25) - y * np.float32(2))


@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_a_resized_row_has_the_norm_of_the_other_unless_it_is_shorter_than_eps(size, level):
    x = random(3, 33) * np.float32(size)
    like = random(3, 33, seed=2)
    (out,) = compute(NativeOps(), MatchMagnitude, {"x": x, "like": like}, {"out": 33}, eps=1e-5)
    exact = x.astype(np.float64)
    own = np.maximum(np.mean(exact**2, axis=1, keepdims=True), 1e-5)
    target = np.mean(like.astype(np.float64) ** 2, axis=1, keepdims=True)
    assert nmse(out, exact * np.sqrt(target / own)) < NMSE
    has_its_norm = np.allclose(np.linalg.norm(out, axis=1), np.linalg.norm(like, axis=1))
    assert has_its_norm == (size == 1.0)


@pytest.mark.parametrize("deviations", [1.6448, 0.0, -0.5])
def test_a_cutoff_subtracts_a_threshold_of_mean_and_deviations_and_clips_at_zero(deviations, level):
    x = random(4, 700) * 2 + 1
    how = {"deviations": deviations}
    (out,) = compute(NativeOps(), Cutoff, {"x": x}, {"out": 700}, **how)
    exact = x.astype(np.float64)
    least = exact.mean(axis=1, keepdims=True) + exact.std(axis=1, keepdims=True) * deviations
    assert nmse(out, np.maximum(exact - least, 0)) < NMSE
    assert (out == 0).any()
    x[0, 0] = np.nan
    (lost,) = compute(NativeOps(), Cutoff, {"x": x}, {"out": 700}, **how)
    assert np.isnan(lost[0]).all()
    np.testing.assert_array_equal(lost[1:], out[1:])


def test_clamped_numbers_are_within_the_limit(level):
    x = random(3, 33) * 4
    (out,) = compute(NativeOps(), Clamp, {"x": x}, {"out": 33}, limit=2.5)
    np.testing.assert_array_equal(out, np.clip(x, -2.5, 2.5))
    assert abs(x).max() > 2.5


def test_xielu_is_near_that_of_the_reference(level):
    x = random(3, 700) * 4
    how = {"above": 0.8, "below": 0.7, "beta": 0.5, "eps": -1e-6}
    (found,) = compute(NativeOps(), Xielu, {"x": x}, {"out": 700}, **how)
    (expected,) = compute(
        ReferenceOps(dtype=np.float64), Xielu, {"x": x.astype(np.float64)}, {"out": 700}, **how
    )
    assert nmse(found, expected) < NMSE


def test_an_activation_alone_is_a_gate_on_ones(level):
    x = random(3, 33)
    alone = compute(NativeOps(), Gate, {"gate": x}, {"out": 33}, up=None, activation="gelu")[0]
    np.testing.assert_array_equal(alone, gated(NativeOps(), x, np.ones_like(x), "gelu"))


@pytest.mark.parametrize("pairs", [1, 10, 32])
@pytest.mark.parametrize("half", [True, False])
def test_rope_rotates_pairs_and_keeps_the_rest(half, pairs, level):
    x = random(5, 3, 64)
    angles = random(5, pairs, seed=2)
    out = np.empty_like(x)
    NATIVE.rope(x, np.cos(angles), np.sin(angles), half, out)
    first, second = (
        (slice(0, pairs), slice(pairs, 2 * pairs))
        if half
        else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
    )
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles.astype(np.float64))[:, None]
    np.testing.assert_allclose(out[..., first], turned.real, atol=1e-6)
    np.testing.assert_allclose(out[..., second], turned.imag, atol=1e-6)
    np.testing.assert_array_equal(out[..., 2 * pairs :], x[..., 2 * pairs :])


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("n", [1, 33, 70000])
def test_gates_are_near_those_of_float64(kind, n, level):
    g = random(1, n) * 4 + 0.1
    up = random(1, n, seed=2)
    out = gated(NativeOps(), g, up, kind)
    assert nmse(out, GATES[kind](g.astype(np.float64)) * up) < NMSE


@pytest.mark.parametrize("activation", ["silu_clamped", "swiglu_oai"])
def test_clamped_gates_are_near_those_of_the_reference(activation, level):
    g = random(1, 70000) * 8
    up = random(1, 70000, seed=2) * 8
    found = gated(NativeOps(), g, up, activation)
    expected = gated(ReferenceOps(), g.astype(np.float64), up, activation)
    assert nmse(found, expected) < NMSE


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_quick", "gelu_tanh"])
def test_a_gate_far_from_zero_is_the_identity_or_zero(kind, level):
    g = np.array([[200.0, -200.0, 0.0]], dtype=np.float32)
    up = np.ones((1, 3), dtype=np.float32)
    out = gated(NativeOps(), g, up, kind)
    np.testing.assert_allclose(out, [[200.0, 0.0, 0.0]], atol=1e-30)


@pytest.mark.parametrize("cap", [1e-3, 5.0, 30.0, 1e3])
def test_the_soft_cap_is_near_that_of_float64(cap, level):
    x = np.array([0.0, 1e-3, -2.0, 50.0, -1e30, np.inf, np.nan], dtype=np.float32)
    out = np.empty_like(x)
    NATIVE.softcap(x, cap, out)
    np.testing.assert_allclose(out, cap * np.tanh(x / np.float64(cap)), rtol=1e-4, atol=2e-7 * cap)


def test_row_operations_are_the_same_bits_for_every_instruction_set():
    x = random(3, 333)
    w = random(333, seed=2)
    ops = NativeOps()
    results = set()
    for _level in each_level():
        both = norm(ops, x, w, 1e-6), gated(ops, x[:1], w[None], "gelu_tanh")
        results.add(both[0].tobytes() + both[1].tobytes())
    assert len(results) == 1


def test_sines_and_cosines_are_rounded_correctly_but_for_a_few_ties():
    draw = np.random.default_rng(3)
    # Multiples of a quarter turn, where one of the two is near zero.
    near = draw.integers(-(1 << 20), 1 << 20, 20_000) * (np.pi / 2)
    angles = np.concatenate(
        [
            draw.uniform(-1.6e6, 1.6e6, 20_000),
            draw.uniform(-10, 10, 20_000),
            near,
            np.nextafter(near, 0),
            [0.0, 1e-300, np.pi],
        ]
    )
    for scale in (1.0, 1.1386294361119891):
        cos, sin = (np.empty(len(angles), dtype=np.float32) for _ in range(2))
        NATIVE.turns(angles, scale, cos, sin)
        for got, exact in ((cos, np.cos(angles) * scale), (sin, np.sin(angles) * scale)):
            expected = exact.astype(np.float32)
            assert (np.abs(got - expected) <= np.spacing(np.abs(expected))).all()
            # Of 80,003 angles.
            assert np.count_nonzero(got != expected) < 10


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("value_dim", [128, 37])
@pytest.mark.parametrize("floor", [0.0, -5.0])
def test_states_have_the_same_bits_at_every_level_however_a_text_is_cut(grouped, value_dim, floor):
    heads = 6
    key_heads = 2
    key_dim = 24
    tokens = 5
    rng = np.random.default_rng(value_dim)
    q, k = (rng.standard_normal((tokens, key_heads * key_dim), np.float32) for _ in range(2))
    v = rng.standard_normal((tokens, heads * value_dim), np.float32)
    alpha, beta = (rng.standard_normal((tokens, heads), np.float32) for _ in range(2))
    a = -rng.random(heads, np.float32)
    dt = rng.standard_normal(heads, np.float32)
    start = rng.standard_normal((heads, key_dim, value_dim), np.float32)
    x = rng.standard_normal((tokens, 41), np.float32)
    weight = rng.random(41 * 4, np.float32)
    bias = x[0].copy() if grouped else ""
    delta = {"a": a, "dt": dt, "cache": 0, "key_heads": key_heads, "grouped": grouped}
    delta["floor"] = floor
    scan = {"a": a, "bias": dt, "skip": alpha[0], "cache": 0, "groups": key_heads}
    convolution = {"weights": (weight,), "bias": bias, "cache": 0, "silu": grouped}

    def run(ops, cuts):
        state = start.copy()
        scanned = start.copy()
        before = np.ones((3, 41), np.float32)
        parts = []
        for first, last in itertools.pairwise(cuts):
            its = slice(first, last)
            wide = {"out": v.shape[1]}
            rows = {"q": q[its], "k": k[its], "v": v[its], "alpha": alpha[its], "beta": beta[its]}
            (read,) = compute(ops, DeltaRule, rows, wide, states=[state], **delta)
            rows = {"x": v[its], "b": k[its], "c": q[its], "dt": alpha[its]}
            (scans,) = compute(ops, SelectiveScan, rows, wide, states=[scanned], **scan)
            rows = {"x": x[its]}
            width = {"out": 41}
            (mixed,) = compute(ops, Convolve, rows, width, states=[before], **convolution)
            parts.append(np.concatenate([read, scans, mixed], axis=1))
        states = (state.ravel(), scanned.ravel(), before.ravel())
        return np.concatenate([np.concatenate(parts).ravel(), *states])

    ops = NativeOps(threads=2)
    results = {}
    # Two runs at each level: the whole text, and three parts.
    for level in each_level():
        names = [f"{name}/{level}" for name in ("delta_rule", "selective_scan", "convolve")]
        counts = [ops.counters().get(name, 0) for name in names]
        results[level] = run(ops, [0, 5])
        np.testing.assert_array_equal(run(ops, [0, 1, 4, 5]), results[level])
        # The kernels of this level ran, once for the whole text and once for each of three parts.
        assert [ops.counters()[name] for name in names] == [count + 4 for count in counts]
        np.testing.assert_array_equal(results[level], results["scalar"], err_msg=level)
    expected = run(ReferenceOps(), [0, 5])
    np.testing.assert_allclose(results["scalar"], expected, rtol=2e-4, atol=2e-5)
