"""Qwen 2 and 2.5 (biases on query, key and value), Qwen 3 (norms on query and key heads)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.models.config import TransformerConfig, base_config

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["config"]


def config(checkpoint: Checkpoint) -> TransformerConfig:
    """``qwen2`` and ``qwen3``."""
    third = checkpoint.architecture == "qwen3"
    return TransformerConfig(**base_config(checkpoint), qkv_bias=not third, qk_norm=third)
