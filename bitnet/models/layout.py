"""Tensors that a decoder reads, collected while its program is written."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig


@dataclass
class Layout:
    """Tensors that a decoder reads, by GGUF name, with shapes and how they are used."""

    decoder: ModelConfig  # the decoder that reads the tensors
    required: dict[str, tuple[int, ...]] = field(default_factory=dict)  # tensors it must have
    optional: dict[str, tuple[int, ...]] = field(default_factory=dict)  # tensors it may have
    scales: dict[str, float] = field(default_factory=dict)  # factors on the values of some tensors
    vectors: set[str] = field(default_factory=set)  # tensors applied element by element
    tables: set[str] = field(default_factory=set)  # matrices of which only single rows are read
    products: set[str] = field(default_factory=set)  # matrices in products of the model's blocks

    def include(self, other: Layout) -> None:
        """Add the tensors of *other*, which is a part of the same model."""
        for entry in fields(self):
            if entry.name != "decoder":
                getattr(self, entry.name).update(getattr(other, entry.name))
