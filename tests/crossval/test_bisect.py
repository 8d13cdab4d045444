"""The place where intermediates part."""

import numpy as np
import pytest
from tiny_models import tiny

from bitnet.crossval.bisect import BOUNDS, bisect
from bitnet.kernels.reference import ReferenceOps
from bitnet.models.load import load_model
from bitnet.runtime.kv_cache import KVCache

IDS = [5, 9, 3, 20, 44]


def steps(names):
    return [(name, np.ones((2, 3))) for name in names]


def test_the_first_step_beyond_the_bound_is_named():
    ours = steps(["embed", "Qcur-0", "l_out-0", "Qcur-1", "result_norm"])
    theirs = dict(ours) | {"Qcur-1": np.full((2, 3), 2.0), "result_norm": np.zeros((2, 3))}
    found = bisect(ours, theirs, names=("a", "b"), bound=0.25)
    assert [step.error for step in found.steps] == [0, 0, 0, 0.5, np.inf]
    assert (found.first.operation, found.first.layer) == ("Qcur", 1)
    assert str(found) == "a and b part at layer 1, Qcur: relative error 5.0e-01, bound 0.25"


def test_the_end_has_no_layer():
    found = bisect(steps(["result_norm"]), {"result_norm": np.zeros(6)}, names=("a", "b"), bound=1)
    assert found.first.layer is None
    assert "part at result_norm" in str(found)


def test_what_only_one_has_or_in_another_size_is_left_out():
    found = bisect(steps(["x-0", "y-0"]), {"y-0": np.ones(5)}, names=("a", "b"), bound=0.1)
    assert found.steps == ()
    assert "0 intermediates in common, expected at least 1" in str(found)
    assert not found.agrees


def test_a_value_that_is_not_a_number_is_beyond_every_bound():
    found = bisect(steps(["x-0"]), {"x-0": np.full(6, np.nan)}, names=("a", "b"), bound=1e9)
    assert found.first.name == "x-0"


def traced(checkpoint, dtype):
    model = load_model(checkpoint, ops=ReferenceOps(dtype=dtype))
    cache = KVCache(model.config, 8)
    return [(name, np.array(values)) for name, values in model.traced(IDS, cache)]


def test_float32_and_float64_do_not_part():
    checkpoint = tiny("llama")
    ours, theirs = traced(checkpoint, np.float32), traced(checkpoint, np.float64)
    found = bisect(ours, dict(theirs), names=("a", "b"), bound=BOUNDS["float"])
    assert found.first is None
    assert len(found.steps) == len(ours) > 20


@pytest.mark.parametrize(
    ("tensor", "first"),
    [
        ("blk.1.attn_q.weight", "Qcur-1"),
        ("blk.0.attn_output.weight", "attn_out-0"),
        ("blk.1.ffn_down.weight", "ffn_out-1"),
        ("output_norm.weight", "result_norm"),
    ],
)
def test_a_damaged_tensor_is_found_where_it_acts(tensor, first):
    good = tiny("llama")
    bad = tiny("llama")
    values = bad.weights[tensor].data.view("<f4")
    values[:] = values[::-1] * -1
    ours, theirs = traced(bad, np.float32), traced(good, np.float32)
    found = bisect(ours, dict(theirs), names=("a", "b"), bound=BOUNDS["float"])
    assert found.first.name == first
