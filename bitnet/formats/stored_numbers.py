"""Numbers and codes of a folder's tensors, in the types that methods of quantization store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitnet.base.errors import InvalidFormat
from bitnet.families.keys import COMPARE
from bitnet.quants import registry
from bitnet.quants.weight import Deferred, Weight

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bitnet.quants.types import QuantType

KEY = "quantization_config"
BELOW = f"{KEY}."  # prefix of its keys in messages
HINT = "fetch the model's folder of plain weights, or a GGUF file of it: bitnet search qwen3"
#: Names of torch's types of numbers, and ours.
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_INTEGERS = {"I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8"}


def _numbers_of_float8() -> NDArray[np.float32]:
    """The numbers of the 256 codes of ``float8_e4m3fn``, of which 0x7F and 0xFF are NaN."""
    codes = np.arange(256)
    exponents = codes >> 3 & 15
    mantissas = codes & 7
    normal = (8 + mantissas) * np.exp2(exponents - 10.0)  # (1 + mantissa / 8) * 2 ** (exponent - 7)
    numbers = np.where(exponents > 0, normal, mantissas * 2.0**-9)
    numbers = np.where(codes & 127 == 127, np.nan, numbers)
    return np.where(codes & 128, -numbers, numbers).astype(np.float32)


_FLOAT8 = _numbers_of_float8()


def read_floats(tensor: Weight, model: str) -> NDArray[np.float32]:
    """The numbers of *tensor*, whatever plain type they have."""
    if tensor.quant.name == "F8_E4M3":
        numbers: NDArray[np.float32] = _FLOAT8[tensor.data]
        return numbers.reshape(tensor.shape)
    if tensor.quant.name in _INTEGERS:
        return read_integers(tensor, model).astype(np.float32)
    if tensor.quant.name not in DTYPES.values():
        raise unlike(tensor, "numbers", model)
    return registry.dequantize(tensor)


def read_integers(tensor: Weight, model: str) -> NDArray[np.integer[Any]]:
    """The integers of *tensor*, a view."""
    if tensor.quant.name not in _INTEGERS:
        raise unlike(tensor, "integers", model)
    numbers: NDArray[np.integer[Any]] = tensor.data.view(_INTEGERS[tensor.quant.name])
    return numbers.reshape(tensor.shape)


def unpack_codes(words: NDArray[np.integer[Any]], bits: int, count: int) -> NDArray[np.uint8]:
    """The first *count* codes of each row of 32-bit *words*, shape ``(rows, count)``.

    A row is one stream of bits, of which the first code has the lowest *bits* of the first word.
    """
    stream = np.ascontiguousarray(words, dtype="<i4").view(np.uint8)  # (rows, bytes)
    if bits == 8:
        return stream[:, :count]
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes: NDArray[np.uint8] = stream[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
        return codes.reshape(len(stream), stream.shape[1] * len(shifts))[:, :count]
    digits = np.unpackbits(stream, axis=1, count=count * bits, bitorder="little")
    powers = np.uint8(1) << np.arange(bits, dtype=np.uint8)
    values: NDArray[np.uint8] = digits.reshape(len(stream), count, bits) @ powers
    return values


def defer(
    name: str, shape: tuple[int, ...], quant: QuantType, numbers: Callable[[], NDArray[np.float32]]
) -> Weight:
    """A weight *name* of *shape* in *quant*, whose *numbers* are computed when they are read."""

    def encode() -> NDArray[np.uint8]:
        with np.errstate(all="ignore"):  # numbers may become infinite, as in the libraries
            return registry.quantize(name, numbers(), quant).data

    size = quant.size_bytes(shape)
    assert size is not None  # a plain type
    return Weight(name, shape, quant, Deferred(encode, size))


def unlike(tensor: Weight, expected: str, model: str) -> InvalidFormat:
    """Error for a *tensor* that is not what is *expected*."""
    return InvalidFormat(
        f"{model}: {tensor.name} is {tensor.quant.name} of shape {tensor.shape}, expected "
        f"{expected}",
        hint=COMPARE,
    )
