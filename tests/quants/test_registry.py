"""Every encoding by name: decoding, encoding, and refusals."""

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.quants import types
from bitnet.quants.registry import (
    PACKED_U8,
    dequantize,
    quantize,
    rounds_activations,
    with_kernels,
)
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import Ternary
from bitnet.quants.weight import Weight

# Four rows of two blocks of 256.
VALUES = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)


def weight(name, data, shape=(4, 512)):
    """A weight with the bytes *data* in the encoding *name*."""
    return Weight("w", shape, types.by_name(name), data.reshape(-1).view(np.uint8))


@pytest.mark.parametrize(
    "name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"]
)
def test_decoding_agrees_with_gguf_py(name):
    kind = GGMLQuantizationType[name]
    data = quants.quantize(VALUES, kind)
    np.testing.assert_array_equal(dequantize(weight(name, data)), quants.dequantize(data, kind))


@pytest.mark.parametrize(
    "name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "MXFP4"]
)
def test_block_encodings_decode_any_bytes_as_gguf_py_does(name):
    kind = types.by_name(name)
    size = 512 // kind.block_size * kind.type_size
    # Bytes below 60 are finite scales wherever they are in a block.
    data = np.random.default_rng(1).integers(0, 60, (4, size)).astype(np.uint8)
    expected = quants.dequantize(data, GGMLQuantizationType[name])
    np.testing.assert_array_equal(dequantize(weight(name, data)), expected)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_encoding_agrees_with_gguf_py(name):
    expected = quants.quantize(VALUES, GGMLQuantizationType[name]).view(np.uint8)
    np.testing.assert_array_equal(
        quantize("w", VALUES, types.by_name(name)).data, expected.reshape(-1)
    )


@pytest.mark.parametrize("name", ["I2_S", "TQ1_0", "TQ2_0", "PACKED_U8"])
def test_ternary_encodings_of_one_matrix_decode_to_the_same_numbers(name):
    quant = PACKED_U8 if name == "PACKED_U8" else types.by_name(name)
    decoded = dequantize(quantize("w", VALUES, quant))
    scale = np.abs(VALUES).mean()
    expected = np.clip(np.rint(VALUES / scale), -1, 1) * scale
    np.testing.assert_allclose(decoded, expected, rtol=2**-11)  # TQ scales are float16


def test_a_weights_own_scale_multiplies_what_it_decodes_to():
    plain = quantize("w", VALUES, types.by_name("F32"))
    scaled = Weight("w", plain.shape, plain.quant, plain.data, scale=2.0)
    np.testing.assert_array_equal(dequantize(scaled), VALUES * 2)


@pytest.mark.parametrize("name", ["F32", "BF16", "Q8_0", "Q4_K", "I2_S", "TQ2_0", "IQ2_BN"])
def test_missing_bytes_are_an_invalid_format(name):
    with pytest.raises(InvalidFormat, match="w"):
        dequantize(weight(name, np.zeros(130, dtype=np.uint8)))


def test_an_encoding_without_a_decoder_is_refused_by_name():
    with pytest.raises(Unsupported, match="IQ2_K"):
        dequantize(weight("IQ2_K", np.zeros(4 * 152, dtype=np.uint8)))


@pytest.mark.parametrize("name", ["TL1", "TL2"])
def test_tiles_of_bitnet_cpp_are_refused_with_a_hint_to_use_i2_s(name):
    with pytest.raises(Unsupported, match=f"{name} weights lie in tiles") as raised:
        dequantize(weight(name, np.zeros(4 * 512 // 4 + 32, np.uint8)))
    assert "I2_S" in raised.value.hint


def test_an_encoding_without_an_encoder_is_refused_by_name():
    with pytest.raises(Unsupported, match="IQ2_XS"):
        quantize("w", VALUES, types.by_name("IQ2_XS"))


@pytest.mark.parametrize("bitnet", [True, False])
@pytest.mark.parametrize("encoding", ["I2_S", "TQ1_0", "TQ2_0", "Q8_0"])
def test_only_ternary_layers_that_round_their_input_round_activations(encoding, bitnet):
    weight = replace(quantize("w", VALUES, types.by_name(encoding)), rounds_input=bitnet)
    assert rounds_activations(weight) == (bitnet and encoding != "Q8_0")


@pytest.mark.parametrize("encoding", ["TQ1_0", "TQ2_0"])
def test_ternary_weights_with_float_inputs_become_q4_0_of_the_same_numbers(encoding):
    rng = np.random.default_rng(5)
    scales = rng.choice([0.0, 6e-8, 1e-3, 1.0, 65504.0], (6, 2)).astype(np.float32)
    ternary = Ternary(rng.integers(-1, 2, (6, 512)).astype(np.int8), scales)
    data = SCALED_BLOCKS[encoding].pack(ternary)
    weight = Weight("w", (6, 512), types.by_name(encoding), data, 3.0, rounds_input=False)
    blocks = with_kernels(weight)
    assert blocks.quant.name == "Q4_0"
    np.testing.assert_array_equal(dequantize(blocks), dequantize(weight))
    # With rounded inputs there are ternary kernels, so nothing is converted.
    assert with_kernels(replace(weight, rounds_input=True)).data is data


def test_q3_k_weights_become_q6_k_of_the_same_numbers():
    rng = np.random.default_rng(4)
    blocks = rng.integers(0, 256, (30, 110), dtype=np.uint8)
    blocks[:, 109] &= 0x3B  # scales that are finite
    weight = Weight("w", (10, 768), types.by_name("Q3_K"), blocks.reshape(-1), 3.0)
    longer = with_kernels(weight)
    assert longer.quant.name == "Q6_K"
    np.testing.assert_array_equal(dequantize(longer), dequantize(weight))
