"""Attention of the compiled module: against float64 NumPy, and bit for bit as it is defined."""

import numpy as np
import pytest

from bitnet import native

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")

NMSE = 1e-12  # float32 sums of up to a few thousand terms, and an exponential within 2 ulp
PAGE = 64
SPLIT = 4 * PAGE


def random(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def nmse(got, expected):
    return np.sum((got - expected) ** 2) / np.sum(expected**2)


def exact_attention(q, k, v, start, *, scale, window, softcap):
    t, heads, _ = q.shape
    group = heads // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), group, axis=1) for a in (k, v))
    scores = np.einsum("thd,shd->hts", q.astype(np.float64), k[: start + t]) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(start, start + t)[:, None] - np.arange(start + t)
    hidden = (distance < 0) | (distance >= window) if window else distance < 0
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hts,shd->thd", weights, v[: start + t])


def paged(k, v):
    """``(positions, kv_heads, dim)`` in pages of 64, with NaN where there is no position."""
    positions, heads, dim = k.shape
    pages = np.full((-(-positions // 64), 2, heads, dim * 64), np.nan, dtype=np.float16)
    for at in range(positions):
        page = pages[at // 64]
        page[0].reshape(heads, dim, 64)[:, :, at % 64] = k[at]
        page[1].reshape(heads, 64, dim)[:, at % 64] = v[at]
    return pages.view(np.uint16)


def attend(q, k, v, start, *, scale, window, softcap):
    out = np.full_like(q, np.nan)
    NATIVE.attention(q, paged(k, v), start, scale, window, softcap, out)
    return out


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("window", [0, 1, 40])
@pytest.mark.parametrize(
    ("tokens", "start"), [(1, 0), (1, 200), (3, 62), (130, 0), (35, 100), (1, 600), (20, 510)]
)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 40), (9, 3, 64), (4, 1, 256)])
def test_attention(heads, kv_heads, dim, tokens, start, window, softcap, level):
    q = random(tokens, heads, dim)
    k = random(start + tokens + 7, kv_heads, dim, seed=2).astype(np.float16)
    v = random(start + tokens + 7, kv_heads, dim, seed=3).astype(np.float16)
    how = {"scale": dim**-0.5, "window": window, "softcap": softcap}
    got = attend(q, k, v, start, **how)
    assert nmse(got, exact_attention(q, k, v, start, **how)) < NMSE


def test_attention_of_huge_scores_stays_finite(level):
    q, k = random(3, 2, 16) * 1000, random(70, 2, 16, seed=2).astype(np.float16)
    v = np.ones_like(k)
    got = attend(q, k, v, 60, scale=1.0, window=0, softcap=0.0)
    np.testing.assert_allclose(got, 1.0, rtol=1e-5)


@pytest.mark.parametrize("low", [-100.0, -3e4, -np.inf])
def test_a_key_far_below_the_best_has_no_weight_at_all(low, level):
    q = np.ones((1, 1, 16), dtype=np.float32)
    k = np.zeros((70, 1, 16), dtype=np.float16)
    v = np.zeros((70, 1, 16), dtype=np.float16)
    k[[3, 66], 0, 0] = low
    v[[3, 66]] = 65504
    got = attend(q, k, v, 69, scale=1.0, window=0, softcap=0.0)
    np.testing.assert_array_equal(got, np.zeros_like(q))


def test_a_query_without_a_number_gives_none(level):
    q = np.ones((1, 2, 16), dtype=np.float32)
    q[0, 1, 5] = np.nan
    k, v = (random(70, 2, 16, seed=s).astype(np.float16) for s in (2, 3))
    got = attend(q, k, v, 69, scale=1.0, window=0, softcap=9.0)
    assert np.isfinite(got[0, 0]).all()
    assert np.isnan(got[0, 1]).all()


def test_attention_gives_the_same_bits_on_every_instruction_set_that_fuses():
    q, how = random(40, 6, 84), {"scale": 0.125, "window": 90, "softcap": 20.0}
    k, v = (random(640, 2, 84, seed=s).astype(np.float16) for s in (2, 3))
    before = NATIVE.kernel_level()
    results = set()
    for chosen in NATIVE.kernel_levels():
        if chosen != "scalar":
            NATIVE.set_kernel_level(chosen)
            results.add(attend(q, k, v, 600, **how).tobytes())
    NATIVE.set_kernel_level(before)
    assert len(results) <= 1


def test_attention_of_a_query_does_not_depend_on_the_batch_or_the_threads(level):
    q, how = random(40, 6, 64), {"scale": 0.125, "window": 90, "softcap": 0.0}
    k, v = (random(140, 2, 64, seed=s).astype(np.float16) for s in (2, 3))
    before = NATIVE.threads()
    results = []
    for threads in (1, 3):
        NATIVE.set_threads(threads)
        results.append(attend(q, k, v, 100, **how))
    NATIVE.set_threads(before)
    np.testing.assert_array_equal(results[0], results[1])
    alone = [attend(q[t : t + 1], k, v, 100 + t, **how) for t in range(40)]
    np.testing.assert_array_equal(np.concatenate(alone), results[0])


def test_attention_refuses_a_cache_that_is_too_short():
    q = random(2, 2, 16)
    k = np.zeros((64, 1, 16), dtype=np.float16)
    with pytest.raises(ValueError, match="every position"):
        attend(q, k, k, 63, scale=1.0, window=0, softcap=0.0)


def fused(a, b, c):
    """``a * b + c`` of float32 with one rounding: in float64 to odd, then to float32."""
    product, c = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = np.atleast_1d(total).view(np.int64)
    error = np.broadcast_to(np.atleast_1d(error), bits.shape)
    away = (error > 0) == (bits >= 0)
    odd = np.where((error != 0) & (bits % 2 == 0), np.where(away, bits + 1, bits - 1), bits)
    return odd.view(np.float64).astype(np.float32)


def exponential(x):
    """The polynomial of elementary.hpp; zero below -87."""
    f = np.float32
    clamped = np.clip(x, f(-87), f(87))
    n = (clamped * f(1.44269504) + f(12582912)) - f(12582912)
    r = (clamped - n * f(0.693359375)) + n * f(2.12194440e-4)
    p = f(1.9875691500e-4)
    for term in (
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    ):
        p = p * r + f(term)
    return np.ldexp(p * r * r + r + f(1), n.astype(np.int32))


def weight(x):
    return np.where(x < -87, np.float32(0), exponential(x))


def row_by_definition(q, k, v, *, scale, window, softcap):
    """One query of one head over the keys up to its own, operation by operation."""
    f, last = np.float32, len(k)
    first = max(0, last - window) if window else 0
    whole = None
    for split in range(first // SPLIT * SPLIT, last, SPLIT):
        acc, top, total = np.zeros(q.shape, f), f(-np.inf), f(0)
        for base in range(split, min(split + SPLIT, last), PAGE):
            seen = slice(max(first, base), min(base + PAGE, last))
            if seen.start >= seen.stop:
                continue
            sums = np.zeros(seen.stop - seen.start, f)
            for d in range(len(q)):
                sums = fused(k[seen, d].astype(f), q[d], sums)
            scores = np.full(PAGE, -np.inf, f)
            sums = sums * f(scale)
            if softcap:
                sums = f(softcap) * (1 - 2 / (exponential(2 * sums / f(softcap)) + 1))
            scores[seen.start - base : seen.stop - base] = sums
            most = max(top, scores.max())
            weights = weight(scores - most)
            lanes = ((weights[:16] + weights[16:32]) + weights[32:48]) + weights[48:]
            for n in (8, 4, 2, 1):
                lanes = lanes[:n] + lanes[n:]
            rescale = f(1) if top == most else weight(np.array([top - most]))[0]
            acc, total, top = acc * rescale, total * rescale + lanes[0], most
            for key in range(seen.start, seen.stop):
                acc = fused(v[key].astype(f), weights[key - base], acc)
        if whole is None:
            whole = acc, top, total
        elif total:
            most = max(top, whole[1])
            a, b = weight(np.array([whole[1] - most, top - most]))
            whole = whole[0] * a + acc * b, most, whole[2] * a + total * b
    return whole[0] * (f(1) / whole[2])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "tokens", "start", "window", "softcap"),
    [
        (3, 1, 64, 9, 250, 0, 0.0),
        (3, 1, 20, 5, 60, 0, 3.0),
        (8, 2, 80, 7, 61, 50, 0.0),
        (1, 1, 40, 20, 500, 300, 9.0),
        (4, 1, 96, 3, 700, 0, 0.0),
    ],
)
def test_attention_is_what_is_written(heads, kv_heads, dim, tokens, start, window, softcap, level):
    if level == "scalar":
        pytest.skip("does not fuse")
    q = random(tokens, heads, dim) * 2
    k, v = (random(start + tokens, kv_heads, dim, seed=s).astype(np.float16) for s in (2, 3))
    how = {"scale": 0.11, "window": window, "softcap": softcap}
    got = attend(q, k, v, start, **how)
    for t in range(tokens):
        for h in range(heads):
            keys, values = (x[: start + t + 1, h * kv_heads // heads] for x in (k, v))
            expected = row_by_definition(q[t, h], keys, values, **how)
            np.testing.assert_array_equal(got[t, h], expected, err_msg=f"query {t}, head {h}")


HEADS = ((2, 2), (3, 1), (8, 2), (8, 1))
SHAPES = [
    (dim, *HEADS[(i + j) % 4], window, 7.0 * ((i + j) % 3 == 0))
    for i, dim in enumerate((64, 80, 96, 128, 256, 21))
    for j, window in enumerate((0, 1, 30, 64, 129))
]


@pytest.mark.parametrize(("dim", "heads", "kv_heads", "window", "softcap"), SHAPES)
def test_a_query_alone_has_the_same_bits(dim, heads, kv_heads, window, softcap, level, threads):
    """In a batch of any size, cut anywhere, and beside other heads."""
    tokens, start = 40, 231
    q = random(tokens, heads, dim)
    k, v = (random(start + tokens, kv_heads, dim, seed=s).astype(np.float16) for s in (2, 3))
    how = {"scale": dim**-0.5, "window": window, "softcap": softcap}
    threads(1)
    alone = np.empty_like(q)
    for t in range(tokens):
        for h in range(heads):
            own = slice(h * kv_heads // heads, h * kv_heads // heads + 1)
            one = attend(q[t : t + 1, h : h + 1].copy(), k[:, own], v[:, own], start + t, **how)
            alone[t, h] = one[0, 0]
    together = attend(q, k, v, start, **how)
    np.testing.assert_array_equal(together, alone)
    for cuts in ((1, 4, 9, 11, 40), (17, 33, 40), (2, 25, 26, 40)):
        at = 0
        for cut in cuts:
            part = attend(q[at:cut].copy(), k[: start + cut], v[: start + cut], start + at, **how)
            np.testing.assert_array_equal(part, alone[at:cut], err_msg=f"{at}:{cut} of {cuts}")
            at = cut
    threads(3)
    np.testing.assert_array_equal(attend(q, k, v, start, **how), alone)


def test_a_long_prompt_has_the_same_bits_with_any_number_of_threads(level, threads):
    """The queries of a unit grow with the prompt and shrink with the threads."""
    q = random(300, 6, 32)
    k, v = (random(700, 2, 32, seed=s).astype(np.float16) for s in (2, 3))
    results = set()
    for count in (1, 2, 7):
        threads(count)
        results.add(attend(q, k, v, 400, scale=0.2, window=0, softcap=0.0).tobytes())
    last = attend(q[-1:].copy(), k, v, 699, scale=0.2, window=0, softcap=0.0)
    assert len(results) == 1
    assert (
        last.tobytes() == np.frombuffer(results.pop(), np.float32).reshape(q.shape)[-1:].tobytes()
    )


@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_keys_and_values_out_of_sight_do_not_count(hidden, level):
    """Not even in the page that other queries of the block see them in."""
    q = random(40, 3, 64)
    k, v = (random(340, 1, 64, seed=s).astype(np.float16) for s in (2, 3))
    how = {"scale": 0.125, "window": 70, "softcap": 0.0}
    expected = attend(q, k, v, 300, **how)
    late = v.copy()
    late[320:] = hidden
    k[:231], v[:231] = hidden, hidden
    np.testing.assert_array_equal(attend(q, k, v, 300, **how), expected)
    np.testing.assert_array_equal(attend(q, k, late, 300, **how)[:20], expected[:20])
