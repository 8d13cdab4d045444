"""One tensor in another type: exactly, rounded as far as users allow it, or refused."""

import numpy as np
import pytest

from bitnet.base.errors import Unsupported
from bitnet.convert.convert_options import BLOCKS, FLOATS, TERNARY
from bitnet.convert.tensors import Job
from bitnet.quants import registry, types

WHOLES = ("tensor", "row", "block")  # parts that have one scale, from the largest to the smallest
SCALE_OF = {"I2_S": "tensor", "IQ2_BN": "row"}  # the part with one scale; of other types the block
SCALES = {  # of codes of shape (4, 2, 256); powers of two, which float16 and bfloat16 hold
    "tensor": np.full((1, 1, 1), 0.5, "f4"),
    "row": np.array([1, 2, 4, 8], "f4").reshape(4, 1, 1),
    "block": (2.0 ** np.arange(8)).astype("f4").reshape(4, 2, 1),
}
TYPES_WITH_A_CODE_FOR_TWO = ("Q2_0", "PQ2_0")  # types with a code for twice the scale


def job(values, source, target, *, allow_lossy=False):
    """The conversion of *values*, stored in the type *source*, to the type *target*."""
    weight = registry.quantize("blk.0.ffn_up.weight", values, types.by_name(source))
    return Job(weight, types.by_name(target), None, allow_lossy)


def draw(codes, whole):
    """Random numbers ``(4, 512)``: each of *codes* times a scale for each *whole* of WHOLES."""
    codes = np.random.default_rng(3).choice(codes, (4, 2, 256))
    return (codes * SCALES[whole]).reshape(4, 512).astype("f4")


@pytest.mark.parametrize("target", TERNARY)
@pytest.mark.parametrize("whole", WHOLES)
@pytest.mark.parametrize("source", FLOATS)
def test_ternary_numbers_are_exact_where_the_type_has_their_scales(source, whole, target):
    values = draw([-1, 1] if target == "Q1_0" else [-1, 0, 1], whole)  # Q1_0 has no zero
    planned = job(values, source, target)
    if WHOLES.index(whole) > WHOLES.index(SCALE_OF.get(target, "block")):
        with pytest.raises(Unsupported, match="is not ternary"):
            list(planned.pieces())
        return
    (piece,) = planned.pieces()
    assert piece.exact
    written = registry.Weight("w", values.shape, planned.target, np.frombuffer(piece.data, "u1"))
    np.testing.assert_array_equal(registry.dequantize(written), values)


@pytest.mark.parametrize("target", TERNARY)
@pytest.mark.parametrize("source", [*FLOATS, "Q2_0"])
@pytest.mark.parametrize("allow_lossy", [False, True])
def test_twice_the_scale_is_exact_or_refused_with_types_that_have_it(source, target, allow_lossy):
    values = draw([-1, 0, 1, 2], "tensor")
    if source == "Q2_0":
        # registry.quantize rounds to -1, 0 and 1; a conversion keeps the code for 2.
        (piece,) = job(values, "F32", "Q2_0").pieces()
        data = np.frombuffer(piece.data, "u1")
        weight = registry.Weight("w", (4, 512), types.by_name("Q2_0"), data)
        planned = Job(weight, types.by_name(target), None, allow_lossy)
    else:
        planned = job(values, source, target, allow_lossy=allow_lossy)
    if target in TYPES_WITH_A_CODE_FOR_TWO:
        assert all(piece.exact for piece in planned.pieces())
        return
    with pytest.raises(Unsupported, match="weights of twice their scale") as refused:
        list(planned.pieces())
    assert refused.value.hint == "choose PQ2_0 or Q2_0"


@pytest.mark.parametrize("target", [*FLOATS, *BLOCKS, *TERNARY])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("allow_lossy", [False, True])
def test_infinite_weights_and_nan_are_refused_for_what_they_are(target, bad, allow_lossy):
    values = draw([-1, 1], "tensor")
    values[2, 7] = bad
    source = "F16" if target == "F32" else "F32"  # another type, or the bytes would be copied
    with pytest.raises(Unsupported, match="some of its weights are infinite or NaN") as refused:
        list(job(values, source, target, allow_lossy=allow_lossy).pieces())
    assert target not in refused.value.hint  # another type would not help


@pytest.mark.parametrize(
    ("target", "hint"), [("F16", "choose BF16 or F32"), ("BF16", "choose F32")]
)
def test_numbers_beyond_a_float_name_a_wider_one(target, hint):
    values = np.full((4, 512), np.finfo("f4").max, "f4")
    with pytest.raises(Unsupported, match=f"{target} cannot hold its largest") as refused:
        list(job(values, "F32", target).pieces())
    assert refused.value.hint == hint


def test_a_matrix_that_is_not_whole_blocks_of_i2_s_is_refused_as_such():
    with pytest.raises(Unsupported, match="has 60 weights, and I2_S blocks of 128"):
        list(job(np.ones((3, 20), "f4"), "F32", "I2_S").pieces())
