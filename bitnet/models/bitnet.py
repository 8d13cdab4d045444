"""BitNet b1.58: norms before the output projections; a gate of ReLU squared since 2B-4T."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.models.config import TransformerConfig, base_config

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint
    from bitnet.kernels.ops import Activation

__all__ = ["config"]


def config(checkpoint: Checkpoint) -> TransformerConfig:
    """``bitnet-b1.58`` and ``bitnet-25`` are Microsoft's 2B-4T, ``bitnet`` the models before it."""
    activation: Activation = "silu" if checkpoint.architecture == "bitnet" else "relu_squared"
    return TransformerConfig(**base_config(checkpoint), sub_norms=True, activation=activation)
