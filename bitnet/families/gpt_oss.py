"""gpt-oss: experts with clamped gates, biases everywhere, sinks, every other layer windowed.

A folder's matrices of experts are stored transposed, with the rows of gate and up in turns, or as
blocks of MXFP4 (``formats/expert_tensors.py``).
"""

from __future__ import annotations

from typing import Any

from bitnet.families.dense import RENAMED, WINDOW_CONFIG, ModelConfig, alternating, dense, sizes
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, experts
from bitnet.families.family import ATTENTION, BIASES, LlamaCppSupport, register
from bitnet.families.keys import Config, Keys, neutral

_PARTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def _decoder(keys: Keys) -> ModelConfig:
    network = experts(
        keys,
        width=sizes(keys).ffn,
        routing={"gating": "softmax_chosen", "renormalised": False},
        activation="swiglu_oai",
        biased=True,
    )
    return dense(keys, norms=RENAMED, period=2, sinks=True, mixture=network)


def _translate(config: Config) -> dict[str, Any]:
    width = {"expert_feed_forward_length": config["intermediate_size"]}
    return width | alternating(2)(config)


register(
    title="gpt-oss",
    architecture="gpt-oss",
    stated="attention_bias head_dim num_key_value_heads rope_theta rope_type",
    config_keys={
        **EXPERT_CONFIG,
        **WINDOW_CONFIG,
        "swiglu_alpha": neutral(None, 1.702),
        "swiglu_limit": neutral(None, 7.0),
    },
    gguf_keys=EXPERT_KEYS,
    tensors={"post_attention_layernorm": "post_attention_norm"},
    biases={"attention_bias": ATTENTION, "": _PARTS},
    transposed_experts=True,
    llama_cpp=LlamaCppSupport(
        tensors=(
            "output.weight",
            *BIASES,
            "attn_output.bias",
            *(f"{part}.bias" for part in _PARTS),
        ),
        required=("attn_output.bias",),
        ignores=(),
        tied=False,
    ),
    translate=_translate,
    decoder=_decoder,
)
