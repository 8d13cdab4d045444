"""Phi-3: query, key and value in one matrix, gate and up in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.models.config import TransformerConfig, base_config

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["config"]


def config(checkpoint: Checkpoint) -> TransformerConfig:
    """Phi-3 and Phi-3.5; long contexts come as two tensors of frequency divisors."""
    return TransformerConfig(**base_config(checkpoint), fused=True)
