"""Kernels for prefill of two levels: the faster one is used, and results do not depend on it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from bitnet.base import native
from bitnet.kernels import choices
from bitnet.kernels import native as native_ops
from bitnet.kernels.choices import choose_prefill, conditions, measure_prefill
from bitnet.kernels.kv_codes import pages_of
from bitnet.store.tag import read_measurement, write_measurement

NATIVE = native.module()
LEVELS = NATIVE.kernel_levels() if NATIVE else []

pytestmark = pytest.mark.skipif(len(LEVELS) < 2, reason="no two levels of kernels are here")


@pytest.fixture(autouse=True)
def _rivals(tmp_path, monkeypatch):
    """The best level here competes with the next one; small matrices, a cache of its own."""
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "bitnet"))
    monkeypatch.setattr(choices, "RIVALS", {LEVELS[-1]: LEVELS[-2]})
    monkeypatch.setattr(choices, "PREFILL_ROWS", 16)
    before = NATIVE.kernel_level()
    NATIVE.set_kernel_level(LEVELS[-1])
    yield
    NATIVE.set_kernel_level(before)


def users(name):
    """Level whose kernel multiplies 20 tokens with a matrix of *name*, and the result."""
    kind = NATIVE.kernel_types().index(name)
    x = np.random.default_rng(3).standard_normal((20, 1280)).astype(np.float32)
    weight = np.full(16 * NATIVE.row_bytes(kind, 1280), 0x11, dtype=np.uint8)
    out = np.empty((20, 16), dtype=np.float32)
    before = NATIVE.kernel_counters()
    NATIVE.linear(kind, weight, 16, 1280, 1.0, x, out)
    after = NATIVE.kernel_counters()
    (changed,) = (key for key, calls in after.items() if calls != before.get(key, 0))
    return changed.removeprefix(f"linear/{name}/").removesuffix("/prefill"), out


def test_encodings_that_the_rival_is_faster_with_are_left_to_it():
    own, expected = users("Q8_0_R16")
    assert own == LEVELS[-1]
    write_measurement("prefill-kernels", conditions(NATIVE), {"Q8_0_R16": 0.9, "Q4_0_R16": 1.1})
    assert choose_prefill(NATIVE)
    chosen, result = users("Q8_0_R16")
    assert chosen == LEVELS[-2]
    np.testing.assert_array_equal(result, expected)
    assert users("Q4_0_R16")[0] == LEVELS[-1]


def test_it_is_measured_once(monkeypatch):
    monkeypatch.setattr(choices, "measure_prefill", lambda module, rival: {"Q8_0_R16": 0.5})
    choose_prefill(NATIVE)
    NATIVE.set_kernel_level(LEVELS[-1])
    monkeypatch.delattr(choices, "measure_prefill")
    choose_prefill(NATIVE)
    assert users("Q8_0_R16")[0] == LEVELS[-2]


def test_a_level_without_a_rival_keeps_its_kernels(monkeypatch):
    monkeypatch.setattr(choices, "RIVALS", {"another": "scalar"})
    assert not choose_prefill(NATIVE)
    assert read_measurement("prefill-kernels", conditions(NATIVE)) is None


def test_a_measurement_is_of_encodings_that_differ_and_changes_nothing():
    found = measure_prefill(NATIVE, LEVELS[-2])
    assert "Q8_0_R16" in found
    assert not {"Q8_0", "F32_R16"} & found.keys()
    assert all(gain > 0 for gain in found.values())
    assert found.pop("attention", 1.0) > 0
    assert not NATIVE.take_attention(LEVELS[-1])
    assert {users(name)[0] for name in found} == {LEVELS[-1]}


def test_attention_is_left_to_the_rival_that_is_faster_with_it():
    keys, values, q = np.random.default_rng(5).standard_normal((3, 1, 100, 72)).astype(np.float32)
    pages, q = pages_of(keys, values), q.reshape(50, 2, 72)
    own, chosen = np.empty_like(q), np.empty_like(q)
    NATIVE.attention(q, pages, 50, 0.1, 0, 0.0, own)
    if not NATIVE.take_attention(LEVELS[-2]):
        pytest.skip("both levels attend alike")
    assert NATIVE.take_attention(LEVELS[-1])
    write_measurement("prefill-kernels", conditions(NATIVE), {"attention": 0.9})
    choose_prefill(NATIVE)
    assert not NATIVE.take_attention(LEVELS[-2])
    NATIVE.attention(q, pages, 50, 0.1, 0, 0.0, chosen)
    np.testing.assert_array_equal(chosen, own)
    assert NATIVE.take_attention(LEVELS[-1])


def test_the_gain_is_that_of_the_shortest_products(monkeypatch):
    rival, own = itertools.cycle((4.0, 2.0, 8.0)), itertools.cycle((3.0, 1.0, 1.0))
    durations = (next(one) for one in itertools.cycle((rival, own)))
    clock = itertools.accumulate(next(durations) if i % 2 else 0.0 for i in itertools.count())
    monkeypatch.setattr(choices, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert set(measure_prefill(NATIVE, LEVELS[-2]).values()) == {2.0}


def test_a_kernel_that_failed_its_self_test_is_not_used_again():
    if len(LEVELS) < 3:
        pytest.skip("the level below the best one has none below it")
    kind = NATIVE.kernel_types().index("Q8_0_R16")
    NATIVE.set_kernel_level(LEVELS[-2])
    NATIVE.plant_wrong_kernel("linear Q8_0_R16")
    assert not NATIVE.take_prefill(kind, LEVELS[-1])
    assert NATIVE.kernel_self_test() == ["linear Q8_0_R16"]
    replaced, _ = users("Q8_0_R16")
    assert not NATIVE.take_prefill(kind, LEVELS[-1])
    assert users("Q8_0_R16")[0] == replaced


def test_what_is_taken_from_the_rival_is_tested_too(monkeypatch, caplog):
    wrong = "linear Q8_0_R16"
    monkeypatch.setattr(
        native_ops, "choose_prefill", lambda module: module.plant_wrong_kernel(f"{wrong} prefill")
    )
    native_ops._choose_prefill.__wrapped__(NATIVE)
    assert f"are not used (slower): {wrong}" in caplog.text
    assert NATIVE.kernel_self_test() == []


def test_no_other_level_multiplies_floats():
    kind = NATIVE.kernel_types().index("F32_R16")
    assert not NATIVE.take_prefill(kind, "scalar")
    assert not NATIVE.take_prefill(NATIVE.kernel_types().index("Q8_0_R16"), "no level")
    with pytest.raises(ValueError, match="unknown weight type"):
        NATIVE.take_prefill(999, "scalar")
