"""Weights packed for the kernels: all rows, the memory they take, and files left unchanged."""

import mmap

import gguf
import numpy as np
import pytest

from bitnet.base import native
from bitnet.kernels import packing
from bitnet.kernels.packing import prepare_matrix
from bitnet.quants.types import by_name
from bitnet.quants.weight import Weight

NATIVE = native.module()
pytestmark = pytest.mark.skipif(NATIVE is None, reason="the compiled module is not installed")

ROWS = 1000
COLUMNS = 256


def in_a_file(path, name):
    """A random matrix in a mapped file, and its numbers as gguf-py decodes them."""
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    packed = gguf.quants.quantize(values, kind)
    path.write_bytes(b"\0" * 100 + packed.tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(memoryview(mapped), dtype=np.uint8)[100:]
    weight = Weight("w", (ROWS, COLUMNS), by_name(name), data)
    return weight, gguf.quants.dequantize(packed, kind)


def rows_of(matrix, ids):
    """Rows *ids* of the packed *matrix*, decoded."""
    out = np.empty((len(ids), matrix.columns), dtype=np.float32)
    ids = np.array(ids, dtype=np.int64)
    NATIVE.embed(matrix.kind, matrix.data, matrix.rows, matrix.columns, 1.0, ids, out)
    return out


@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_1"])
def test_a_matrix_that_is_packed_in_slices_has_every_row(name, tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_SLICE_BYTES", 50_000)  # less than any of the matrices
    weight, values = in_a_file(tmp_path / "weights", name)
    matrix = prepare_matrix(NATIVE, weight)
    assert NATIVE.kernel_types()[matrix.kind] == f"{name}_R16"
    np.testing.assert_array_equal(rows_of(matrix, range(ROWS)), values)


def test_packing_leaves_the_bytes_of_a_mapped_file_readable(tmp_path):
    weight, _ = in_a_file(tmp_path / "weights", "Q4_1")
    before = weight.data.tobytes()
    prepare_matrix(NATIVE, weight)
    assert weight.data.tobytes() == before


def test_a_table_that_is_only_looked_up_is_not_copied(tmp_path):
    weight, values = in_a_file(tmp_path / "weights", "Q4_1")
    matrix = prepare_matrix(NATIVE, weight, in_rows=True)
    assert np.shares_memory(matrix.data, weight.data)
    np.testing.assert_array_equal(rows_of(matrix, [0, 999, 16]), values[[0, 999, 16]])


# Types that have no decoder, since no file has matrices of them.
_OF_OTHER_TENSORS = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64"}
_NAMES = [kind.name for kind in gguf.GGMLQuantizationType if kind.name not in _OF_OTHER_TENSORS]


@pytest.mark.parametrize("name", _NAMES)
def test_counted_memory_of_a_matrix_is_what_packing_takes(name):
    """Types without a kernel are copied as F32."""
    quant = by_name(name)
    data = np.zeros(quant.size_bytes((32, 512)), np.uint8)
    weight = Weight("w", (32, 512), quant, data, rounds_input=False)
    matrix = prepare_matrix(NATIVE, weight)
    kinds = NATIVE.kernel_types()
    counted = packing.bytes_in_memory(weight, kinds)
    assert counted <= matrix.data.nbytes <= 1.05 * counted  # tiles have a few bytes more
    if packing.multiplies_in_rows(weight, kinds):
        assert np.shares_memory(prepare_matrix(NATIVE, weight, in_rows=True).data, weight.data)


def test_packing_does_not_change_an_array_in_memory():
    data = np.full(64 * 34, 7, dtype=np.uint8)
    prepare_matrix(NATIVE, Weight("w", (64, 32), by_name("Q8_0"), data))
    assert (data == 7).all()
