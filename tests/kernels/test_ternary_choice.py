"""The layout of ternary weights: requested, or chosen by model size and instruction set."""

import sys
from pathlib import Path

import numpy as np
import pytest
from kernel_levels import at_level, kernel_levels
from tiny_models import in_encoding, tiny

from bitnet.base import native
from bitnet.base.errors import UsageError
from bitnet.kernels import native as native_ops
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import SMALLEST, NativeOps, packs_dense
from bitnet.models.load import load_model

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")


@pytest.fixture(autouse=True)
def _best_level():
    with at_level(kernel_levels()[-1]):
        yield


needs_kernel = pytest.mark.skipif(
    NATIVE is None or not NATIVE.has_kernel(NATIVE.kernel_types().index("TERNARY_DENSE")),
    reason="no level here has a kernel for dense ternary weights",
)


def test_the_layout_of_the_environment_is_used(monkeypatch):
    for layout, expected in (("dense", True), ("2bit", False)):
        monkeypatch.setenv("BITNET_TERNARY_LAYOUT", layout)
        assert packs_dense(NATIVE, SMALLEST) is expected
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", "1.6")
    with pytest.raises(UsageError, match="auto, 2bit, dense"):
        packs_dense(NATIVE, SMALLEST)


def test_a_model_below_the_smallest_size_for_dense_lines_keeps_two_bits():
    assert not packs_dense(NATIVE, SMALLEST - 1)


def test_a_level_without_a_kernel_for_dense_lines_keeps_two_bits():
    NATIVE.set_kernel_level("scalar")
    assert not packs_dense(NATIVE, SMALLEST)


def test_requested_dense_lines_without_a_kernel_are_packed_with_a_warning(monkeypatch, caplog):
    NATIVE.set_kernel_level("scalar")
    monkeypatch.setenv("BITNET_TERNARY_LAYOUT", "dense")
    assert packs_dense(NATIVE, 1)
    assert "BITNET_TERNARY_LAYOUT=dense is slow here: scalar has no kernel" in caplog.text


@pytest.mark.skipif(
    sys.platform != "linux", reason="the system does not list the processor's flags"
)
def test_dense_lines_are_chosen_on_processors_with_avx512_vbmi(level):
    flags = Path("/proc/cpuinfo").read_text().split()
    # Kernels for dense lines look digits up with instructions of AVX-512 VBMI.
    has_lookup = level in ("avx512_vnni", "amx") and "avx512vbmi" in flags
    assert packs_dense(NATIVE, SMALLEST) is has_lookup


@pytest.mark.parametrize("encoding", ["I2_S", "TQ2_0"])
def test_a_model_gives_the_same_bits_in_both_layouts(encoding, monkeypatch):
    checkpoint = in_encoding(tiny("bitnet-b1.58"), encoding)
    logits = []
    for layout in ("2bit", "dense"):
        monkeypatch.setenv("BITNET_TERNARY_LAYOUT", layout)
        ops = NativeOps()
        before = ops.counters()
        model = load_model(checkpoint, ops=ops)
        cache = KVCache(model.config, 32)
        logits.append(model.forward([5, 9, 3, 44, 12], cache, all_positions=True))
        logits[-1] = np.concatenate([logits[-1], model.forward([7], cache, all_positions=True)])
        kernels_run = {
            name for name, count in ops.counters().items() if count > before.get(name, 0)
        }
        assert any("/TERNARY_DENSE/" in name for name in kernels_run) is (layout == "dense")
    assert logits[0].tobytes() == logits[1].tobytes()


@needs_kernel
def test_only_a_model_above_the_smallest_size_is_packed_in_dense_lines(monkeypatch):
    checkpoint = in_encoding(tiny("bitnet-b1.58"), "I2_S")
    for smallest, dense in ((1, NATIVE.dense_pays()), (1 << 40, False)):
        monkeypatch.setattr(native_ops, "SMALLEST", smallest)
        ops = NativeOps()
        ops.expect(checkpoint.weights.values())
        matrix = ops.prepare(checkpoint.weights["blk.0.attn_q.weight"])
        assert NATIVE.kernel_types()[matrix.kind] == ("TERNARY_DENSE" if dense else "TERNARY")
