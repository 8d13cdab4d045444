"""The layout that ternary weights get: asked for, measured, or measured before."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_models import in_encoding, tiny

from bitnet.base import native
from bitnet.base.errors import UsageError
from bitnet.kernels import choices
from bitnet.kernels.choices import SMALLEST, conditions, dense_pays, measure_packing
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.models.load import load_model
from bitnet.store.tag import measurement_path, read_measurement, write_measurement

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")


@pytest.fixture(autouse=True)
def _small(tmp_path, monkeypatch):
    """A cache of its own, the best level, and a measurement of milliseconds."""
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "bitnet"))
    monkeypatch.setattr(choices, "PACKED_ROWS", 160)
    monkeypatch.setattr(choices, "POOL_BYTES", 1 << 20)
    before = NATIVE.kernel_level()
    NATIVE.set_kernel_level(NATIVE.kernel_levels()[-1])
    yield
    NATIVE.set_kernel_level(before)


needs_kernel = pytest.mark.skipif(
    NATIVE is None or not NATIVE.has_kernel(NATIVE.kernel_types().index("TERNARY_DENSE")),
    reason="no level here has a kernel for dense ternary weights",
)


def here():
    return conditions(NATIVE)


def remembered():
    return read_measurement("ternary-layout", here())


def test_a_wish_is_followed_without_measuring(monkeypatch):
    for wish, expected in (("dense", True), ("2bit", False)):
        monkeypatch.setenv("BITNET_TERNARY_LAYOUT", wish)
        assert dense_pays(NATIVE, SMALLEST) is expected
    assert remembered() is None
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", "1.6")
    with pytest.raises(UsageError, match="auto, 2bit, dense"):
        dense_pays(NATIVE, SMALLEST)


def test_a_small_model_is_not_worth_measuring():
    assert not dense_pays(NATIVE, SMALLEST - 1)
    assert remembered() is None


def test_a_level_without_a_kernel_for_it_keeps_two_bits():
    NATIVE.set_kernel_level("scalar")
    assert not dense_pays(NATIVE, SMALLEST)
    assert remembered() is None


def test_dense_lines_without_a_kernel_for_them_are_made_with_a_warning(monkeypatch, caplog):
    NATIVE.set_kernel_level("scalar")
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", "dense")
    assert dense_pays(NATIVE, 1)
    assert "BITNET_TERNARY_LAYOUT=dense is slow here: scalar has no kernel" in caplog.text


@needs_kernel
def test_a_kernel_that_failed_its_self_test_is_not_used():
    kind = NATIVE.kernel_types().index("TERNARY_DENSE")
    first = next(
        name
        for name in NATIVE.kernel_levels()
        if NATIVE.set_kernel_level(name) and NATIVE.has_kernel(kind)
    )
    assert NATIVE.kernel_level() == first  # the levels below it have none
    assert NATIVE.plant_wrong_kernel("linear TERNARY_DENSE")
    assert NATIVE.kernel_self_test() == ["linear TERNARY_DENSE"]
    assert not NATIVE.has_kernel(kind)


@needs_kernel
def test_the_first_load_measures_and_the_next_one_remembers(caplog):
    caplog.set_level("INFO", "bitnet.kernels")
    first = dense_pays(NATIVE, SMALLEST)
    found = remembered()
    assert found.keys() == {"two_bit", "dense"}
    assert first is (found["dense"] >= choices.ADVANTAGE * found["two_bit"])
    assert dense_pays(NATIVE, SMALLEST) is first
    assert remembered() == found
    assert caplog.messages[0] == caplog.messages[1]
    assert caplog.messages[0].startswith("ternary weights in memory: ")


@needs_kernel
@pytest.mark.parametrize(("gain", "expected"), [(1.04, False), (1.06, True), (0.5, False)])
def test_a_remembered_answer_decides_with_a_margin(gain, expected):
    write_measurement("ternary-layout", here(), {"two_bit": 1e11, "dense": gain * 1e11})
    assert dense_pays(NATIVE, SMALLEST) is expected


@needs_kernel
@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["conditions"].update(processor="another"),
        lambda content: content["found"].pop("dense"),
        lambda content: content.clear(),
    ],
)
def test_an_answer_of_another_machine_or_a_damaged_one_is_measured_again(change):
    impossible = {"two_bit": 1.0, "dense": 1e30}
    write_measurement("ternary-layout", here(), impossible)
    path = measurement_path("ternary-layout", here())
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    dense_pays(NATIVE, SMALLEST)
    assert remembered() != impossible


@needs_kernel
def test_each_number_of_threads_and_level_has_an_answer_of_its_own(threads):
    paths = set()
    for level in NATIVE.kernel_levels():
        NATIVE.set_kernel_level(level)
        for count in (1, 2):
            threads(count)
            paths.add(measurement_path("ternary-layout", here()))
    assert len(paths) == 2 * len(NATIVE.kernel_levels())


@needs_kernel
def test_without_a_cache_it_is_measured_every_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BITNET_CACHE_DIR", str(tmp_path / "file" / "bitnet"))
    assert isinstance(dense_pays(NATIVE, SMALLEST), bool)
    assert remembered() is None


def test_a_measurement_is_two_positive_rates():
    found = measure_packing(NATIVE)
    assert found.keys() == {"two_bit", "dense"}
    assert min(found.values()) > 0


def test_a_moment_when_something_else_has_the_memory_does_not_count(monkeypatch):
    took = [[9.0, 9.0], [1.0, 2.0], [1.0, 2.0], [9.0, 9.0], [1.0, 2.0]]  # seconds of both kinds
    ends = np.cumsum(took)
    spans = np.stack([np.concatenate([[0.0], ends[:-1]]), ends], axis=1)
    clock = iter([0.0, *spans.reshape(-1), ends[-1]])
    monkeypatch.setattr(choices, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    weights = choices.PACKED_ROWS * choices.PACKED_COLUMNS
    assert measure_packing(NATIVE) == {"two_bit": weights, "dense": weights / 2}


@pytest.mark.parametrize("encoding", ["I2_S", "TQ2_0"])
def test_a_model_gives_the_same_bits_in_both_layouts(encoding, monkeypatch):
    checkpoint = in_encoding(tiny("bitnet-b1.58"), encoding)
    found = []
    for layout in ("2bit", "dense"):
        monkeypatch.setenv("BITNET_TERNARY_LAYOUT", layout)
        ops = NativeOps()
        before = ops.counters()
        model = load_model(checkpoint, ops=ops)
        cache = KVCache(model.config, 32)
        found.append(model.forward([5, 9, 3, 44, 12], cache, all_positions=True))
        found[-1] = np.concatenate([found[-1], model.forward([7], cache, all_positions=True)])
        ran = {name for name, count in ops.counters().items() if count > before.get(name, 0)}
        assert any("/TERNARY_DENSE/" in name for name in ran) is (layout == "dense")
    assert found[0].tobytes() == found[1].tobytes()


@needs_kernel
def test_a_large_model_is_packed_as_the_answer_says(monkeypatch):
    checkpoint = in_encoding(tiny("bitnet-b1.58"), "I2_S")
    monkeypatch.setattr(choices, "SMALLEST", 1)
    for gain, expected in ((2.0, "TERNARY_DENSE"), (0.5, "TERNARY")):
        ops = NativeOps()
        write_measurement("ternary-layout", here(), {"two_bit": 1.0, "dense": gain})
        ops.expect(checkpoint.weights.values())
        matrix = ops.prepare(checkpoint.weights["blk.0.attn_q.weight"])
        assert NATIVE.kernel_types()[matrix.kind] == expected
