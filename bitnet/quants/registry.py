"""Decoders and encoders of the quantization types.

Ternary types and plain floats are decoded and encoded here, other blocks are decoded by gguf-py and
encoded by the compiled module, as far as it has their types, or by gguf-py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bitnet.base import native
from bitnet.base.errors import InvalidFormat, Unsupported
from bitnet.quants import types
from bitnet.quants.scaled_blocks import SCALED_BLOCKS
from bitnet.quants.ternary import (
    Ternary,
    i2_s_scale,
    iq2_bn_scales,
    pack_i2_s,
    pack_iq2_bn,
    pack_u8,
    ternarize,
    u8_scale,
    unpack_i2_s,
    unpack_iq1_bn,
    unpack_iq2_bn,
    unpack_iq2_bn_r4,
    unpack_u8,
)
from bitnet.quants.types import QuantType
from bitnet.quants.weight import Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

T = TypeVar("T")

# Types that no file names: I2_S in the order of ARM, which a user states, and the packed bytes of
# BitNet's safetensors files.
I2_S_ARM = QuantType("I2_S_ARM", 36, 1, 1)
PACKED_U8 = QuantType("PACKED_U8", -1, 1, 1)

#: Ternary encodings that hold models of every kind; the others are BitNet's own.
OF_ANY_MODEL = frozenset(SCALED_BLOCKS)

_Q4_0 = types.by_id(2)
_Q6_K = types.by_id(14)
# Blocks that the compiled module encodes; gguf-py can encode only the first ones, too.
_ALSO_IN_PYTHON = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
_ONLY_COMPILED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
_PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}


@dataclass(frozen=True)
class _TernaryCodec:
    """Codec of a ternary type; *scales* reads the scales without the codes."""

    unpack: Callable[[NDArray[np.uint8], Sequence[int]], Ternary]
    pack: Callable[[Ternary], NDArray[np.uint8]] | None
    scales: Callable[[NDArray[np.uint8], Sequence[int]], NDArray[np.float32]] | None = None


_TERNARY = {
    "I2_S": _TernaryCodec(unpack_i2_s, pack_i2_s, i2_s_scale),
    "I2_S_ARM": _TernaryCodec(partial(unpack_i2_s, arm=True), partial(pack_i2_s, arm=True)),
    "PACKED_U8": _TernaryCodec(unpack_u8, lambda ternary: pack_u8(ternary.codes), u8_scale),
    "IQ1_BN": _TernaryCodec(unpack_iq1_bn, None),
    "IQ2_BN": _TernaryCodec(unpack_iq2_bn, pack_iq2_bn, iq2_bn_scales),
    "IQ2_BN_R4": _TernaryCodec(unpack_iq2_bn_r4, None),
} | {
    name: _TernaryCodec(layout.unpack, layout.pack, layout.scales)
    for name, layout in SCALED_BLOCKS.items()
}


def rounds_activations(weight: Weight) -> bool:
    """True if a linear layer of *weight* rounds its input to int8 per token (W1.58A8)."""
    return weight.quant.name in _TERNARY and weight.rounds_input


def type_for_kernels(weight: Weight) -> QuantType:
    """The type that :func:`with_kernels` gives *weight*.

    TQ1_0 and TQ2_0 of a layer that does not round a token's whole input become Q4_0. (PQ2_0 would
    take half the memory, but its kernels round inputs in runs of 32, not of 16, and an outlier
    causes three times the error.) Q3_K becomes Q6_K, which has the same scales and longer codes.
    Other types stay as they are.
    """
    if weight.quant.name == "Q3_K":
        return _Q6_K
    if weight.quant.name in ("TQ1_0", "TQ2_0") and not weight.rounds_input:
        return _Q4_0
    return weight.quant


def with_kernels(weight: Weight) -> Weight:
    """*weight* in a type that has kernels for matrix products, with the same numbers."""
    quant = type_for_kernels(weight)
    if quant is weight.quant:
        return weight
    if quant is _Q6_K:
        block_bytes = weight.quant.type_size
        if weight.data.size % block_bytes:
            raise _wrong_size(weight)
        data = _q3_k_as_q6_k(weight.data.reshape(-1, block_bytes))
        return replace(weight, quant=_Q6_K, data=data)
    ternary = unpack_ternary(replace(weight, scale=1.0))  # its scale stays a field
    codes = (ternary.codes.reshape(-1, 2, 16) + np.int8(8)).astype(np.uint8)  # halves of blocks
    blocks_of_scale = len(codes) // ternary.scales.size
    scales = np.repeat(ternary.scales, blocks_of_scale).astype("<f2")
    nibbles = codes[:, 0] | codes[:, 1] << 4
    data = np.concatenate([scales.view(np.uint8).reshape(-1, 2), nibbles], axis=1)
    return replace(weight, quant=_Q4_0, data=data.reshape(-1))


def _q3_k_as_q6_k(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of Q6_K blocks with the weights of *blocks* of Q3_K, shape ``(blocks, 110)``.

    Layouts are those of ggml-common.h: ``hmask[32], qs[64], scales[12], d`` of Q3_K, and
    ``ql[128], qh[64], scales[16], d`` of Q6_K.
    """
    count = len(blocks)
    bits = np.arange(8, dtype=np.uint8).reshape(2, 4, 1)
    fields = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
    high = blocks[:, None, None, :32] >> bits & 1
    low = blocks[:, 32:96].reshape(count, 2, 1, 32) >> fields & 3
    # 0 to 7 stand for -4 to 3 in Q3_K, 28 to 35 in Q6_K: (blocks, 2, 4, 32)
    codes = low + 4 * high + np.uint8(28)
    low_bits = blocks[:, 96:104]  # four of each of the 16 scales
    high_bits = blocks[:, 104:108]  # two of each
    scales = np.concatenate([low_bits & 15, low_bits >> 4], axis=1)
    scales |= np.concatenate([(high_bits >> shift & 3) << 4 for shift in (0, 2, 4, 6)], axis=1)
    nibbles = codes & 15
    out = np.empty((count, 210), dtype=np.uint8)
    out[:, :128] = (nibbles[:, :, :2] | nibbles[:, :, 2:] << 4).reshape(count, 128)
    out[:, 128:192] = np.bitwise_or.reduce(codes >> 4 << fields, axis=2).reshape(count, 64)
    out[:, 192:208] = scales - np.uint8(32)  # Q3_K has 32 more than the scale, Q6_K an int8
    out[:, 208:] = blocks[:, 108:]
    return out.reshape(-1)


def unpack_ternary(weight: Weight) -> Ternary:
    """Codes and scales of a ternary *weight*, with its own ``scale`` folded in."""
    ternary = _read(weight, _ternary_codec(weight).unpack)
    return Ternary(ternary.codes, _fold_scale(ternary.scales, weight))


def ternary_scales(weight: Weight) -> NDArray[np.float32]:
    """Only the scales of :func:`unpack_ternary`, without unpacking codes if possible."""
    scales = _ternary_codec(weight).scales
    return _fold_scale(_read(weight, scales), weight) if scales else unpack_ternary(weight).scales


def _read(weight: Weight, function: Callable[[NDArray[np.uint8], Sequence[int]], T]) -> T:
    """Result of *function* for the bytes and shape of *weight*; an error names the weight."""
    try:
        return function(weight.data, weight.shape)
    except InvalidFormat as error:
        raise InvalidFormat(f"{weight.name}: {error.message}", hint=error.hint) from error
    except ValueError as error:
        raise _wrong_size(weight) from error


def _ternary_codec(weight: Weight) -> _TernaryCodec:
    codec = _TERNARY.get(weight.quant.name)
    if codec is None or len(weight.shape) != 2:
        raise _no_decoder(weight)
    return codec


def _fold_scale(scales: NDArray[np.float32], weight: Weight) -> NDArray[np.float32]:
    """*scales* times the weight's own scale; one column if every row has equal ones."""
    scales = scales * np.float32(weight.scale)
    return scales[:, :1] if (scales == scales[:, :1]).all() else scales


def dequantize(weight: Weight) -> NDArray[np.float32]:
    """*weight* as float32, in its shape."""
    name = weight.quant.name
    if weight.pieces or (name in _TERNARY and len(weight.shape) == 3):
        return np.stack([dequantize(matrix) for matrix in weight.matrices()])
    if name in _TERNARY:
        return unpack_ternary(weight).dequantize()
    try:
        if name in _PLAIN:
            values = weight.data.view(_PLAIN[name]).astype(np.float32)
        elif name == "BF16":
            values = (weight.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = _gguf_dequantize(weight)
        values = values.reshape(weight.shape)
    except ValueError as error:
        raise _wrong_size(weight) from error
    return values if weight.scale == 1.0 else values * np.float32(weight.scale)


def quantize(
    name: str,
    values: NDArray[np.float32],
    quant: QuantType,
    importance: NDArray[np.float32] | None = None,
) -> Weight:
    """*values*, shape ``(rows, columns)`` or ``(n,)``, as a weight *name* encoded in *quant*.

    A ternary type gets one scale for the whole matrix (:func:`ternarize`). Other blocks are rounded
    as llama-quantize does; *importance* weighs the squared errors of their columns.
    """
    codec = _TERNARY.get(quant.name)
    scale = 1.0
    data: NDArray[Any]
    if codec is not None:
        if codec.pack is None or values.ndim != 2 or values.shape[1] % quant.block_size:
            raise _no_encoder(name, values.shape, quant)
        ternary = ternarize(values)
        if quant.name == "PACKED_U8":  # its bytes have no room for the scale
            scale = float(ternary.scales[0, 0])
        data = codec.pack(ternary)
    else:
        data = _encode(name, values, quant, importance)
    return Weight(name, values.shape, quant, data.reshape(-1).view(np.uint8), scale)


def _encode(
    name: str, values: NDArray[np.float32], quant: QuantType, importance: NDArray[np.float32] | None
) -> NDArray[Any]:
    """*values* encoded in *quant*, which is not ternary, in an array of any shape and dtype."""
    if quant.name in _PLAIN:
        return np.ascontiguousarray(values, dtype=_PLAIN[quant.name])
    if values.shape[-1] % quant.block_size:
        raise _no_encoder(name, values.shape, quant)
    module = native.module()
    has_encoder = quant.name in (*_ALSO_IN_PYTHON, *_ONLY_COMPILED)
    if has_encoder and module is not None:
        rows = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1])
        out = np.empty(rows.size // quant.block_size * quant.type_size, np.uint8)
        if importance is not None:
            importance = np.ascontiguousarray(importance, np.float32)
        module.quantize_rows(quant.ggml_id, rows, importance, out)
        return out
    if quant.name in _ONLY_COMPILED or (has_encoder and importance is not None):
        _, remedy = native.problem()
        raise Unsupported(
            f"{name}: rounding to {quant.name} needs the compiled module",
            hint=remedy or "unset BITNET_BACKEND",
        )
    from gguf import GGMLQuantizationType, quants

    try:
        return quants.quantize(values, GGMLQuantizationType(quant.ggml_id))
    except (NotImplementedError, ValueError, quants.QuantError) as error:
        raise _no_encoder(name, values.shape, quant) from error


def _gguf_dequantize(weight: Weight) -> NDArray[np.float32]:
    from gguf import GGMLQuantizationType, quants

    # gguf-py knows llama.cpp's types by their ids, which other dialects use for other types.
    if not weight.quant.known or types.by_id(weight.quant.ggml_id) != weight.quant:
        raise _no_decoder(weight)
    columns = weight.shape[-1]
    row_bytes = columns // weight.quant.block_size * weight.quant.type_size
    if row_bytes * math.prod(weight.shape[:-1]) != weight.data.size:
        raise _wrong_size(weight)
    try:
        kind = GGMLQuantizationType(weight.quant.ggml_id)
        values = quants.dequantize(weight.data.reshape(-1, row_bytes), kind)
    except (NotImplementedError, ValueError) as error:
        raise _no_decoder(weight) from error
    return np.asarray(values, dtype=np.float32)


def _no_decoder(weight: Weight) -> Unsupported:
    if weight.quant.name in ("TL1", "TL2"):
        return Unsupported(
            f"{weight.name}: {weight.quant.name} weights lie in tiles whose sizes depend on the "
            "build of bitnet.cpp, and the file does not name them",
            hint="take the model's I2_S file, or convert its folder of safetensors to --type I2_S",
        )
    return Unsupported(
        f"{weight.name}: no decoder for encoding {weight.quant.name} with shape {weight.shape}",
        hint="choose a file in F16, Q8_0, Q4_K_M, TQ2_0 or I2_S",
    )


def _no_encoder(name: str, shape: Sequence[int], quant: QuantType) -> Unsupported:
    return Unsupported(
        f"{name}: cannot encode shape {tuple(shape)} in {quant.name}, blocks of {quant.block_size}",
        hint="choose F16, Q8_0, TQ2_0 or I2_S",
    )


def _wrong_size(weight: Weight) -> InvalidFormat:
    return InvalidFormat(
        f"{weight.name}: {weight.data.size:,} bytes are not {weight.quant.name} of shape "
        f"{weight.shape}",
        hint="the file is damaged; download it again",
    )
