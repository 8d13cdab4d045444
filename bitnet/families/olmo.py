"""OLMo: norms of whole queries and keys.

OLMo 2 and 3 have norms behind attention and feed-forward, none before. OLMo 3 has windows in three
of four layers, which rotate without scaling; its GGUF files are OLMo 2's. OLMoE has experts, whose
weights are those of a softmax over all.
"""

from __future__ import annotations

from bitnet.families.dense import (
    AFTER,
    WINDOW_CONFIG,
    ModelConfig,
    alternating,
    check_local_base,
    dense,
    rotate_windows,
    sizes,
)
from bitnet.families.experts import EXPERT_CONFIG, EXPERT_KEYS, experts
from bitnet.families.family import ATTENTION, WINDOWS, LlamaCppSupport, register, register_variant
from bitnet.families.keys import Keys, neutral, reads


def _olmo2(keys: Keys) -> ModelConfig:
    check_local_base(keys, keys.number("rope.freq_base", 10000.0))
    return dense(keys, norms=AFTER, period=4, qk_norm="whole", each=rotate_windows())


_OLMO2 = register(
    title="OLMo 2",
    architecture="olmo2",
    gguf_keys=reads("rope.freq_base_swa"),
    tensors={"post_attention_layernorm": "post_attention_norm"},
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(ignores=(), tied=False, whole_width=True),
    decoder=_olmo2,
)
register_variant(
    _OLMO2,
    title="OLMo 3",
    in_gguf=False,
    model_types=("olmo3",),
    stated="rope_theta",
    config_keys={**WINDOW_CONFIG, "rope_local_base_freq": neutral(None, 500000.0)},
    layered_rope=True,
    translate=alternating(4),
)


def _olmoe(keys: Keys) -> ModelConfig:
    network = experts(keys, width=sizes(keys).ffn, routing={"renormalised": False})
    return dense(keys, qk_norm="whole", mixture=network)


register(
    title="OLMoE",
    architecture="olmoe",
    config_keys={**EXPERT_CONFIG, "norm_topk_prob": neutral(False)},
    gguf_keys=EXPERT_KEYS,
    biases={"attention_bias": ATTENTION},
    llama_cpp=LlamaCppSupport(
        ignores=(*WINDOWS, "expert_feed_forward_length"),
        tied=False,
        whole_width=True,
        whole_keys=True,
    ),
    decoder=_olmoe,
)
