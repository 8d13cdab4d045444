"""Ternary layers of a folder: which layers they are, and how their weights are stored."""

import numpy as np
import pytest
from stored_weights import stored_weight

from bitnet.base.errors import BitnetError, InvalidFormat
from bitnet.formats.bit_linear import BitLinear

NAME = "blk.0.ffn_up.weight"
PACKED = {"linear_class": "bitlinear"}
ONLINE = {"linear_class": "autobitlinear", "quantization_mode": "online"}


def test_a_pattern_keeps_whole_names_from_the_beginning_or_an_end():
    # Expressions of layers that stay floats: matched from the beginning up to a dot, or at the end.
    layers = BitLinear.of(PACKED | {"modules_to_not_convert": [r"model\.layers\.1", "q_proj"]})
    assert not layers.converts("model.layers.1.mlp.up_proj")
    assert layers.converts("model.layers.10.mlp.up_proj")
    assert not layers.converts("model.layers.2.self_attn.q_proj")
    # The head stays as it is only if the list is absent.
    assert layers.converts("lm_head")
    assert not BitLinear.of(PACKED).converts("lm_head")


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(" * 5000])
def test_a_pattern_that_is_not_an_expression_is_refused_by_its_key(pattern):
    layers = BitLinear.of(PACKED | {"modules_to_not_convert": [pattern]})
    with pytest.raises(InvalidFormat, match="modules_to_not_convert is not a regular expression"):
        layers.converts("model.layers.1.mlp.up_proj")


@pytest.mark.parametrize("shape", [(), (4,), (0, 4), (4, 0), (1, 2, 2)])
@pytest.mark.parametrize(("form", "dtype"), [(PACKED, np.uint8), (ONLINE, np.float32)])
def test_a_tensor_that_is_not_a_matrix_of_numbers_is_refused(form, dtype, shape):
    values = stored_weight(NAME, np.ones(shape, dtype), "U8" if form is PACKED else "F32")
    with pytest.raises(BitnetError, match=NAME):
        BitLinear.of(form).weight(NAME, values, stored_weight("s", np.ones(1, "<f4"), "F32"))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 1e-45])  # 1 / 1e-45 is infinite
def test_a_scale_by_which_nothing_can_be_divided_is_refused(scale):
    values = stored_weight("s", np.array([scale], "<f4"), "F32")
    with pytest.raises(InvalidFormat, match=r"blk\.0\.ffn_up\.scale: its weight_scale is not"):
        BitLinear.of(PACKED).factor(NAME, values)
