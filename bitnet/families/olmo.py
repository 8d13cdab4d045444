"""OLMo: norms of whole queries and keys.

OLMo 2 and 3 have norms behind attention and feed-forward, none before. OLMo 3 has windows in three
of four layers, which rotate without scaling; its GGUF files are OLMo 2's. OLMoE has experts, whose
weights are those of a softmax over all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet.families.dense import (
    AFTER,
    WINDOW_CONFIG,
    alternating,
    attention,
    check_local_base,
    dense,
    sizes,
)
from bitnet.families.experts import (
    EXPERT_CONFIG,
    EXPERT_KEYS,
    EXPERT_TENSORS,
    expert_keys,
    experts,
)
from bitnet.families.family import (
    ATTENTION,
    WINDOWS,
    Family,
    LlamaCppSupport,
    register,
    register_variant,
)
from bitnet.families.keys import neutral, read
from bitnet.families.rope import rope_from

if TYPE_CHECKING:
    from bitnet.families.blocks import ModelConfig
    from bitnet.families.keys import Keys


def _olmo2(keys: Keys) -> ModelConfig:
    rope = rope_from(keys, attention(keys, sizes(keys).dim).head_dim)
    check_local_base(keys, rope.theta, "OLMo 3")
    local = replace(rope, scaling="none", attention_factor=1.0, freq_factors=None)
    return dense(
        keys,
        norms=AFTER,
        period=4,
        qk_norm="whole",
        each=lambda _layer, usual: replace(usual, rope=local) if usual.window else usual,
    )


_OLMO2 = register(
    Family(
        title="OLMo 2",
        architecture="olmo2",
        model_types=("olmo2",),
        defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
        gguf_keys={"rope.freq_base_swa": read("must be `rope.freq_base`")},
        tensors={
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(ignores=(), tied=False, whole_width=True),
        decoder=_olmo2,
    )
)
register_variant(
    _OLMO2,
    title="OLMo 3",
    in_gguf=False,
    model_types=("olmo3",),
    defaults={
        "sliding_window": 4096,
        "rope_theta": 500000.0,
        "rope_local_base_freq": 500000.0,
    },
    config_keys={**WINDOW_CONFIG, "rope_local_base_freq": neutral(None, 500000.0)},
    layered_rope=True,
    translate=alternating(4),
)


def _olmoe(keys: Keys) -> ModelConfig:
    network = experts(keys, width=sizes(keys).ffn, routing={"renormalised": False})
    return dense(keys, qk_norm="whole", mixture=network)


register(
    Family(
        title="OLMoE",
        architecture="olmoe",
        model_types=("olmoe",),
        defaults={
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
        },
        config_keys={**EXPERT_CONFIG, "norm_topk_prob": neutral(False)},
        gguf_keys=EXPERT_KEYS,
        tensors=EXPERT_TENSORS,
        biases={"attention_bias": ATTENTION},
        llama_cpp=LlamaCppSupport(
            ignores=(*WINDOWS, "expert_feed_forward_length"),
            tied=False,
            whole_width=True,
            whole_keys=True,
        ),
        translate=lambda config: expert_keys(config, 64),
        decoder=_olmoe,
    )
)
