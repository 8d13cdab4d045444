"""Llama 2, 3 and 3.2, SmolLM2: the base case; Llama 3 stores frequency factors as a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet.families.dense import dense, sizes
from bitnet.families.experts import EXPERT_KEYS, experts, in_layers
from bitnet.families.family import ATTENTION, MLP, WINDOWS, Family, LlamaCppSupport, register
from bitnet.families.rules import read

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _decoder(keys: Keys) -> ModelConfig:
    if not keys.integer("expert_count", 0):
        return dense(keys)
    return dense(keys, network=in_layers(experts(keys, width=sizes(keys).ffn, routing={})))


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
        gguf_keys=EXPERT_KEYS,  # Mixtral's files are of this architecture
        biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
        llama_cpp=LlamaCppSupport(
            tensors=("output.weight", ".bias", "rope_freqs.weight"),
            ignores=(*WINDOWS, "expert_feed_forward_length"),
        ),
        decoder=_decoder,
    )
)
