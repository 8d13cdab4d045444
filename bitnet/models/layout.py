"""Tensors that a decoder reads, as its program is written."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig


@dataclass
class Layout:
    """Tensors that a decoder reads, by GGUF name."""

    decoder: ModelConfig  # its blocks
    required: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes it must have
    optional: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes it may have
    scales: dict[str, float] = field(default_factory=dict)  # factors on matrices, if not one
    vectors: set[str] = field(default_factory=set)  # matrices that are used number by number
    tables: set[str] = field(default_factory=set)  # matrices of which only single rows are read
    products: set[str] = field(default_factory=set)  # matrices in products of a block

    def include(self, other: Layout) -> None:
        """Add the tensors of *other*, which is a part of the same model."""
        for entry in fields(self):
            if entry.name != "decoder":
                getattr(self, entry.name).update(getattr(other, entry.name))
