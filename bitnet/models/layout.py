"""Tensors that a decoder reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """Tensors of a decoder, by GGUF name.

    Attributes:
        required: shapes of those it must have.
        optional: shapes of those it may have.
        vectors: names of matrices that are used number by number, not in products.
        scales: factors on matrices, where they are not one.
        left_out: beginnings of the names of tensors that are not read.
    """

    required: Mapping[str, tuple[int, ...]]
    optional: Mapping[str, tuple[int, ...]]
    scales: Mapping[str, float]
    vectors: Container[str]
    left_out: tuple[str, ...]
