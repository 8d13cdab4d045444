"""Phi-3, 3.5 and 4-mini: query, key and value in one matrix, gate and up in another.

Long contexts have a second list of frequency factors.
"""

from __future__ import annotations

from functools import partial

from bitnet.families.dense import dense
from bitnet.families.family import BIASES, Family, LlamaCppSupport, register
from bitnet.families.rules import read
from bitnet.families.windows import everywhere

register(
    Family(
        title="Phi-3, 3.5 and 4-mini",
        architecture="phi3",
        model_types=("phi3",),
        activation="silu",
        defaults={
            "original_max_position_embeddings": 4096,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        config_keys={
            "sliding_window": read("positions a query attends to"),
            "original_max_position_embeddings": read("context length before extension"),
            "partial_rotary_factor": read("rotary share of a head"),
        },
        partial_rotation=True,
        llama_cpp=LlamaCppSupport(
            tensors=(
                "output.weight",
                *BIASES,
                "rope_factors_long.weight",
                "rope_factors_short.weight",
            ),
            whole_width=True,
        ),
        translate=everywhere,
        decoder=partial(dense, fused=True, ffn={"fused": True}),
    )
)
