"""Matrices of experts as folders hold them: of gpt-oss, one for each expert, one for all."""

from functools import partial

import numpy as np
import pytest

from bitnet.base.errors import InvalidFormat
from bitnet.formats.expert_tensors import stack_experts, transpose_by_shape, unpack_gpt_oss
from bitnet.quants.types import QuantType
from bitnet.quants.weight import Deferred, Weight

E = 2  # experts
F = 3  # width of an expert's hidden layer
DIM = 32  # width of the model: one block of MXFP4
NAME = "model.layers.0.mlp.experts"


def tensor(values, dtype):
    """A weight with the bytes of *values*, of the safetensors type *dtype*."""
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return Weight("w", values.shape, QuantType(dtype, -1, 1, 0), data)


def blocks(rows):
    """Random codes ``(E, rows, blocks, 16)``, two a byte, and exponents ``(E, rows, blocks)``."""
    rng = np.random.default_rng(rows)
    packed = rng.integers(0, 256, (E, rows, DIM // 32, 16), dtype=np.uint8)
    return packed, rng.integers(0, 256, (E, rows, DIM // 32), dtype=np.uint8)


def test_matrices_are_transposed_and_gate_and_up_columns_are_separated():
    values = np.arange(E * DIM * 2 * F, dtype="<f4").reshape(E, DIM, 2 * F)
    biases = np.arange(E * 2 * F, dtype="<f4").reshape(E, 2 * F)
    turned = unpack_gpt_oss(
        {
            f"{NAME}.gate_up_proj": tensor(values, "F32"),
            f"{NAME}.gate_up_proj_bias": tensor(biases, "F32"),
            "other": tensor(biases, "F32"),
        },
        "m",
    )
    assert turned.keys() == {
        "other",
        *(f"{NAME}.{part}_proj{end}" for part in ("gate", "up") for end in ("", "_bias")),
    }
    for at, part in enumerate(("gate", "up")):
        matrix = turned[f"{NAME}.{part}_proj"]
        bias = turned[f"{NAME}.{part}_proj_bias"]
        assert (matrix.shape, bias.shape) == ((E, F, DIM), (E, F))
        expected = values[:, :, at::2].swapaxes(1, 2)
        np.testing.assert_array_equal(matrix.data.view("<f4").reshape(E, F, DIM), expected)
        np.testing.assert_array_equal(bias.data.view("<f4").reshape(E, F), biases[:, at::2])


def test_blocks_of_mxfp4_become_those_of_ggml():
    """A block of ggml is a power of two, then bytes whose low halves are the first 16 weights.

    In a folder the halves of a byte are neighbouring weights.
    """
    packed, powers = blocks(DIM)
    names = f"{NAME}.down_proj_blocks", f"{NAME}.down_proj_scales"
    turned = unpack_gpt_oss(
        dict(zip(names, (tensor(packed, "U8"), tensor(powers, "U8")), strict=True)), "m"
    )
    (matrix,) = turned.values()
    assert (matrix.quant.name, matrix.shape) == ("MXFP4", (E, DIM, DIM))
    rows = matrix.data.reshape(E, DIM, 17)
    np.testing.assert_array_equal(rows[..., :1], powers)
    weights = np.concatenate([rows[..., 1:] & 15, rows[..., 1:] >> 4], axis=-1)
    np.testing.assert_array_equal(weights[..., ::2], packed[:, :, 0] & 15)
    np.testing.assert_array_equal(weights[..., 1::2], packed[:, :, 0] >> 4)


@pytest.mark.parametrize("fault", ["no scales", "other scales", "other dimensions", "other type"])
def test_what_is_not_a_matrix_of_experts_is_refused(fault):
    packed, powers = blocks(2 * F)
    stored = {
        f"{NAME}.gate_up_proj_blocks": tensor(packed, "U8"),
        f"{NAME}.gate_up_proj_scales": tensor(powers, "U8"),
    }
    if fault == "no scales":
        del stored[f"{NAME}.gate_up_proj_scales"]
    if fault == "other scales":
        stored[f"{NAME}.gate_up_proj_scales"] = tensor(powers[:1], "U8")
    if fault == "other dimensions":
        stored = {f"{NAME}.down_proj": tensor(np.zeros((E, F), "<f4"), "F32")}
    if fault == "other type":
        stored = {f"{NAME}.down_proj": tensor(packed, "U8")}
    with pytest.raises(InvalidFormat, match="is not a matrix of experts"):
        unpack_gpt_oss(stored, "m")


def test_experts_whose_numbers_are_computed_later_are_joined_later():
    computed = []

    def compute(expert):
        """Bytes of a matrix, each of them the number of the *expert*."""
        computed.append(expert)
        return np.full(4 * F * DIM, expert, np.uint8)

    tensors = {}
    for expert in range(E):
        later = Deferred(partial(compute, expert), 4 * F * DIM)
        name = f"{NAME}.{expert}.up_proj.weight"
        tensors[name] = Weight(name, (F, DIM), QuantType("F32", 0, 1, 4), later)
    (stacked,) = stack_experts(tensors, "m").values()
    assert (stacked.shape, stacked.size_bytes, computed) == ((E, F, DIM), E * 4 * F * DIM, [])
    for expert, matrix in enumerate(stacked.matrices()):
        assert (matrix.data == expert).all()
    assert computed == [*range(E)]
    assert stacked.data is stacked.data  # computed once


def test_matrices_of_transformers_4_and_5_become_the_same():
    """transformers 5 stores rows of gate and up, version 4 stored columns."""
    rows = np.arange(E * 2 * F * DIM, dtype="<f4").reshape(E, 2 * F, DIM)
    down = np.arange(E * DIM * F, dtype="<f4").reshape(E, DIM, F)
    now = {"gate_up": rows, "down": down}
    former = {part: values.swapaxes(1, 2) for part, values in now.items()}
    for version in (now, former):
        stored = {f"{NAME}.{part}_proj": tensor(values, "F32") for part, values in version.items()}
        turned = transpose_by_shape(stored | {"other": tensor(down, "F32")}, DIM, "m")
        assert turned.keys() == {*stored, "other"}
        for part, values in now.items():
            matrix = turned[f"{NAME}.{part}_proj"]
            assert matrix.shape == values.shape
            np.testing.assert_array_equal(matrix.data.view("<f4").reshape(values.shape), values)


@pytest.mark.parametrize("shape", [(E, DIM, DIM), (E, F, F), (DIM, F)])
def test_a_shape_that_does_not_tell_which_axis_is_which_is_refused(shape):
    stored = {f"{NAME}.down_proj": tensor(np.zeros(shape, "<f4"), "F32")}
    with pytest.raises(InvalidFormat, match="does not tell which axis"):
        transpose_by_shape(stored, DIM, "m")


@pytest.mark.parametrize("shape", [(0, F, DIM), (E, F, 0), (E, 0, DIM)])
def test_matrices_without_numbers_are_refused(shape):
    stored = {f"{NAME}.down_proj": tensor(np.zeros(shape, "<f4"), "F32")}
    with pytest.raises(InvalidFormat, match="has no numbers"):
        transpose_by_shape(stored, DIM, "m")


def test_experts_that_are_there_one_by_one_and_as_one_tensor_are_refused():
    one = tensor(np.zeros((F, DIM), "<f4"), "F32")
    stored = {f"{NAME}.{number}.up_proj.weight": one for number in range(E)}
    stored[f"{NAME}.up_proj"] = tensor(np.zeros((E, F, DIM), "<f4"), "F32")
    with pytest.raises(InvalidFormat, match="is there twice, as one tensor and as 2 matrices"):
        stack_experts(stored, "m")


BYTES = tensor(np.zeros((E, DIM, F), np.uint8), "U8")  # not the numbers of a matrix


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({f"{NAME}.down_proj": BYTES}, "its type is U8, expected F32, F16, BF16"),
        ({f"{NAME}.down_proj_blocks": BYTES}, "its scales are missing"),
        (
            {f"{NAME}.down_proj_blocks": BYTES, f"{NAME}.down_proj_scales": BYTES},
            "its scales do not fit",
        ),
        (
            {f"{NAME}.down_proj": tensor(np.zeros((E, 0, F), "<f4"), "F32")},
            "it has no numbers",
        ),
        ({f"{NAME}.down_proj": tensor(np.zeros(F, "<f4"), "F32")}, "it has other dimensions"),
    ],
)
def test_the_error_says_what_is_wrong_with_a_matrix_of_experts(tensors, problem):
    with pytest.raises(InvalidFormat) as failure:
        unpack_gpt_oss(tensors, "m")
    assert failure.value.message.endswith(f"is not a matrix of experts: {problem}")
