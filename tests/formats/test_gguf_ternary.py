"""Counts of the ternary codes in a GGUF file's tensors."""

import numpy as np
import pytest
from builders import Tensor, f32, i2_s, write_gguf
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from bitnet.formats.gguf import GGUF
from bitnet.formats.gguf_audit import SAMPLE_BYTES, code_counts


def _counts(path, tensors, **options):
    """Counts of each ternary one of *tensors*, written to a file in the folder *path*."""
    with GGUF.open(write_gguf(path / "m.gguf", {}, tensors)) as gguf:
        return list(code_counts(gguf, **options))


def test_i2_s_codes_and_scale_are_counted_by_hand(tmp_path):
    codes = [0] * 10 + [1] * 100 + [2] * 140 + [3] * 6  # -1, 0, 1, and a code without meaning
    counts = _counts(tmp_path, [f32("norm", (4,)), i2_s("w", (2, 128), codes, scale=0.25)])
    assert len(counts) == 1
    tensor = counts[0]
    assert (tensor.name, tensor.minus, tensor.zero, tensor.plus, tensor.invalid) == (
        "w",
        10,
        100,
        140,
        6,
    )
    assert (tensor.scale, tensor.complete, tensor.total) == (0.25, True, 256)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.TQ1_0, GGMLQuantizationType.TQ2_0])
def test_tq_codes_are_those_gguf_py_packed(tmp_path, kind):
    weights = np.random.default_rng(0).choice([-1, 0, 1], (3, 512), p=[0.5, 0.3, 0.2])
    data = quantize(weights.astype(np.float32), kind).tobytes()
    (counts,) = _counts(tmp_path, [Tensor("w", (3, 512), kind.value, data)])
    assert [counts.minus, counts.zero, counts.plus] == [(weights == v).sum() for v in (-1, 0, 1)]
    assert counts.invalid == 0
    assert counts.scale is None  # these types have one for each block


def test_iq2_bn_rows_have_their_scale_in_front(tmp_path):
    # A scale of four bytes, whose codes would all be invalid; each byte of codes has 1, 0, -1, -1.
    row = b"\xff" * 4 + bytes([0b10_01_00_00] * 32)
    (counts,) = _counts(tmp_path, [Tensor("w", (2, 128), 135, row * 2)])
    assert (counts.minus, counts.zero, counts.plus, counts.invalid) == (128, 64, 64, 0)
    # IQ2_BN_R4 (335) has the scales of four rows in front.
    block = b"\xff" * 16 + bytes([0b10_01_00_00] * 64)
    (counts,) = _counts(tmp_path, [Tensor("w", (4, 64), 335, block)])
    assert (counts.minus, counts.zero, counts.plus, counts.invalid) == (128, 64, 64, 0)


def test_large_tensors_are_sampled_unless_all_is_requested(tmp_path):
    n = 4 * SAMPLE_BYTES + 128  # weights; a byte has four of them
    # Every code is 2, a weight of 1, in I2_S (36).
    tensor = Tensor("w", (n // 128, 128), 36, b"\xaa" * (n // 4) + bytes(32))
    (sample,) = _counts(tmp_path, [tensor])
    assert (sample.plus, sample.complete) == (4 * SAMPLE_BYTES, False)
    (everything,) = _counts(tmp_path, [tensor], full=True)
    assert (everything.plus, everything.complete) == (n, True)


def test_rows_that_are_not_whole_blocks_are_not_counted(tmp_path):
    tiny = Tensor("w", (3,), 36, bytes(32))  # less than a byte of codes
    rows = Tensor("r4", (1, 64), 335, bytes(20))
    assert [counts.total for counts in _counts(tmp_path, [tiny, rows])] == [0, 0]
