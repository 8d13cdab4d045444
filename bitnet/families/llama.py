"""Llama 2, 3 and 3.2, SmolLM2: the base case; Llama 3 stores frequency factors as a tensor."""

from __future__ import annotations

from bitnet.families.family import ATTENTION, MLP, Family, LlamaCppSupport, register
from bitnet.families.rules import read

register(
    Family(
        title="Llama 2, 3 and SmolLM2",
        architecture="llama",
        model_types=("llama",),
        activation="silu",
        gguf_rope_style="interleaved",
        defaults={"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
        config_keys={
            "attention_bias": read("biases around attention"),
            "mlp_bias": read("biases in the feed-forward network"),
        },
        biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
        llama_cpp=LlamaCppSupport(tensors=("output.weight", ".bias", "rope_freqs.weight")),
    )
)
