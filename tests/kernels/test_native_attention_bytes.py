"""Attention over a q8 cache: near float64, and with the bits of its definition."""

import numpy as np
import pytest
from arithmetic import exponential, power_or_zero
from attention_rows import check_rows, random, with_shapes, with_sinks

from bitnet.base import native
from bitnet.kernels import kv_codes

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")

PAGE = kv_codes.PAGE
SPLIT = 4 * PAGE  # keys of a split: partial results of splits are merged in order
# Bound on the normalized squared error for normally distributed numbers: queries, keys, weights and
# values are rounded to 8 bits.
NMSE = 3e-4


def paged(k, v):
    """*k* and *v*, ``(positions, kv_heads, dim)``, as pages, with NaN at unused positions."""
    positions, heads, dim = k.shape
    shape = (-(-positions // 64), 2, heads, kv_codes.page_words(dim, "q8"))
    pages = np.full(shape, 0x7FC0, dtype=np.int16)  # NaN as a step
    for number, page in enumerate(pages):
        held = slice(64 * number, min(64 * number + 64, positions))
        kv_codes.store(page, slice(0, held.stop - held.start), k[held], v[held], "q8")
    return pages


def attend(q, k, v, start, **how):
    """Attention of the compiled module; the first query is at position *start*."""
    return attend_paged(q, paged(k, v), start, **how)


def attend_paged(q, pages, start, *, scale, window=0, softcap=0.0, sinks=None):
    """Attention of the compiled module over the *pages* of a q8 cache, ``(T, H, D)``."""
    out = np.full_like(q, np.nan)
    NATIVE.attention(q, pages, start, scale, window, softcap, out, sinks)
    return out


def exact(q, k, v, start, *, scale, window=0, softcap=0.0):
    """Attention in float64 over keys and values that are not rounded, ``(T, H, D)``."""
    t, heads, _ = q.shape
    k, v = (np.repeat(x.astype(np.float64), heads // k.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("thd,shd->hts", q.astype(np.float64), k[: start + t]) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(start, start + t)[:, None] - np.arange(start + t)
    hidden = (distance < 0) | (distance >= window) if window else distance < 0
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hts,shd->thd", weights, v[: start + t])


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize(("tokens", "start"), [(1, 0), (1, 600), (35, 100), (130, 0)])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 40), (9, 3, 64), (4, 1, 256)])
def test_attention_over_bytes_is_near_that_of_float64(
    heads, kv_heads, dim, tokens, start, window, softcap
):
    q = random(tokens, heads, dim)
    k, v = (random(start + tokens + 7, kv_heads, dim, seed=s) for s in (2, 3))
    how = {"scale": dim**-0.5, "window": window, "softcap": softcap}
    expected = exact(q, k, v, start, **how)
    error = attend(q, k, v, start, **how) - expected
    assert np.sum(error**2) / np.sum(expected**2) < NMSE


# Ordered dithering: a rounding threshold for each key of a page, kThresholds in code_sums.hpp.
THRESHOLDS = np.array([2 * int(f"{key:06b}"[::-1], 2) + 1 for key in range(PAGE)])


def product(a, b):
    """Rounded product of two fixed-point numbers with 15 fractional bits."""
    return (a * b + 0x4000) >> 15


def weight_of(x):
    """32,767 times 2^-y, where *x* is y in units of 1 / 2,048."""
    fraction = (x << 4) & 0x7FF0
    whole = product(fraction, 22652 - product(fraction, 7545 - product(fraction, 1277)))
    return (32767 - whole) >> (x >> 11)


def row_by_definition(q, k, v, *, scale, window, softcap, sink=None):
    """One query of one head over the keys up to its own, in the operations of the kernels.

    They are defined in ``native/kernels/isa/kernels.hpp``; 1.44269504 is log2(e).
    """
    f = np.float32
    last = len(k)
    first = max(0, last - window) if window else 0
    query, keys, values = (kv_codes.encode_bytes(x) for x in (q, k, v))
    nat = f(1.44269504) * f(2048)
    shorter = f(1) / f(kv_codes.rotation_block(len(q)))
    step = query.steps * (f(scale) * (1 if softcap else nat) * shorter)
    products = keys.codes.astype(np.int64) @ query.codes.astype(np.int64)
    whole = None
    for split in range(first // SPLIT * SPLIT, last, SPLIT):
        acc = np.zeros(len(q), f)
        top = f(-np.inf)
        total = f(0)
        for base in range(split, min(split + SPLIT, last), PAGE):
            seen = slice(max(first, base), min(base + PAGE, last))
            if seen.start >= seen.stop:
                continue
            scores = products[seen].astype(f) * step * keys.steps[seen]
            if softcap:
                capped = 1 - 2 / (exponential(2 * scores / f(softcap)) + 1)
                scores = f(softcap) * capped * nat
            below = np.rint(scores.max() - scores)
            weights = weight_of(np.minimum(below, 32767).astype(np.int64))
            of_page = scores.max() / f(2048)
            steps = values.steps[seen]
            most = max(top, of_page)
            before, now = power_or_zero(np.array([top - most, of_page - most]))
            largest = steps.max()
            ratios = np.rint(steps * (f(32767) / largest if largest > 0 else f(0)))
            parts = product(weights, ratios.astype(np.int64))
            shift = 16 - max(1, int(parts.max())).bit_length()
            factor = int(f(32640 * 65536) / f(max(1, parts.max()) << shift))
            scaled = (parts << shift) * factor >> 16
            codes = (scaled + THRESHOLDS[seen.start - base : seen.stop - base]) >> 7
            assert 0 <= codes.min() <= codes.max() < 2**8
            sums = codes @ values.codes[seen].astype(np.int64)
            unit = largest * (f(32768) / f(32767) / f(32767)) * (f(2**23) / f(factor << shift))
            acc = acc * before + sums.astype(f) * (unit * now)
            total = total * before + f(weights.sum()) * (f(1) / f(32767)) * now
            top = most
        if whole is None:
            whole = acc, top, total
        elif total:
            most = max(top, whole[1])
            a, b = power_or_zero(np.array([whole[1] - most, top - most]))
            whole = whole[0] * a + acc * b, most, whole[2] * a + total * b
    turned = kv_codes.rotate(whole[0])
    if sink is None:
        return turned * (f(1) / whole[2] * shorter)
    sink *= f(1.44269504)
    most = max(sink, whole[1])
    before, now = power_or_zero(np.array([whole[1] - most, sink - most]))
    return turned * (before / (whole[2] * before + now) * shorter)


@with_sinks
@with_shapes
def test_attention_over_bytes_has_the_bits_of_its_definition(
    heads, kv_heads, dim, tokens, start, window, softcap, sinks, level
):
    q = random(tokens, heads, dim) * 2
    k = random(start + tokens, kv_heads, dim, seed=2)
    v = random(start + tokens, kv_heads, dim, seed=3)
    v[::3] = 0.0  # whose step is zero
    how = {"scale": 0.11, "window": window, "softcap": softcap}
    check_rows(attend, row_by_definition, q, k, v, start, sinks=sinks, **how)


HEADS = ((2, 2), (3, 1), (8, 2), (8, 1))  # of queries, and of keys
# Every width of a head with every window; heads and softcaps alternate.
SHAPES = [
    (dim, *HEADS[(i + j) % 4], window, 7.0 * ((i + j) % 3 == 0))
    for i, dim in enumerate((64, 80, 128, 256, 21))
    for j, window in enumerate((0, 30, 64, 129))
]


@pytest.mark.parametrize(("dim", "heads", "kv_heads", "window", "softcap"), SHAPES)
def test_a_query_has_the_same_bits_alone_and_in_any_batch(
    dim, heads, kv_heads, window, softcap, level, threads
):
    """In a batch of any size, cut anywhere, beside other heads and on any number of threads."""
    tokens = 40
    start = 231
    q = random(tokens, heads, dim)
    k, v = (random(start + tokens, kv_heads, dim, seed=s) for s in (2, 3))
    how = {"scale": dim**-0.5, "window": window, "softcap": softcap}
    threads(1)
    alone = np.empty_like(q)
    pages = [paged(k[:, [n]], v[:, [n]]) for n in range(kv_heads)]
    for t in range(tokens):
        for h in range(heads):
            query = q[t : t + 1, h : h + 1].copy()
            own = pages[h * kv_heads // heads]
            alone[t, h] = attend_paged(query, own, start + t, **how)[0, 0]
    np.testing.assert_array_equal(attend(q, k, v, start, **how), alone)
    for cuts in ((1, 4, 9, 11, 40), (17, 33, 40)):
        at = 0
        for cut in cuts:
            part = attend(q[at:cut].copy(), k[: start + cut], v[: start + cut], start + at, **how)
            np.testing.assert_array_equal(part, alone[at:cut], err_msg=f"{at}:{cut} of {cuts}")
            at = cut
    threads(3)
    np.testing.assert_array_equal(attend(q, k, v, start, **how), alone)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("which", ["keys", "values"])
def test_a_key_or_value_that_is_not_finite_gives_nan_to_the_queries_that_see_it(which, bad, level):
    """Other key heads, and queries at earlier positions, are not affected."""
    q, (k, v) = random(8, 4, 21), (random(70, 2, 21, seed=s) for s in (2, 3))
    {"keys": k, "values": v}[which][66, 0, 5] = bad
    got = attend(q, k, v, 62, scale=1.0, softcap=9.0)
    assert np.isfinite(got[:, 2:]).all()
    assert np.isfinite(got[:4]).all()
    assert np.isnan(got[4:, :2]).all()


@pytest.mark.parametrize("best", [9, 100])
def test_a_value_that_is_nan_gives_nan_however_small_its_weight(best, level):
    """The best key is in the page of that value, or in another one."""
    q = np.ones((1, 1, 48), dtype=np.float32)
    k = np.zeros((128, 1, 48), dtype=np.float32)
    v = np.ones((128, 1, 48), dtype=np.float32)
    k[best, 0, 0] = 200.0  # 2^288 times the weight of the others
    v[5, 0, 33] = np.nan
    assert np.isnan(attend(q, k, v, 127, scale=1.0)).all()


@pytest.mark.parametrize("best", [3, 40])
def test_many_small_weights_beside_a_large_one_are_not_lost(best, level):
    """Each is 1 / 1,275 of the large one, and 63 of them are a twentieth of the sum."""
    q = np.ones((1, 1, 16), dtype=np.float32)
    k = np.zeros((64, 1, 16), dtype=np.float32)
    v = np.ones_like(k)
    k[best, 0, 0] = np.log(1275.0)
    # A code is a weight times the step of its value: this value has the step of the others.
    v[best, 0] = np.tile([1.0, -1.0], 8)
    small, large = 63 / (63 + 1275.0), 1275 / (63 + 1275.0)
    expected = (small + large * v[best])[None]
    error = attend(q, k, v, 63, scale=1.0) - expected
    assert np.abs(error).max() < 0.15 * small


def test_a_large_weight_of_a_small_value_does_not_coarsen_the_other_weights(level):
    """The first token of a text is such a value. A code is a weight times the step of its value."""
    q = np.ones((1, 1, 16), dtype=np.float32)
    k = np.zeros((64, 1, 16), dtype=np.float32)
    v = random(64, 1, 16)
    k[0, 0, 0], v[0] = np.log(2000.0), 1e-4 * v[0]
    expected = exact(q, k, v, 63, scale=1.0)
    error = attend(q, k, v, 63, scale=1.0) - expected
    assert np.sum(error**2) / np.sum(expected**2) < 2e-2


def test_weights_are_not_lost_in_a_page_where_all_are_small(level):
    """A page's weights are shares of its own largest, however small that is beside another's."""
    q = np.ones((1, 1, 16), dtype=np.float32)
    k, v = np.zeros((2, 128, 1, 16), dtype=np.float32)
    k[:64, 0, 0] = 14.0  # 1.2 million times the weight of the second page
    v[64:] = 1.0
    got = attend(q, k, v, 127, scale=1.0)
    np.testing.assert_allclose(got, 1 / (1 + np.exp(14.0)), rtol=0.02)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_keys_and_values_of_any_magnitude_have_the_same_precision(scale, level):
    q, (k, v) = random(3, 2, 64), (random(70, 2, 64, seed=s) for s in (2, 3))
    expected = exact(q, k, v, 60, scale=0.125)
    found = attend(q, k * np.float32(scale), v, 60, scale=0.125 / scale)
    assert np.sum((found - expected) ** 2) / np.sum(expected**2) < NMSE
    found = attend(q, k, v * np.float32(scale), 60, scale=0.125) / scale
    assert np.sum((found - expected) ** 2) / np.sum(expected**2) < NMSE


def test_keys_and_values_outside_of_the_window_do_not_change_a_bit(level):
    """Not even in a page of which other queries see these positions."""
    q = random(40, 3, 64)
    k, v = (random(340, 1, 64, seed=s) for s in (2, 3))
    how = {"scale": 0.125, "window": 70}
    expected = attend(q, k, v, 300, **how)
    late = v.copy()
    late[320:] = np.nan
    k[:231] = np.nan
    v[:231] = np.nan
    np.testing.assert_array_equal(attend(q, k, v, 300, **how), expected)
    np.testing.assert_array_equal(attend(q, k, late, 300, **how)[:20], expected[:20])
