"""Keys and values as int16 codes, which attention multiplies exactly, in pages of 64 positions.

A vector of a head becomes codes and one float32 step: a key's codes have a length of 32,767, the
largest of a value's is 16,383. ``native/kernels/isa/kernels.hpp`` states the arithmetic; this
module does the same in NumPy, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


__all__ = [
    "PAGE",
    "Array",
    "Vectors",
    "encode_keys",
    "encode_values",
    "load",
    "page_words",
    "pages_of",
    "store",
]

Array: TypeAlias = "NDArray[np.floating[Any]]"

PAGE = 64  # positions; ``kKeyBlock`` in native/kernels/isa/kernels.hpp
_KEY_RANGE, _VALUE_RANGE = np.float32(32767), np.float32(16383)
_LARGEST, _SMALLEST = np.float32(1e18), np.float32(1e-18)  # of which squares are normal numbers
_LANES = 16  # partial sums of a length, as in native/kernels/ops/float_ops.hpp


class Vectors(NamedTuple):
    """Vectors as codes.

    Attributes:
        codes: ``(..., D)``.
        steps: of each vector, ``(...)``, so that it is ``codes * step``; NaN where its size, a
            length or a largest magnitude, was above 1e18 or not a number.
    """

    codes: NDArray[np.int16]
    steps: NDArray[np.float32]


def encode_keys(x: Array) -> Vectors:
    """Codes of the vectors ``(..., D)`` of keys or queries; one shorter than 1e-18 becomes zero."""
    numbers: NDArray[np.float32] = np.asarray(x, dtype=np.float32)
    with np.errstate(all="ignore"):
        return _encode(numbers, np.sqrt(_sum(numbers * numbers)), _KEY_RANGE)


def encode_values(x: Array) -> Vectors:
    """Codes of the vectors ``(..., D)`` of values; below 1e-18 all of one becomes zero."""
    numbers: NDArray[np.float32] = np.asarray(x, dtype=np.float32)
    with np.errstate(all="ignore"):
        return _encode(numbers, np.abs(numbers).max(axis=-1), _VALUE_RANGE)


def _encode(x: NDArray[np.float32], size: NDArray[np.float32], extent: np.float32) -> Vectors:
    finite = size <= _LARGEST
    zero = ~finite | (size < _SMALLEST)
    scale = np.where(zero, np.float32(0), extent / size)
    steps = np.where(finite, np.where(zero, np.float32(0), size / extent), np.float32("nan"))
    scaled = np.where(zero[..., None], np.float32(0), x * scale[..., None])
    return Vectors(np.rint(scaled).astype(np.int16), steps)


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


def page_words(head_dim: int) -> int:
    """int16 of a page that the keys, or the values, of one head take: codes and 64 steps."""
    return PAGE * (_even(head_dim) + 2)


def store(page: NDArray[np.int16], slots: slice, keys: Array, values: Array) -> None:
    """Put *keys* and *values*, ``(T, kv_heads, D)``, into places *slots* of *page*.

    Args:
        page: one layer's, ``(2, kv_heads, page_words(D))``.
        slots: T places, from 0 to 63.
        keys: what to store.
        values: as *keys*.
    """
    head_dim = keys.shape[-1]
    at = np.arange(PAGE)[slots]
    (key_codes, value_codes), steps = _parts(page, head_dim)
    k, v = encode_keys(keys), encode_values(values)
    padding = ((0, 0), (0, 0), (0, head_dim % 2))
    of_keys, of_values = (np.pad(it.codes, padding) for it in (k, v))
    pairs = of_keys.reshape(*of_keys.shape[:2], -1, 2)
    key_codes[:, :, slots] = pairs.transpose(1, 2, 0, 3)
    value_codes[:, at // 2, :, at % 2] = of_values
    steps[:, :, slots] = np.stack((k.steps.T, v.steps.T))


def load(pages: NDArray[np.int16], head_dim: int) -> tuple[Array, Array]:
    """Keys and values of *pages*, ``(P, 2, kv_heads, page_words(D))``, as float32.

    Returns:
        ``(kv_heads, 64 * P, D)`` each.
    """
    kv_heads = pages.shape[2]
    keys_and_values: list[list[Array]] = [[], []]
    for page in pages:
        (keys, values), steps = _parts(page, head_dim)
        orders = keys.transpose(0, 2, 1, 3), values.transpose(0, 1, 3, 2)
        for to, codes, step in zip(keys_and_values, orders, steps, strict=True):
            numbers = codes.reshape(kv_heads, PAGE, -1)[..., :head_dim].astype(np.float32)
            with np.errstate(all="ignore"):  # places that hold nothing may hold anything
                to.append(numbers * step[..., None])
    return np.concatenate(keys_and_values[0], axis=1), np.concatenate(keys_and_values[1], axis=1)


def pages_of(keys: Array, values: Array) -> NDArray[np.int16]:
    """``(kv_heads, S, D)`` each, in pages: ``(P, 2, kv_heads, page_words(D))``."""
    kv_heads, count, head_dim = keys.shape
    shape = (-(-count // PAGE), 2, kv_heads, page_words(head_dim))
    pages = np.zeros(shape, dtype=np.int16)
    keys, values = keys.transpose(1, 0, 2), values.transpose(1, 0, 2)
    for i, page in enumerate(pages):
        part = slice(i * PAGE, min((i + 1) * PAGE, count))
        store(page, slice(0, part.stop - part.start), keys[part], values[part])
    return pages


def _even(head_dim: int) -> int:
    return head_dim + head_dim % 2


def _parts(
    page: NDArray[np.int16], head_dim: int
) -> tuple[tuple[NDArray[np.int16], NDArray[np.int16]], NDArray[np.float32]]:
    """Views of a layer's *page*.

    Returns:
        The codes of keys, ``(kv_heads, D / 2, 64, 2)``, and of values, ``(kv_heads, 32, D, 2)``, D
        even; the steps of both, ``(2, kv_heads, 64)``.
    """
    heads, even = page.shape[1], _even(head_dim)
    keys, values = page[:, :, : PAGE * even]
    codes = keys.reshape(heads, even // 2, PAGE, 2), values.reshape(heads, PAGE // 2, even, 2)
    return codes, page[:, :, PAGE * even :].view(np.float32)
