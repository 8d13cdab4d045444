"""Keys and values as integer codes, which attention multiplies exactly, in pages of 64 positions.

With ``f16`` a vector of a head becomes int16 codes and one float32 step: a key's codes have a
length of 32,767, the largest of a value's is 16,383. With ``q8`` each 32 elements become int8 codes
and a step, a float32 whose lower half is zero. ``native/kernels/isa/kernels.hpp`` states the
arithmetic; this module does the same in NumPy, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from bitnet.families.blocks import KVType

Array: TypeAlias = "NDArray[np.floating[Any]]"

PAGE = 64  # positions; ``kKeyBlock`` in native/kernels/isa/kernels.hpp
GROUP = 32  # elements with one step in a q8 cache
_KEY_RANGE, _VALUE_RANGE = np.float32(32767), np.float32(16383)
_LARGEST, _SMALLEST = np.float32(1e18), np.float32(1e-18)  # of which squares are normal numbers
_LARGEST_BYTES = np.float32(1e16)  # of a q8 group: products of whole heads stay finite
_LANES = 16  # partial sums of a length, as in native/kernels/ops/float_ops.hpp


class Vectors(NamedTuple):
    """Vectors as codes."""

    codes: NDArray[np.int16]  # ``(..., D)``, int16
    # of each vector, ``(...)``, so that it is ``codes * step``; NaN where its size, a length or a
    # largest magnitude, was above 1e18 or not a number
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


def encode_groups(x: Array) -> Vectors:
    """int8 codes of each 32 elements of ``(..., D)``, with a step for each group.

    Zeros fill the last group. A step is NaN where the largest magnitude of its group was above 1e16
    or not a number.

    Codes are ``(..., G, 32)``, steps ``(..., G)``.
    """
    numbers = np.asarray(x, dtype=np.float32)
    padding = [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % GROUP)]
    parts = np.pad(numbers, padding).reshape(*numbers.shape[:-1], -1, GROUP)
    with np.errstate(all="ignore"):
        size = np.abs(parts).max(axis=-1)
        finite = size <= _LARGEST_BYTES
        zero = ~finite | (size < _SMALLEST)
        bits = np.where(zero, np.float32(0), size / np.float32(127)).view(np.uint32)
        steps = ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
        scale = np.where(zero, np.float32(0), np.float32(1) / steps)
        scaled = np.where(zero[..., None], np.float32(0), parts * scale[..., None])
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
    """int16 of a page that the keys, or the values, of one head take: codes and their steps."""
    if kv_type == "q8":
        return PAGE * -(-head_dim // GROUP) * (GROUP // 2 + 1)
    return PAGE * (_even(head_dim) + 2)


def store(
    page: NDArray[np.int16], slots: slice, keys: Array, values: Array, kv_type: KVType = "f16"
) -> None:
    """Put *keys* and *values*, ``(T, kv_heads, D)``, into places *slots* of *page*.

    *page* is that of a layer, ``(2, kv_heads, page_words(D, kv_type))``.
    """
    if kv_type == "q8":
        _store_bytes(page, slots, keys, values)
        return
    at = np.arange(PAGE)[slots]
    head_dim = keys.shape[-1]
    (key_codes, value_codes), steps = _parts(page, head_dim)
    k, v = encode_keys(keys), encode_values(values)
    padding = ((0, 0), (0, 0), (0, head_dim % 2))
    of_keys, of_values = (np.pad(it.codes, padding) for it in (k, v))
    pairs = of_keys.reshape(*of_keys.shape[:2], -1, 2)
    key_codes[:, :, slots] = pairs.transpose(1, 2, 0, 3)
    value_codes[:, at // 2, :, at % 2] = of_values
    steps[:, :, slots] = np.stack((k.steps.T, v.steps.T))


def load(pages: NDArray[np.int16], head_dim: int, kv_type: KVType = "f16") -> tuple[Array, Array]:
    """Keys and values of *pages*, ``(P, 2, kv_heads, page_words(D, kv_type))``, as float32.

    They are ``(kv_heads, 64 * P, D)`` each.
    """
    kv_heads = pages.shape[2]
    keys_and_values: list[list[Array]] = [[], []]
    for page in pages:
        if kv_type == "q8":
            for to, rows in zip(keys_and_values, _load_bytes(page), strict=True):
                to.append(rows[..., :head_dim])
            continue
        (keys, values), steps = _parts(page, head_dim)
        orders = keys.transpose(0, 2, 1, 3), values.transpose(0, 1, 3, 2)
        for to, codes, step in zip(keys_and_values, orders, steps, strict=True):
            numbers = codes.reshape(kv_heads, PAGE, -1)[..., :head_dim].astype(np.float32)
            with np.errstate(all="ignore"):  # places that hold nothing may hold anything
                to.append(numbers * step[..., None])
    return np.concatenate(keys_and_values[0], axis=1), np.concatenate(keys_and_values[1], axis=1)


def pages_of(keys: Array, values: Array, kv_type: KVType = "f16") -> NDArray[np.int16]:
    """``(kv_heads, S, D)`` each, in pages: ``(P, 2, kv_heads, page_words(D, kv_type))``."""
    kv_heads, count, head_dim = keys.shape
    shape = (-(-count // PAGE), 2, kv_heads, page_words(head_dim, kv_type))
    pages = np.zeros(shape, dtype=np.int16)
    keys, values = keys.transpose(1, 0, 2), values.transpose(1, 0, 2)
    for i, page in enumerate(pages):
        part = slice(i * PAGE, min((i + 1) * PAGE, count))
        store(page, slice(0, part.stop - part.start), keys[part], values[part], kv_type)
    return pages


def _even(head_dim: int) -> int:
    return head_dim + head_dim % 2


def _parts(
    page: NDArray[np.int16], head_dim: int
) -> tuple[tuple[NDArray[np.int16], NDArray[np.int16]], NDArray[np.float32]]:
    """Views of a layer's *page*.

    The codes of keys are ``(kv_heads, D / 2, 64, 2)``, those of values ``(kv_heads, 32, D,
    2)``, D even; the steps of both ``(2, kv_heads, 64)``.
    """
    heads, even = page.shape[1], _even(head_dim)
    keys, values = page[:, :, : PAGE * even]
    codes = keys.reshape(heads, even // 2, PAGE, 2), values.reshape(heads, PAGE // 2, even, 2)
    return codes, page[:, :, PAGE * even :].view(np.float32)


def _bytes_of(
    page: NDArray[np.int16],
) -> tuple[tuple[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.uint16]]:
    """Views of a layer's *page* of bytes, of G groups in each head.

    The codes of keys, plus 128, are ``(kv_heads, 8 G, 64, 4)``, those of values ``(kv_heads,
    16, 32 G, 4)``; the upper halves of the steps of both ``(2, kv_heads, G, 64)``.
    """
    heads, groups = page.shape[1], page.shape[2] // (PAGE * (GROUP // 2 + 1))
    words = PAGE * groups * GROUP // 2
    keys, values = (its.view(np.uint8) for its in page[:, :, :words])
    codes = keys.reshape(heads, -1, PAGE, 4), values.reshape(heads, PAGE // 4, -1, 4)
    return codes, page[:, :, words:].view(np.uint16).reshape(2, heads, groups, PAGE)


def _store_bytes(page: NDArray[np.int16], slots: slice, keys: Array, values: Array) -> None:
    at = np.arange(PAGE)[slots]
    (key_codes, value_codes), steps = _bytes_of(page)
    k, v = encode_groups(keys), encode_groups(values)  # (T, heads, G, 32), (T, heads, G)
    of_keys, of_values = (
        codes.astype(np.int8).view(np.uint8).reshape(*codes.shape[:2], -1) for codes in (k[0], v[0])
    )
    quads = (of_keys ^ np.uint8(128)).reshape(*of_keys.shape[:2], -1, 4)
    key_codes[:, :, slots] = quads.transpose(1, 2, 0, 3)
    value_codes[:, at // 4, :, at % 4] = of_values
    halves = np.stack((k.steps, v.steps)).view(np.uint32) >> 16
    steps[..., slots] = halves.astype(np.uint16).transpose(0, 2, 3, 1)


def _load_bytes(page: NDArray[np.int16]) -> Iterator[Array]:
    """Keys, then values of a layer's *page* of bytes, ``(kv_heads, 64, 32 G)``."""
    (keys, values), steps = _bytes_of(page)
    orders = (keys ^ np.uint8(128)).transpose(0, 2, 1, 3), values.transpose(0, 1, 3, 2)
    for codes, its in zip(orders, steps, strict=True):
        numbers = codes.reshape(len(codes), PAGE, -1, GROUP).view(np.int8).astype(np.float32)
        of_group = (its.astype(np.uint32) << 16).view(np.float32).transpose(0, 2, 1)
        with np.errstate(all="ignore"):  # places that hold nothing may hold anything
            yield (numbers * of_group[..., None]).reshape(len(codes), PAGE, -1)
