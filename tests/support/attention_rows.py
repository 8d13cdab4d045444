"""Attention of the compiled module, compared row by row with its definition."""

import numpy as np
import pytest


def random(*shape, seed=1):
    """Normal numbers of *shape*, in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


#: Cases for :func:`check_rows`.
with_sinks = pytest.mark.parametrize("sinks", [None, random(8, seed=4)], ids=["", "sinks"])
with_shapes = pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "tokens", "start", "window", "softcap"),
    [
        (3, 1, 64, 9, 250, 0, 0.0),
        (3, 1, 20, 5, 60, 0, 3.0),
        (8, 2, 80, 7, 61, 50, 0.0),
        (1, 1, 40, 20, 500, 300, 9.0),
        (4, 1, 96, 3, 700, 0, 0.0),
    ],
)


def check_rows(attend, row_by_definition, q, k, v, start, *, sinks, **how):
    """Assert that every row of *attend* has the bits that *row_by_definition* computes.

    *q* is ``(tokens, heads, dim)``, *k* and *v* are ``(start + tokens, kv_heads, dim)``.
    """
    tokens, heads, _ = q.shape
    kv_heads = k.shape[1]
    own_sinks = None if sinks is None else sinks[:heads].copy()
    rows = attend(q, k, v, start, **how, sinks=own_sinks)
    for t in range(tokens):
        for h in range(heads):
            group = h * kv_heads // heads
            keys = k[: start + t + 1, group]
            values = v[: start + t + 1, group]
            sink = None if sinks is None else sinks[h]
            expected = row_by_definition(q[t, h], keys, values, **how, sink=sink)
            np.testing.assert_array_equal(rows[t, h], expected, err_msg=f"query {t}, head {h}")
