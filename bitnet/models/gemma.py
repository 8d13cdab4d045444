"""Gemma 2 and 3: norms on both sides, GeGLU, scaled embeddings, layers with and without window."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.models.config import TransformerConfig, base_config

if TYPE_CHECKING:
    from bitnet.formats.checkpoint import Checkpoint

__all__ = ["config"]

# The 27B models scale scores by the width of the residual stream per head, and no key says so.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def config(checkpoint: Checkpoint) -> TransformerConfig:
    """``gemma2``: every second layer sees all, soft-caps. ``gemma3``: every sixth, q/k norms."""
    third = checkpoint.architecture == "gemma3"
    fields = base_config(
        checkpoint, default_window=1024 if third else 4096, period=6 if third else 2
    )
    fields["embedding_scale"] = math.sqrt(fields["dim"])
    if fields["n_layers"] == _LAYERS_OF_27B[checkpoint.architecture]:
        scale = (fields["dim"] / fields["n_heads"]) ** -0.5
        fields["attention_scale"] = checkpoint.number("attention.scale", scale)
    if third:
        # Layers with a window kept Gemma 2's frequencies, without scaling.
        fields["local_rope"] = replace(
            fields["rope"],
            base=checkpoint.number("rope.freq_base_swa", 10000.0),
            scaling="none",
        )
        fields["qk_norm"] = True
    else:
        fields["attention_softcap"] = checkpoint.number("attn_logit_softcapping", 50.0)
        fields["final_softcap"] = checkpoint.number("final_logit_softcapping", 30.0)
    return TransformerConfig(**fields, activation="gelu_tanh", post_norms=True)
