"""Llama 2, 3 and 3.2, Mistral, SmolLM2: the plain case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.models.config import TransformerConfig, base_config

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["config"]


def config(checkpoint: Checkpoint) -> TransformerConfig:
    """Nothing but what keys and tensors say: Llama 3's frequencies are a tensor."""
    return TransformerConfig(**base_config(checkpoint))
