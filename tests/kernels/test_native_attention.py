"""Attention of the compiled module: near float64, and with the bits of its definition."""

import numpy as np
import pytest
from arithmetic import exponential, in_lanes, power, power_or_zero
from attention_rows import check_rows, random, with_shapes, with_sinks
from kernel_levels import each_level

from bitnet.base import native
from bitnet.families.blocks import MAX_SCALE
from bitnet.kernels import kv_codes

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")

# Bound on the normalized squared error: queries and weights are rounded to 16 bits. The keys and
# values of the comparison are rounded as well.
NMSE = 1e-7
PAGE = kv_codes.PAGE
SPLIT = 4 * PAGE  # keys of a split: partial results of splits are merged in order


def nmse(got, expected):
    """Squared error relative to the squares of *expected*."""
    return np.sum((got - expected) ** 2) / np.sum(expected**2)


def exact_attention(q, k, v, start, *, scale, window, softcap, sinks=None):
    """Attention in float64 over the keys and values as their codes hold them, ``(T, H, D)``."""
    t, heads, _ = q.shape
    group = heads // k.shape[1]
    k, v = decoded(kv_codes.encode_keys(k)), decoded(kv_codes.encode_values(v))
    k, v = (np.repeat(a, group, axis=1) for a in (k, v))
    scores = np.einsum("thd,shd->hts", q.astype(np.float64), k[: start + t]) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = np.arange(start, start + t)[:, None] - np.arange(start + t)
    hidden = (distance < 0) | (distance >= window) if window else distance < 0
    scores = np.where(hidden, -np.inf, scores)
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, column], axis=2)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    weights = weights[..., : start + t]
    return np.einsum("hts,shd->thd", weights, v[: start + t])


def paged(k, v):
    """*k* and *v*, ``(positions, kv_heads, dim)``, as pages, with NaN at unused positions."""
    positions, heads, dim = k.shape
    shape = (-(-positions // 64), 2, heads, kv_codes.page_words(dim))
    pages = np.full(shape, np.nan, dtype=np.float32).view(np.int16)[..., : shape[3]].copy()
    for number, page in enumerate(pages):
        held = slice(64 * number, min(64 * number + 64, positions))
        kv_codes.store(page, slice(0, held.stop - held.start), k[held], v[held])
    return pages


def decoded(vectors):
    """Keys or values as their codes hold them, in float64."""
    codes, steps = vectors
    return codes * steps[..., None].astype(np.float64)


def attend(q, k, v, start, **how):
    """Attention of the compiled module; the first query is at position *start*."""
    return attend_paged(q, paged(k, v), start, **how)


def attend_paged(q, pages, start, *, scale, window, softcap, sinks=None):
    """Attention of the compiled module over the *pages* of a cache, ``(T, H, D)``."""
    out = np.full_like(q, np.nan)
    NATIVE.attention(q, pages, start, scale, window, softcap, out, sinks)
    return out


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("window", [0, 1, 40])
@pytest.mark.parametrize(
    ("tokens", "start"), [(1, 0), (1, 200), (3, 62), (130, 0), (35, 100), (1, 600), (20, 510)]
)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 40), (9, 3, 64), (4, 1, 256)])
def test_attention_is_near_that_of_float64(
    heads, kv_heads, dim, tokens, start, window, softcap, level
):
    q = random(tokens, heads, dim)
    k = random(start + tokens + 7, kv_heads, dim, seed=2)
    v = random(start + tokens + 7, kv_heads, dim, seed=3)
    how = {"scale": dim**-0.5, "window": window, "softcap": softcap}
    got = attend(q, k, v, start, **how)
    assert nmse(got, exact_attention(q, k, v, start, **how)) < NMSE


@pytest.mark.parametrize("size", [-300.0, -2.0, 2.0, 300.0])
@pytest.mark.parametrize(("tokens", "start", "window"), [(1, 600, 0), (3, 62, 40), (130, 0, 0)])
def test_a_sink_takes_its_share_of_the_weights(tokens, start, window, size, level):
    """Each head has its own sink, which takes none, some or all of the weight."""
    q = random(tokens, 6, 64)
    k, v = (random(start + tokens, 2, 64, seed=s) for s in (2, 3))
    sinks = np.linspace(size, size + 3, 6, dtype=np.float32)
    how = {"scale": 0.2, "window": window, "softcap": 0.0}
    got, expected = (run(q, k, v, start, **how, sinks=sinks) for run in (attend, exact_attention))
    without = attend(q, k, v, start, **how)
    assert np.sum((got - expected) ** 2) / np.sum(without**2) < NMSE
    if size == -300.0:
        np.testing.assert_array_equal(got, without)
    if size == 300.0:
        assert not got.any()


def test_another_number_of_sinks_than_heads_is_refused():
    q = random(1, 2, 16)
    k = random(1, 1, 16)
    with pytest.raises(ValueError, match="one per head"):
        attend(q, k, k, 0, scale=1.0, window=0, softcap=0.0, sinks=random(3))


def test_attention_of_huge_scores_stays_finite(level):
    q = random(3, 2, 16) * 1000
    k = random(70, 2, 16, seed=2)
    v = np.ones_like(k)
    got = attend(q, k, v, 60, scale=1.0, window=0, softcap=0.0)
    np.testing.assert_allclose(got, 1.0, rtol=2e-4)


@pytest.mark.parametrize("low", [-100.0, -3e4, -1e17])
def test_a_key_whose_score_is_far_below_the_best_has_no_weight(low, level):
    q = np.ones((1, 1, 16), dtype=np.float32)
    k = np.zeros((70, 1, 16), dtype=np.float32)
    v = np.zeros((70, 1, 16), dtype=np.float32)
    k[[3, 66], 0, 0] = low
    v[[3, 66]] = 65504
    got = attend(q, k, v, 69, scale=1.0, window=0, softcap=0.0)
    np.testing.assert_array_equal(got, np.zeros_like(q))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("which", ["keys", "values"])
def test_a_key_or_value_without_codes_gives_nan_to_the_queries_that_see_it(which, bad, level):
    """Other key heads, and queries at earlier positions, are not affected."""
    q, (k, v) = random(8, 4, 21), (random(70, 2, 21, seed=s) for s in (2, 3))
    {"keys": k, "values": v}[which][66, 0, 5] = bad
    got = attend(q, k, v, 62, scale=1.0, window=0, softcap=9.0)
    assert np.isfinite(got[:, 2:]).all()
    assert np.isfinite(got[:4]).all()
    assert np.isnan(got[4:, :2]).all()


@pytest.mark.parametrize("dim", [1, 7, 64, 100])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_possible_scores_are_finite(sign, dim, level):
    """So only positions outside of the window have the lowest float as a score."""
    longest = np.full(dim, 1e18 / np.sqrt(dim) * (1 - 1e-6), dtype=np.float32)
    assert np.isfinite(kv_codes.encode_keys(longest).steps)
    q = longest[None, None]
    k = np.tile(longest, (70, 1, 1))
    k[3] = -longest
    v = np.ones((70, 1, dim), dtype=np.float32)
    how = {"scale": sign * MAX_SCALE, "window": 0, "softcap": 0.0}
    np.testing.assert_allclose(attend(q, k, v, 69, **how), 1.0, rtol=3e-4)
    v[[3 if sign > 0 else 5], 0, 0] = np.nan  # the lowest score
    assert np.isnan(attend(q, k, v, 69, **how)).all()


@pytest.mark.parametrize("best", [9, 100])
def test_a_value_that_is_nan_gives_nan_however_small_its_weight(best, level):
    """The best key is in its page, or in another one."""
    q = np.ones((1, 1, 16), dtype=np.float32)
    k = np.zeros((128, 1, 16), dtype=np.float32)
    v = np.ones((128, 1, 16), dtype=np.float32)
    k[best, 0, 0] = 200.0  # 2^288 times the weight of the others
    v[5, 0, 3] = np.nan
    assert np.isnan(attend(q, k, v, 127, scale=1.0, window=0, softcap=0.0)).all()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_keys_and_values_of_any_magnitude_have_the_same_precision(scale, level):
    """A step has the magnitude of its vector; a float16 would be zero or infinite."""
    q, (k, v) = random(3, 2, 64), (random(70, 2, 64, seed=s) for s in (2, 3))
    expected = attend(q, k, v, 60, scale=0.125, window=0, softcap=0.0)
    how = {"window": 0, "softcap": 0.0}
    found = attend(q, k * np.float32(scale), v, 60, scale=0.125 / scale, **how)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    found = attend(q, k, v * np.float32(scale), 60, scale=0.125, **how)
    np.testing.assert_allclose(found / scale, expected, rtol=1e-3, atol=1e-5)


def test_weights_are_not_lost_in_a_page_where_all_are_small(level):
    """A page's weights are shares of its own sum, however small that is beside another page's."""
    q = np.ones((1, 1, 16), dtype=np.float32)
    k = np.zeros((128, 1, 16), dtype=np.float32)
    k[:64, 0, 0] = 14.0  # 1.2 million times the weight of the second page
    v = np.zeros((128, 1, 16), dtype=np.float32)
    v[64:] = 1.0
    got = attend(q, k, v, 127, scale=1.0, window=0, softcap=0.0)
    np.testing.assert_allclose(got, 1 / (1 + np.exp(14.0)), rtol=1e-3)


def test_a_query_that_is_not_finite_gives_nan_to_its_head_alone(level):
    q = np.ones((1, 2, 16), dtype=np.float32)
    q[0, 1, 5] = np.nan
    k, v = (random(70, 2, 16, seed=s) for s in (2, 3))
    got = attend(q, k, v, 69, scale=1.0, window=0, softcap=9.0)
    assert np.isfinite(got[0, 0]).all()
    assert np.isnan(got[0, 1]).all()


def test_attention_gives_the_same_bits_on_every_instruction_set():
    q = random(40, 6, 84)
    how = {"scale": 0.125, "window": 90, "softcap": 20.0}
    k, v = (random(640, 2, 84, seed=s) for s in (2, 3))
    results = {attend(q, k, v, 600, **how).tobytes() for _level in each_level()}
    assert len(results) == 1


def test_attention_of_a_query_does_not_depend_on_the_batch_or_the_threads(level, threads):
    q = random(40, 6, 64)
    how = {"scale": 0.125, "window": 90, "softcap": 0.0}
    k, v = (random(140, 2, 64, seed=s) for s in (2, 3))
    results = []
    for count in (1, 3):
        threads(count)
        results.append(attend(q, k, v, 100, **how))
    np.testing.assert_array_equal(results[0], results[1])
    alone = [attend(q[t : t + 1], k, v, 100 + t, **how) for t in range(40)]
    np.testing.assert_array_equal(np.concatenate(alone), results[0])


def test_attention_refuses_a_cache_that_is_too_short():
    q = random(2, 2, 16)
    k = np.zeros((64, 1, 16), dtype=np.float32)
    with pytest.raises(ValueError, match="every position"):
        attend(q, k, k, 63, scale=1.0, window=0, softcap=0.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": (0, 2, 16)}, "no queries"),
        ({"shape": (1, 0, 16)}, "no queries"),
        ({"shape": (1, 2, 0)}, "no queries"),
        ({"shape": (1, 3, 16)}, "pages must be"),
        ({"shape": (1, 2, 18)}, "pages must be"),
        ({"start": -1}, "every position"),
        ({"start": 64}, "every position"),
        ({"start": 2**63 - 1}, "every position"),
        ({"start": 2**63 - 1, "window": 5}, "every position"),
        ({"window": -1}, "every position"),
        ({"scale": float("nan")}, "scale or softcap"),
        ({"softcap": float("nan")}, "scale or softcap"),
        ({"softcap": float("inf")}, "scale or softcap"),
        ({"softcap": -1.0}, "scale or softcap"),
    ],
)
def test_impossible_arguments_of_attention_are_refused(change, said):
    arguments = {
        "shape": (1, 2, 16),
        "start": 0,
        "scale": 1.0,
        "window": 0,
        "softcap": 0.0,
    } | change
    shape, *how = arguments.values()
    q = np.ones(shape, dtype=np.float32)
    dim = shape[2] - shape[2] % 16  # of the pages, so that other widths of a query do not fit
    pages = np.zeros((1, 2, 2, kv_codes.page_words(dim)), dtype=np.int16)
    with pytest.raises(ValueError, match=said):
        NATIVE.attention(q, pages, *how, np.empty_like(q))


def row_by_definition(q, k, v, *, scale, window, softcap, sink=None):
    """One query of one head over the keys up to its own, in the float32 operations of the kernels.

    The constants are those of ``native/kernels/isa/kernels.hpp``: 1.44269504 is log2(e), 131,000
    bounds the sum of the codes of a page's weights, and weights below 2^-100 are zero. Only in the
    sum of a page's weights, each of them, and each position that is not seen, counts as 2^-100,
    which is too small to change the sum.
    """
    f = np.float32
    last = len(k)
    first = max(0, last - window) if window else 0
    query, keys = (kv_codes.encode_keys(x) for x in (q, k))
    values = kv_codes.encode_values(v)
    step = query.steps * (f(scale) if softcap else f(scale) * f(1.44269504))
    products = keys.codes.astype(np.int64) @ query.codes.astype(np.int64)
    assert abs(products).max() < 2**31
    whole = None
    for split in range(first // SPLIT * SPLIT, last, SPLIT):
        acc = np.zeros(q.shape, f)
        top = f(-np.inf)
        total = f(0)
        for base in range(split, min(split + SPLIT, last), PAGE):
            seen = slice(max(first, base), min(base + PAGE, last))
            if seen.start >= seen.stop:
                continue
            here = slice(seen.start - base, seen.stop - base)
            scores, weights, shares = (np.full(PAGE, x, f) for x in (-np.inf, 2.0**-100, 0))
            seen_scores = products[seen].astype(f) * step * keys.steps[seen]
            if softcap:
                capped = 1 - 2 / (exponential(2 * seen_scores / f(softcap)) + 1)
                seen_scores = f(softcap) * capped * f(1.44269504)
            scores[here] = seen_scores
            page_top = scores.max()
            weights[here] = power(seen_scores - page_top)
            has_weight = scores[here] - page_top >= -100
            shares[here] = np.where(has_weight, weights[here], f(0)) * values.steps[seen]
            unit = max(in_lanes(shares) / f(131000), shares.max() / f(32767))
            codes = np.rint(shares * (f(1) / unit if unit > f(1e-30) else f(0))).astype(np.int64)
            assert codes.max() < 2**15
            most = max(top, page_top)
            before, now = power_or_zero(np.array([top - most, page_top - most]))
            sums = codes[here] @ values.codes[seen].astype(np.int64)
            assert abs(sums).max() < 2**31
            acc = acc * before + sums.astype(f) * (unit * now)
            total, top = total * before + in_lanes(weights) * now, most
        if whole is None:
            whole = acc, top, total
        elif total:
            most = max(top, whole[1])
            a, b = power_or_zero(np.array([whole[1] - most, top - most]))
            whole = whole[0] * a + acc * b, most, whole[2] * a + total * b
    if sink is None:
        return whole[0] * (f(1) / whole[2])
    sink *= f(1.44269504)
    most = max(sink, whole[1])
    before, now = power_or_zero(np.array([whole[1] - most, sink - most]))
    return whole[0] * (before / (whole[2] * before + now))


@with_sinks
@with_shapes
def test_attention_has_the_bits_of_its_definition(
    heads, kv_heads, dim, tokens, start, window, softcap, sinks, level
):
    q = random(tokens, heads, dim) * 2
    k = random(start + tokens, kv_heads, dim, seed=2)
    v = random(start + tokens, kv_heads, dim, seed=3)
    how = {"scale": 0.11, "window": window, "softcap": softcap}
    check_rows(attend, row_by_definition, q, k, v, start, sinks=sinks, **how)


HEADS = ((2, 2), (3, 1), (8, 2), (8, 1))  # of queries, and of keys
# Every width of a head with every window; heads and softcaps alternate.
SHAPES = [
    (dim, *HEADS[(i + j) % 4], window, 7.0 * ((i + j) % 3 == 0))
    for i, dim in enumerate((64, 80, 96, 128, 256, 21))
    for j, window in enumerate((0, 1, 30, 64, 129))
]


@pytest.mark.parametrize(("dim", "heads", "kv_heads", "window", "softcap"), SHAPES)
def test_a_query_has_the_same_bits_alone_and_in_any_batch(
    dim, heads, kv_heads, window, softcap, level, threads
):
    """In a batch of any size, cut anywhere, and beside other heads."""
    tokens = 40
    start = 231
    q = random(tokens, heads, dim)
    k, v = (random(start + tokens, kv_heads, dim, seed=s) for s in (2, 3))
    how = {"scale": dim**-0.5, "window": window, "softcap": softcap}
    sinks = random(heads, seed=4)
    threads(1)
    alone = np.empty_like(q)
    pages = [paged(k[:, [n]], v[:, [n]]) for n in range(kv_heads)]
    for t in range(tokens):
        for h in range(heads):
            query = q[t : t + 1, h : h + 1].copy()
            how["sinks"] = sinks[h : h + 1]
            own = pages[h * kv_heads // heads]
            alone[t, h] = attend_paged(query, own, start + t, **how)[0, 0]
    how["sinks"] = sinks
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
    k, v = (random(700, 2, 32, seed=s) for s in (2, 3))
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
def test_keys_and_values_outside_of_the_window_do_not_change_a_bit(hidden, level):
    """Not even in a page of which other queries see these positions."""
    q = random(40, 3, 64)
    k, v = (random(340, 1, 64, seed=s) for s in (2, 3))
    how = {"scale": 0.125, "window": 70, "softcap": 0.0}
    expected = attend(q, k, v, 300, **how)
    late = v.copy()
    late[320:] = hidden
    k[:231] = hidden
    v[:231] = hidden
    np.testing.assert_array_equal(attend(q, k, v, 300, **how), expected)
    np.testing.assert_array_equal(attend(q, k, late, 300, **how)[:20], expected[:20])
