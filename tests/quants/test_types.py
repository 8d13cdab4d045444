"""Types of tensors: sizes, and names of ids in the dialects of llama.cpp and its forks."""

import pytest
from gguf.constants import GGML_QUANT_SIZES

from bitnet.quants.types import (
    BITNET_CPP,
    IK_LLAMA_CPP,
    LLAMA_CPP,
    TensorEvidence,
    by_id,
    by_name,
    resolve_dialect,
)

# gguf-py counts two f32 scales per Q8_1 block where ggml has two f16; no file holds that type.
KNOWN_DIFFERENCE = {"Q8_1"}


def test_llama_cpp_sizes_are_those_of_gguf_py():
    for kind, (block_size, type_size) in GGML_QUANT_SIZES.items():
        ours = by_id(kind.value, LLAMA_CPP)
        if kind.name not in KNOWN_DIFFERENCE:
            assert (ours.name, ours.block_size, ours.type_size) == (
                kind.name,
                block_size,
                type_size,
            )


@pytest.mark.parametrize(
    ("ggml_id", "llama", "bitnet", "ik"),
    [
        (36, "UNKNOWN_36", "I2_S", "I2_S"),
        (37, "UNKNOWN_37", "I8_S", "UNKNOWN_37"),
        (38, "UNKNOWN_38", "TL1", "UNKNOWN_38"),
        (39, "MXFP4", "TL2", "MXFP4"),
        (135, "UNKNOWN_135", "UNKNOWN_135", "IQ2_BN"),
        (335, "UNKNOWN_335", "UNKNOWN_335", "IQ2_BN_R4"),
        (12, "Q4_K", "Q4_K", "Q4_K"),
    ],
)
def test_an_id_means_what_its_dialect_says(ggml_id, llama, bitnet, ik):
    names = [by_id(ggml_id, dialect).name for dialect in (LLAMA_CPP, BITNET_CPP, IK_LLAMA_CPP)]
    assert names == [llama, bitnet, ik]


@pytest.mark.parametrize(
    # The size is in bytes.
    ("name", "shape", "size"),
    [
        ("F16", (3, 5), 30),
        ("F16", (3, 0), 0),
        ("Q4_1", (2, 3, 0), 0),
        ("F32", (), 4),
        ("Q4_1", (2, 64), 80),
        ("TQ2_0", (2, 256), 132),
        ("I2_S", (2560, 6912), 2560 * 6912 // 4 + 32),
        ("TL1", (128, 256), 128 * 256 // 4 + 32),
        ("IQ2_BN", (2, 128), 2 * (4 + 2 * 16)),
        ("IQ1_BN", (2, 128), 2 * (2 + 2 * 13)),
        # bitnet.cpp's ggml_nbytes for its 3200 x 3200 matrices, worked out by hand:
        # (3200 - 256) * 3200 / 3 * 5 / 8 + 256 * 3200 / 4 = 2,167,466, up to 2,167,488, + 32
        ("TL2", (3200, 3200), 2_167_520),
    ],
)
def test_the_size_of_a_tensor_follows_from_its_encoding_and_shape(name, shape, size):
    assert by_name(name).size_bytes(shape) == size


def test_a_row_that_is_not_a_whole_number_of_blocks_has_no_size():
    assert by_name("Q4_K").size_bytes((4, 100)) is None
    assert by_id(999).size_bytes((4,)) is None


def _evidence(ggml_id, shape, size):
    """A tensor of a file, by which its dialect is recognized."""
    return TensorEvidence(ggml_id, shape, size)


# Ids 36 and 39 mean other types in other dialects; the size in bytes tells them apart.
I2_S = _evidence(36, (256, 512), 256 * 512 // 4 + 32)
MXFP4 = _evidence(39, (256, 512), 256 * 512 // 32 * 17)
TL2 = _evidence(39, (3200, 3200), 2_167_520)


@pytest.mark.parametrize(
    ("architecture", "tensors", "dialect"),
    [
        ("llama", [], LLAMA_CPP),
        ("llama", [_evidence(12, (1, 256), 144)], LLAMA_CPP),
        ("bitnet-b1.58", [I2_S], BITNET_CPP),
        ("llama", [I2_S], BITNET_CPP),
        ("gpt-oss", [MXFP4], LLAMA_CPP),
        ("bitnet-b1.58", [MXFP4], LLAMA_CPP),
        ("bitnet-b1.58", [TL2], BITNET_CPP),
        ("llama", [TL2], BITNET_CPP),
        ("bitnet-b1.58", [_evidence(135, (1, 64), 20)], IK_LLAMA_CPP),
        ("bitnet-b1.58", [I2_S, _evidence(335, (1, 64), 20)], IK_LLAMA_CPP),
        ("llama", [MXFP4, I2_S], IK_LLAMA_CPP),
        ("llama", [_evidence(140, (1, 256), 176)], IK_LLAMA_CPP),
        ("bitnet-b1.58", [_evidence(39, (256, 512), None)], BITNET_CPP),
        ("gpt-oss", [_evidence(39, (256, 512), None)], LLAMA_CPP),
    ],
)
def test_the_dialect_follows_from_ids_sizes_and_architecture(architecture, tensors, dialect):
    assert resolve_dialect(architecture, tensors) == dialect


def test_names_are_not_case_sensitive_and_tell_ternary_and_unknown_types():
    assert by_name("i2_s").is_ternary
    assert not by_name("q4_k").is_ternary
    assert not by_name("nothing").known
