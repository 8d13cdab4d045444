"""Keys and values as integer codes, which attention multiplies exactly, in pages of 64 positions.

With ``f16`` a vector of a head becomes int16 codes and one float32 step: a key's codes have a
length of 32,767, the largest of a value's is 16,383. With ``q8`` it is rotated, and becomes int8
codes and a step, a float32 whose lower half is zero. ``native/kernels/isa/kernels.hpp`` states the
arithmetic; this module does the same in NumPy, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bitnet.families.blocks import KVType

Array: TypeAlias = "NDArray[np.floating[Any]]"

PAGE = 64  # positions; ``kKeyBlock`` in native/kernels/isa/kernels.hpp
_WIDTH = 16  # vectors are padded with zeros to a multiple of so many codes
_KEY_RANGE = np.float32(32767)
_VALUE_RANGE = np.float32(16383)
# Lengths and magnitudes that can be encoded: their squares are normal numbers.
_LARGEST = np.float32(1e18)
_SMALLEST = np.float32(1e-18)
_LARGEST_BYTES = np.float32(1e14)  # largest magnitude of a q8 vector: products of heads are finite
_LANES = 16  # partial sums of squares, as in native/kernels/ops/float_ops.hpp


class Vectors(NamedTuple):
    """Vectors as codes."""

    codes: NDArray[np.int16]  # ``(..., D)``, int16
    # a step per vector, ``(...)``: the vector is ``codes * step``; NaN where its length or largest
    # magnitude is too large to be encoded, or not a number
    steps: NDArray[np.float32]


def encode_keys(x: Array) -> Vectors:
    """Quantize keys or queries, ``(..., D)``; a vector shorter than 1e-18 becomes zero."""
    numbers: NDArray[np.float32] = np.asarray(x, dtype=np.float32)
    with np.errstate(all="ignore"):
        return _encode(numbers, np.sqrt(_sum(numbers * numbers)), _KEY_RANGE)


def encode_values(x: Array) -> Vectors:
    """Quantize values, ``(..., D)``; a vector of magnitudes below 1e-18 becomes zero."""
    numbers: NDArray[np.float32] = np.asarray(x, dtype=np.float32)
    with np.errstate(all="ignore"):
        return _encode(numbers, np.abs(numbers).max(axis=-1), _VALUE_RANGE)


def _encode(x: NDArray[np.float32], size: NDArray[np.float32], extent: np.float32) -> Vectors:
    """Codes of the vectors *x*, scaled so that the *size* of each, ``(...)``, becomes *extent*."""
    finite = size <= _LARGEST
    zero = ~finite | (size < _SMALLEST)
    scale = np.where(zero, np.float32(0), extent / size)
    steps = np.where(finite, np.where(zero, np.float32(0), size / extent), np.float32("nan"))
    scaled = np.where(zero[..., None], np.float32(0), x * scale[..., None])
    return Vectors(np.rint(scaled).astype(np.int16), steps)


def rotate(x: Array) -> Array:
    """*x* ``(..., D)`` times a Hadamard matrix, which spreads large elements over a block.

    Blocks are as wide as the largest power of two that divides D, :func:`rotation_block`. The
    matrix is not normalized: rotating twice gives *x* times the width of a block.
    """
    block = rotation_block(x.shape[-1])
    parts = x.reshape(*x.shape[:-1], -1, block)
    for _ in range(block.bit_length() - 1):
        even = parts[..., ::2]
        odd = parts[..., 1::2]
        parts = np.concatenate((even + odd, even - odd), axis=-1)
    return parts.reshape(x.shape)


def rotation_block(head_dim: int) -> int:
    """Number of neighbouring elements that :func:`rotate` mixes."""
    return head_dim & -head_dim


def encode_bytes(x: Array) -> Vectors:
    """int8 codes of the rotated vectors ``(..., D)``.

    A step is NaN where the largest magnitude after the rotation was above 1e14 or not a number.
    """
    with np.errstate(all="ignore"):
        rotated = rotate(np.asarray(x, dtype=np.float32))
        size = np.abs(rotated).max(axis=-1)
        finite = size <= _LARGEST_BYTES
        zero = ~finite | (size < _SMALLEST)
        # Steps are rounded up to floats whose lower 16 bits are zero: no code is above 127.
        bits = np.where(zero, np.float32(0), size / np.float32(127)).view(np.uint32)
        steps = ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
        scale = np.where(zero, np.float32(0), np.float32(1) / steps)
        scaled = np.where(zero[..., None], np.float32(0), rotated * scale[..., None])
    return Vectors(np.rint(scaled).astype(np.int16), np.where(finite, steps, np.float32("nan")))


def _sum(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums over the last axis, in the order of ``sum_over`` in ``ops/float_ops.hpp``."""
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % _LANES)]
    parts = np.pad(x, padding).reshape(*x.shape[:-1], -1, _LANES)
    lanes: NDArray[np.float32] = np.zeros_like(parts[..., 0, :])
    for i in range(parts.shape[-2]):
        lanes = lanes + parts[..., i, :]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def page_words(head_dim: int, kv_type: KVType = "f16") -> int:
    """Size in int16 of one head's keys, or values, in a page: codes and their steps."""
    width = _pad_width(head_dim)
    return PAGE * (width // 2 + 1 if kv_type == "q8" else width + 2)


def store(
    page: NDArray[np.int16], slots: slice, keys: Array, values: Array, kv_type: KVType = "f16"
) -> None:
    """Store *keys* and *values*, ``(T, kv_heads, D)``, at positions *slots* of *page*.

    *page* is one layer's part of a page, ``(2, kv_heads, page_words(D, kv_type))``.
    """
    at = np.arange(PAGE)[slots]
    head_dim = keys.shape[-1]
    (key_codes, value_codes), steps = _parts(page, head_dim, kv_type)
    per_word = key_codes.shape[-1]  # codes in 32 bits
    if kv_type == "q8":
        k = encode_bytes(keys)
        v = encode_bytes(values)
    else:
        k = encode_keys(keys)
        v = encode_values(values)
    padding = ((0, 0), (0, 0), (0, _pad_width(head_dim) - head_dim))
    of_keys, of_values = (
        np.pad(encoded.codes.astype(key_codes.dtype), padding) for encoded in (k, v)
    )
    if kv_type == "q8":
        of_keys ^= np.int8(-128)  # keys are stored plus 128
    neighbours = of_keys.reshape(*of_keys.shape[:2], -1, per_word)
    key_codes[:, :, slots] = neighbours.transpose(1, 2, 0, 3)
    value_codes[:, at // per_word, :, at % per_word] = of_values
    of_both = np.stack((k.steps.T, v.steps.T))
    steps[:, :, slots] = of_both.view(np.uint32) >> 16 if kv_type == "q8" else of_both


def load(pages: NDArray[np.int16], head_dim: int, kv_type: KVType = "f16") -> tuple[Array, Array]:
    """Keys and values of *pages*, ``(P, 2, kv_heads, page_words(D, kv_type))``, as float32.

    They are ``(kv_heads, 64 * P, D)`` each.
    """
    kv_heads = pages.shape[2]
    keys_and_values: list[list[Array]] = [[], []]
    for page in pages:
        (keys, values), steps = _parts(page, head_dim, kv_type)
        if kv_type == "q8":
            keys = keys ^ np.int8(-128)
            steps = (steps.astype(np.uint32) << 16).view(np.float32)
        orders = keys.transpose(0, 2, 1, 3), values.transpose(0, 1, 3, 2)
        for to, codes, step in zip(keys_and_values, orders, steps, strict=True):
            numbers = codes.reshape(kv_heads, PAGE, -1)[..., :head_dim].astype(np.float32)
            with np.errstate(all="ignore"):  # positions behind the last one may have any bytes
                numbers = numbers * step[..., None]
                if kv_type == "q8":
                    numbers = rotate(numbers) / np.float32(rotation_block(head_dim))
                to.append(numbers)
    return np.concatenate(keys_and_values[0], axis=1), np.concatenate(keys_and_values[1], axis=1)


def _pad_width(head_dim: int) -> int:
    """Codes of a vector, with padding."""
    return -(-head_dim // _WIDTH) * _WIDTH


def _parts(
    page: NDArray[np.int16], head_dim: int, kv_type: KVType
) -> tuple[tuple[NDArray[Any], NDArray[Any]], NDArray[Any]]:
    """Views of a layer's *page*: codes of keys and of values, and the steps of both.

    With W codes in a padded vector, codes of keys are ``(kv_heads, W / 2, 64, 2)`` and codes of
    values ``(kv_heads, 32, W, 2)``; with ``q8``, ``(kv_heads, W / 4, 64, 4)``, plus 128, and
    ``(kv_heads, 16, W, 4)``. Steps are ``(2, kv_heads, 64)``; with ``q8``, their upper 16 bits.
    """
    heads = page.shape[1]
    width = _pad_width(head_dim)
    per_word, code, step = (4, np.int8, np.uint16) if kv_type == "q8" else (2, np.int16, np.float32)
    words = PAGE * width * np.dtype(code).itemsize // 2
    keys, values = (codes.view(code) for codes in page[:, :, :words])
    codes = (
        keys.reshape(heads, -1, PAGE, per_word),
        values.reshape(heads, PAGE // per_word, width, per_word),
    )
    return codes, page[:, :, words:].view(step)
