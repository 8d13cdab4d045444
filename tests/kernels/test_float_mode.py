"""Results do not depend on the floating-point mode of the caller, which is restored."""

import ctypes
import ctypes.util
import platform
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from single import compute
from tiny_models import tiny

from bitnet.base import native
from bitnet.kernels.instructions import Gate
from bitnet.kernels.kv_cache import KVCache
from bitnet.kernels.native import NativeOps
from bitnet.kernels.program import Segment
from bitnet.models.load import load_model

pytestmark = [
    pytest.mark.skipif(native.module() is None, reason="the module is not built"),
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64",
        reason="sets the mode as glibc keeps it on x86-64",
    ),
]

# Bits of the control register MXCSR.
FLUSH_TO_ZERO = 0x8000
DENORMALS_ARE_ZERO = 0x0040
TOWARDS_ZERO = 0x6000
MXCSR = 28  # byte offset in glibc's fenv_t, which has 32 bytes
TINY = np.float32(1e-39)  # subnormal


@contextmanager
def mode(bits):
    """The control word of this thread with *bits* set, as other libraries leave it."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    before = ctypes.create_string_buffer(32)
    changed = ctypes.create_string_buffer(32)
    libm.fegetenv(before)
    word = int.from_bytes(before.raw[MXCSR:], "little") | bits
    changed[:] = before.raw[:MXCSR] + word.to_bytes(4, "little")
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(before)


def flushes():
    """True if this thread takes subnormal numbers for zero."""
    return bool(np.multiply(np.array([TINY]), np.float32(1))[0] == 0)


def small_model():
    """A model whose weights and activations are full of subnormal numbers."""
    checkpoint = tiny("llama")
    for weight in checkpoint.weights.values():
        values = weight.data.view("<f4").copy()
        values[::3] *= np.float32(1e-38)
        object.__setattr__(weight, "data", values.view(np.uint8))
    return load_model(checkpoint, ops=NativeOps())


def hidden(model):
    """Bytes of the hidden states of a pass."""
    cache = KVCache(model.config, 64)
    return model.hidden([Segment([5, 9, 33, 2, 17, 40] * 5, cache, "all")])[0].tobytes()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("bits", [FLUSH_TO_ZERO | DENORMALS_ARE_ZERO, TOWARDS_ZERO])
def test_a_pass_gives_the_same_bits_in_any_mode_of_the_caller(bits, count, threads):
    threads(count)
    model = small_model()
    expected = hidden(model)
    with mode(bits):
        found = hidden(model)
    assert found == expected


def test_threads_that_were_started_in_another_mode_compute_in_the_mode_of_the_kernels(threads):
    model = small_model()
    threads(1)
    expected = hidden(model)
    with mode(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO):
        threads(4)  # the next pass starts them, and threads inherit the mode
        assert hidden(model) == expected
    assert hidden(model) == expected


def test_single_operations_keep_subnormal_numbers_in_any_mode():
    ops = NativeOps()
    root = np.sqrt(np.full((1, 64), TINY, dtype=np.float32))  # its square is subnormal
    how = Gate, {"gate": root, "up": np.ones_like(root)}, {"out": 64}
    (expected,) = compute(ops, *how, activation="relu_squared")
    with mode(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO):
        (found,) = compute(ops, *how, activation="relu_squared")
    assert expected.any()  # not flushed to zero
    assert found.tobytes() == expected.tobytes()


def test_the_caller_gets_its_mode_back():
    model = small_model()
    with mode(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO):
        assert flushes()
        hidden(model)
        assert flushes()
    assert not flushes()
